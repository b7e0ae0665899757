"""Rules about transactions removed on purpose, each of which seems unnecessary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from compactor.cleaning.partition_cleaner import PartitionCleaner
from compactor.cleaning.rules import AbortedBatches
from metadata.memory import views
from metadata.memory.tables import MemoryDatabase

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
    aborted_of = views.aborted_of

    def below(db: MemoryDatabase, partition_id: int) -> Sequence[tuple[int, int, int]]:
        return [one for one in aborted_of(db, partition_id) if one[2] < db.last_stable_offset(partition_id)]

    with patch.object(views, "aborted_of", below):
        yield


PLANTED: Mapping[str, Plant] = {
    "drops-markers-of-listed-transactions": drops_markers_of_listed_transactions,
    "forgets-transactions-by-parts": forgets_transactions_by_parts,
    "forgets-what-is-left": forgets_what_is_left,
    "lists-only-what-ended-below-the-stable-offset": lists_only_what_ended_below_the_stable_offset,
}
