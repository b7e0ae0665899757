"""A compact memory of the records that were sent, to compare them with the records that are read.

For each partition the ledger keeps 16 bytes for each record (BLAKE2b over key and value), in the order of sending, and
one SHA-256 over all records. The comparison checks for each record that its offset follows the last one, and that its
digest is the one sent at this place. So it names the partition and offset of a lost, repeated, changed or reordered
record, and what is wrong with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from runtime.errors import SiltstoneError

_DIGEST_BYTES = 16


class MismatchError(SiltstoneError):
    """The records that were read differ from those that were written."""


class Ledger:
    """The records of one topic, by partition, in order."""

    def __init__(self, partitions: int) -> None:
        self._digests = [bytearray() for _ in range(partitions)]
        self._hashes = [hashlib.sha256() for _ in range(partitions)]

    def add(self, partition: int, key: bytes | None, value: bytes | None) -> None:
        framed = frame(key, value)
        self._digests[partition] += _digest(framed)
        self._hashes[partition].update(framed)

    def count(self, partition: int) -> int:
        return len(self._digests[partition]) // _DIGEST_BYTES

    def total(self) -> int:
        return sum(self.count(partition) for partition in range(len(self._digests)))

    def sha256(self) -> str:
        """The SHA-256 over the SHA-256s of all partitions, in the order of partitions."""
        return hashlib.sha256(b"".join(each.digest() for each in self._hashes)).hexdigest()

    def digest_at(self, partition: int, offset: int) -> bytes:
        """The digest of the record at this place; b"" if there is none."""
        start = offset * _DIGEST_BYTES
        return bytes(self._digests[partition][start : start + _DIGEST_BYTES])

    def find(self, partition: int, digest: bytes) -> int:
        """The first place of a digest in a partition, or -1."""
        # A match that does not begin at a multiple of the digest's size spans two digests, so it is none.
        digests = self._digests[partition]
        at = digests.find(digest)
        while at > 0 and at % _DIGEST_BYTES:
            at = digests.find(digest, at + 1)
        return at // _DIGEST_BYTES if at >= 0 else -1


class Comparison:
    """Compares reads with a ledger. Raises MismatchError at the first record that differs."""

    def __init__(self, sent: Ledger, partitions: int) -> None:
        self._sent = sent
        self.read = Ledger(partitions)
        self._next = [0] * partitions

    def add(self, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        place = self._next[partition]
        if offset != place:
            kind = "a gap" if offset > place else "a record that came twice or out of order"
            raise MismatchError(f"partition {partition}: {kind}: offset {offset} follows {place - 1}")
        self.read.add(partition, key, value)
        digest = self.read.digest_at(partition, place)
        if digest != self._sent.digest_at(partition, place):
            raise MismatchError(f"partition {partition}, offset {offset}: {self._explain(partition, digest)}")
        self._next[partition] = place + 1

    def done(self) -> bool:
        """Whether everything that was sent has been read."""
        return all(count >= self._sent.count(partition) for partition, count in enumerate(self._next))

    def missing(self) -> Sequence[str]:
        """For messages: one line for each partition that is not at its end."""
        return [
            f"partition {partition}: {count} of {self._sent.count(partition)}"
            for partition, count in enumerate(self._next)
            if count < self._sent.count(partition)
        ]

    def finish(self) -> str:
        """The SHA-256 of both sides. Raises MismatchError if they differ or records are missing."""
        if missing := self.missing():
            raise MismatchError(f"records are missing: {'; '.join(missing)}")
        if self.read.sha256() != self._sent.sha256():
            raise MismatchError(
                f"the SHA-256 of the records read is {self.read.sha256()}, of the records sent {self._sent.sha256()}"
            )
        return self.read.sha256()

    def _explain(self, partition: int, digest: bytes) -> str:
        place = self._sent.find(partition, digest)
        if place >= 0:
            return f"the record here was sent at place {place}"
        return "the record here was never sent to this partition"


def frame(key: bytes | None, value: bytes | None) -> bytes:
    """Key and value as bytes that no other pair has: both lengths first, -1 for null."""
    key_length = -1 if key is None else len(key)
    value_length = -1 if value is None else len(value)
    head = key_length.to_bytes(4, "big", signed=True) + value_length.to_bytes(4, "big", signed=True)
    return head + (key or b"") + (value or b"")


def _digest(framed: bytes) -> bytes:
    return hashlib.blake2b(framed, digest_size=_DIGEST_BYTES).digest()
