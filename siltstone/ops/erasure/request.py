"""The request of an erasure: its keys, the marks of each partition, and the tombstones to write first. Pure.

A mark names the offset below which the records of a key go:

- Topics that are not compacted: the end of the partition, or the first record at or after `--before`. Every key is
  marked in every partition, because nobody knows how the producers chose partitions.
- Compacted topics: the newest record of the key decides. A value gets a tombstone, and the mark is the tombstone. A
  tombstone is the mark itself. A record that `--before` lets stay gets none: the mark is the first offset that stays.
  So is that of a key without a record, whose bytes may lie among those that a pass removed already. Records of aborted
  transactions decide nothing, but go too, and nobody knows yet what those of open ones mean: a key with such a record
  behind its newest one gets a tombstone behind all of them, also where an older one stands already.
"""

from __future__ import annotations

import codecs
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from compactor.planning.erasure_times import TimePart, begin_after_ms, earliest_ms
from metadata.erasures.contract import ERASURE_KEYS_MAX, KeyMark
from runtime.errors import BadInputError
from runtime.text import age_text

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"))
DEADLINE_MAX_MS = 365 * 86_400_000
PartitionKey = tuple[int, bytes]
"""Partition number and key."""


class Newest(NamedTuple):
    """The newest record of a key in a partition, of those that readers of committed records see."""

    offset: int
    """-1: there are only others."""
    is_tombstone: bool
    unseen_offset: int = -1
    """The newest record of an aborted or open transaction."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A request for a compacted topic before its tombstones are written."""

    marks: Mapping[PartitionKey, KeyMark]
    """Of keys that need no tombstone."""
    to_delete: Sequence[PartitionKey]
    """Keys whose newest record is a value that goes, or nobody knows: they get a tombstone."""

    @property
    def has_tombstones(self) -> bool:
        return bool(self.to_delete) or any(mark.tombstone for mark in self.marks.values())


def hash_of(key: bytes) -> bytes:
    return hashlib.new("sha512_256", key).digest()


def read_keys(given: Iterable[bytes], lines: Iterable[bytes], source: str, *, as_hex: bool = False) -> Sequence[bytes]:
    """The keys of options and of a file, one on a line, in order, each once. Raises BadInputError.

    A file is text or hex, because a line cannot hold every key: bytes of a binary key look like the ends of lines, and
    the key that is left would be another one, whose records must stay.
    """
    keys = [_from_hex(key, "--key") for key in given] if as_hex else list(given)
    ends_with_cr: bool | None = None
    for number, line in enumerate(lines, start=1):
        place = f"line {number} of {source}"
        whole = line.removesuffix(b"\n")
        key = whole.removesuffix(b"\r")
        if number == 1:
            # Editors and spreadsheets put it there. As a part of the first key it would let that key's records stay.
            key = key.removeprefix(codecs.BOM_UTF8)
        if not key:
            raise BadInputError(
                f"{place} is empty, and nothing was requested", remedy="remove the line: each line is a key"
            )
        if as_hex:
            keys.append(_from_hex(key, place))
            continue
        _check_text(key, place)
        # A last line without an end says nothing.
        if line.endswith(b"\n"):
            if ends_with_cr not in (None, key != whole):
                raise BadInputError(
                    f"{place} ends in another way than those before it, so a carriage return may be part of a key;"
                    " nothing was requested",
                    remedy="end all lines alike, or give --keys-format hex",
                )
            ends_with_cr = whole.endswith(b"\r")
        keys.append(key)
    if not keys:
        raise BadInputError("no key was given", remedy="give --key KEY, or --keys-file FILE with a key on each line")
    if any(not key for key in keys):
        raise BadInputError("a key is empty", remedy="give --key KEY with at least one byte")
    distinct = list(dict.fromkeys(keys))
    if len(distinct) > ERASURE_KEYS_MAX:
        raise BadInputError(
            f"{len(distinct):,} keys are more than one erasure takes ({ERASURE_KEYS_MAX:,})",
            remedy="split them over several erasures; merges carry them out together",
        )
    return distinct


def _check_text(key: bytes, place: str) -> None:
    try:
        is_text = all(each >= " " or each == "\t" for each in key.decode())
    except UnicodeDecodeError:
        is_text = False
    if not is_text:
        raise BadInputError(
            f"{place} is no text in UTF-8, and nothing was requested",
            remedy="save the file as UTF-8; for keys that are no text give --keys-format hex, with each key in hex"
            " digits",
        )


