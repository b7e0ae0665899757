"""Rules about transactions removed on purpose, each of which seems unnecessary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from compactor.cleaning.partition_cleaner import PartitionCleaner
from compactor.cleaning.rules import AbortedBatches
from metadata.contract.compactors import PartitionView
from tests.compaction.transactions.ledger import Ledger

Plant = Callable[[], AbstractContextManager[Any]]


def drops_markers_of_listed_transactions() -> AbstractContextManager[Any]:
    """The old rule: a marker without data goes, whatever is listed. Clients drop the producer's next transactions."""
    return patch.object(AbortedBatches, "ends_at", lambda *_: False)


@contextmanager
def forgets_transactions_by_parts() -> Iterator[None]:
    """A merge that left nothing of a transaction takes it off the list, though its other records lie elsewhere."""
    with ExitStack() as plants:
        for module in ("merging.partition_merge", "heavy.combine"):
            plants.enter_context(patch(f"compactor.{module}.holds_live", lambda *_: True))
        yield


def forgets_what_is_left() -> AbstractContextManager[Any]:
    """A pass from end to end takes every transaction off the list, also those with records that must not be touched."""
    return patch.object(PartitionCleaner, "_note_aborted", lambda *_: None)


@contextmanager
def lists_only_what_ended_below_the_stable_offset() -> Iterator[None]:
    """The records of a transaction that was aborted while an older one is open hide committed ones."""
    view = Ledger.view

    def below(self: Ledger, partition: PartitionView) -> PartitionView:
        found = view(self, partition)
        return replace(found, aborted=[one for one in found.aborted if one[2] < found.last_stable_offset])

    with patch.object(Ledger, "view", below):
        yield


PLANTED: Mapping[str, Plant] = {
    "drops-markers-of-listed-transactions": drops_markers_of_listed_transactions,
    "forgets-transactions-by-parts": forgets_transactions_by_parts,
    "forgets-what-is-left": forgets_what_is_left,
    "lists-only-what-ended-below-the-stable-offset": lists_only_what_ended_below_the_stable_offset,
}
