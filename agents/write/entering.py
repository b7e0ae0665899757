"""How the transactional batches of a file enter their transactions, beside its PUT. Pure.

A batch waits for nothing when it comes: batches keep their order of arrival, and one call checks all of a file. Its
answers go into the commit, which judges again under its locks. A batch that may not enter is refused there, with the
error that Kafka's AddPartitionsToTxnManager gives to a client of its version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agents.write.submission import PendingBatch
from metadata.contract.l0_commit import L0Batch
from metadata.transactions.contract import Entered, Entry
from wire.error_codes import ErrorCode

ADDS_SINCE = 12
"""The Produce version of clients of the second protocol, whose partitions enter by writing to them (KIP-890)."""
ABORTABLE_SINCE = 11
"""The Produce version of clients that know TRANSACTION_ABORTABLE (KIP-890)."""


@dataclass(frozen=True, slots=True)
class Entering:
    """The transactional batches of a file."""

    entries: tuple[Entry, ...]
    """What to ask: one for each producer, partition and protocol."""
    places: tuple[tuple[int, int, int], ...]
    """Per transactional batch: its place in the file, that of its entry, and the version of its request."""

    def judged(self, batches: Sequence[L0Batch], entered: Sequence[Entered]) -> tuple[L0Batch, ...]:
        """The batches of the file as the commit takes them."""
        found = list(batches)
        for at, entry, version in self.places:
            answer = entered[entry]
            if answer.error:
                found[at] = found[at]._replace(masked_error=_error(answer.error, version))
            else:
                found[at] = found[at]._replace(txn_seq=answer.txn_seq)
        return tuple(found)


def entering(batches: Sequence[tuple[int, L0Batch, PendingBatch]]) -> Entering | None:
    """`batches`: for each transactional one, its place in the file, as the commit takes it, and as it came. None: there
    is none."""
    if not batches:
        return None
    entries: dict[Entry, int] = {}
    places: list[tuple[int, int, int]] = []
    for at, batch, pending in batches:
        producer = (batch.producer_id, batch.producer_epoch)
        entry = Entry(pending.transactional_id, *producer, batch.partition_id, pending.api_version >= ADDS_SINCE)
        places.append((at, entries.setdefault(entry, len(entries)), pending.api_version))
    return Entering(tuple(entries), tuple(places))


def _error(error: int, version: int) -> int:
    if error == int(ErrorCode.PRODUCER_FENCED):
        return int(ErrorCode.INVALID_PRODUCER_EPOCH)
    if error in (int(ErrorCode.INVALID_TXN_STATE), int(ErrorCode.TRANSACTION_ABORTABLE)):
        return int(ErrorCode.TRANSACTION_ABORTABLE if version >= ABORTABLE_SINCE else ErrorCode.INVALID_TXN_STATE)
    return error