def _from_hex(key: bytes, place: str) -> bytes:
    try:
        return bytes.fromhex(key.decode("ascii"))
    except ValueError:
        raise BadInputError(
            f"{place} is not in hex digits, and nothing was requested",
            remedy="write two digits for each byte, such as 0000000a",
        ) from None


def check_count(keys: int, partitions: int) -> None:
    """Every key may be marked in every partition. Raises BadInputError."""
    if keys * partitions > ERASURE_KEYS_MAX:
        raise BadInputError(
            f"{keys:,} keys in {partitions:,} partitions are more than one erasure takes: {ERASURE_KEYS_MAX:,} in all",
            remedy=f"split the keys over several erasures of at most {ERASURE_KEYS_MAX // partitions:,} keys;"
            " merges carry them out together",
        )


def plain_marks(keys: Iterable[bytes], ends: Mapping[int, int]) -> Mapping[int, Sequence[KeyMark]]:
    """`ends`: by partition number, the first offset that stays. Partitions without a record below it get no mark."""
    hashes = [hash_of(key) for key in keys]
    return {number: [KeyMark(each, end) for each in hashes] for number, end in sorted(ends.items()) if end > 0}


def draft(
    keys: Sequence[bytes],
    newest: Mapping[PartitionKey, Newest],
    ends: Mapping[int, int],
    stays_from: Mapping[int, int] | None,
) -> Draft:
    """The marks of a compacted topic, as far as they need no tombstone. `ends`: by partition number, how far `newest`
    was read; `stays_from`: the first offset that `--before` lets stay."""
    marks: dict[PartitionKey, KeyMark] = {}
    to_delete: list[PartitionKey] = []
    for number, end in sorted(ends.items()):
        limit = end if stays_from is None else min(stays_from[number], end)
        for key in keys:
            last = newest.get((number, key))
            if last is None or last.offset >= limit:
                marks[number, key] = KeyMark(hash_of(key), limit)
            elif last.is_tombstone and last.unseen_offset < last.offset:
                marks[number, key] = KeyMark(hash_of(key), last.offset, tombstone=True)
            else:
                to_delete.append((number, key))
    return Draft(marks, to_delete)


def compacted_marks(plan: Draft, written: Mapping[PartitionKey, int]) -> Mapping[int, Sequence[KeyMark]]:
    """`written`: the offset of each tombstone."""
    found: dict[int, list[KeyMark]] = defaultdict(list)
    for (number, _), mark in plan.marks.items():
        # Below offset 0 there is nothing, but a tombstone at offset 0 goes.
        if mark.before_offset > 0 or mark.tombstone:
            found[number].append(mark)
    for number, key in plan.to_delete:
        found[number].append(KeyMark(hash_of(key), written[number, key], tombstone=True))
    return dict(found)


def check_deadline(deadline_ms: int, parts: Sequence[TimePart]) -> None:
    """Raises BadInputError for a deadline that cannot be kept, or that is so far away that nobody would notice."""
    earliest = earliest_ms(parts)
    if earliest > DEADLINE_MAX_MS:
        raise BadInputError(
            f"an erasure may take {age_text(earliest)} ({parts_text(parts)}), longer than any deadline"
            f" ({age_text(DEADLINE_MAX_MS)}); nothing was requested",
            remedy="set shorter times",
        )
    if deadline_ms > DEADLINE_MAX_MS:
        raise BadInputError(
            f"the deadline, {age_text(deadline_ms)}, is too far away; nothing was requested",
            remedy=f"give --deadline {DEADLINE_MAX_MS // _UNITS[0][0]}d or less",
        )
    if deadline_ms < earliest:
        raise BadInputError(
            f"the deadline, {age_text(deadline_ms)}, is too soon: an erasure may take {age_text(earliest)}"
            f" ({parts_text(parts)}); nothing was requested",
            remedy=f"give --deadline {_rounded_up(earliest)} or later, or set shorter times",
        )


def _rounded_up(duration_ms: int) -> str:
    """As an option takes it: "25h"."""
    unit, name = next((each for each in _UNITS if duration_ms > 2 * each[0]), _UNITS[-1])
    return f"{-(-duration_ms // unit)}{name}"


def parts_text(parts: Sequence[TimePart]) -> str:
    return " + ".join(f"{each.what} {age_text(each.took_ms)}" for each in parts)


def begin_of(deadline_ms: int, parts: Sequence[TimePart], *, waits: bool) -> int:
    """`NewErasure.begin_ms`: at once when somebody waits for the end."""
    return 0 if waits else begin_after_ms(deadline_ms, parts)
