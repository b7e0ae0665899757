"""Plans for readers of committed records: where they end, and which aborted transactions they name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agents.read.leveled import Window
from agents.read.plan import KnownExtent, MissingExtents, PartitionPlan, plan_partition
from agents.tail.log_index import LogIndex
from agents.tail.transactions import by_marker
from metadata.contract.leveled import LeveledExtent
from metadata.transactions.contract import AbortedTransaction
from storage.format.block_index import BlockEntry
from storage.format.survey import SoundParts
from tests.unit.agents.tail.transactional_index import ABORT, COMMIT, Index, begin, end, opened


def merged(base: int, last: int) -> LeveledExtent:
    return LeveledExtent(
        extent_id=base,
        partition_id=1,
        base_offset=base,
        last_offset=last,
        file_id=1_000 + base,
        key=f"l1/{base}",
        level=1,
        file_size_bytes=1_000,
        position=0,
        length=500,
        block_index_position=500,
        block_index_length=100,
        record_count=last - base + 1,
        crc32c=0,
        min_timestamp_ms=0,
        max_timestamp_ms=0,
        has_tombstones=False,
        flagged_reason=None,
    )


def looked_up(
    extents: Sequence[tuple[int, int]],
    aborted: Sequence[tuple[int, int, int]] = (),
    *,
    end: int,
    from_offset: int = 0,
) -> Window:
    found = [AbortedTransaction(1, *each) for each in aborted]
    return Window(0.0, from_offset, [merged(*each) for each in extents], by_marker(found), end)


@dataclass
class Known:
    index: LogIndex
    windows: list[Window] = field(default_factory=list[Window])

    def extent_at(self, partition_id: int, offset: int, aborted_from: int | None) -> KnownExtent | None:
        found = (window.extent_at(offset, aborted_from) for window in self.windows)
        return next((each for each in found if each is not None), None)

    def blocks_of(self, extent: LeveledExtent) -> Sequence[BlockEntry] | None:
        raise AssertionError("all extents are short")

    def sound_parts_of(self, extent: LeveledExtent) -> SoundParts | None:
        raise AssertionError("no extent is flagged")

    def plan(self, offset: int, *, committed_only: bool = True) -> PartitionPlan:
        return plan_partition(self, 1, offset, 1 << 20, None, committed_only=committed_only)

    def named(self, offset: int, to: int = 1 << 40) -> list[tuple[int, int]]:
        plan = self.plan(offset)
        assert plan.missing is None
        return [each[:2] for each in plan.aborted_below(min(to, plan.end))]


def test_a_plan_ends_at_the_last_stable_offset_inside_a_stretch() -> None:
    index = opened()
    index.records(1, 0, 9)
    index.records(2, 10, 29, begin(7, 15))
    index.records(3, 30, 39)
    known = Known(index)
    plan = known.plan(0)
    assert (plan.end, [each.file_id for each in plan.ranges]) == (15, [1, 2])
    assert (known.plan(12).end, len(known.plan(12).ranges), known.plan(12).holds_some) == (15, 1, True)
    for offset in (15, 20, 40):
        assert (known.plan(offset).ranges, known.plan(offset).missing) == ([], None)
    assert (known.plan(0, committed_only=False).end, len(known.plan(0, committed_only=False).ranges)) == (40, 3)


def test_the_list_names_what_may_have_records_in_the_answer_by_first_offset() -> None:
    index = opened()
    index.records(1, 0, 39, begin(1, 5), begin(2, 10), begin(3, 20))
    index.markers(2, end(ABORT, 2, 10, 40))
    index.markers(3, end(ABORT, 3, 20, 41), end(ABORT, 1, 5, 42))
    index.records(4, 43, 49, begin(2, 43))
    index.markers(5, end(ABORT, 2, 43, 50))
    known = Known(index)
    assert known.named(0) == [(1, 5), (2, 10), (3, 20), (2, 43)]
    assert known.named(0, to=15) == [(1, 5), (2, 10)]
    assert known.named(0, to=5) == []
    assert known.named(41) == [(1, 5), (3, 20), (2, 43)]
    assert known.named(43) == [(2, 43)], "its first transaction ended below: the client would drop good records of it"
    assert known.plan(0, committed_only=False).aborted_below(1 << 40) == []


def test_a_transaction_across_the_seam_of_merged_files_and_l0_is_named_once() -> None:
    index = opened()
    index.records(1, 0, 9, begin(7, 3))
    index.records(2, 10, 19)
    index.markers(3, end(ABORT, 7, 3, 20))
    index.drop(1)
    known = Known(index, [looked_up([(0, 9)], [(7, 3, 20)], end=21)])
    for offset in (0, 5, 10, 20):
        assert known.named(offset) == [(7, 3)]
    assert len(known.plan(0).ranges) == 3


def test_of_a_merged_extent_the_index_says_nothing_that_the_look_up_did_not_say() -> None:
    # given: everything behind the first file was merged, and the dedupe has taken a transaction and its marker
    index = opened()
    index.records(1, 0, 9)
    index.records(2, 10, 19, begin(7, 12))
    index.markers(3, end(ABORT, 7, 12, 20))
    index.records(4, 21, 29, begin(7, 21))
    index.markers(5, end(COMMIT, 7, 21, 30))
    index.drop(2, 3)
    assert index.aborted() == [(7, 12, 20)], "the first file still lies in L0"
    known = Known(index, [looked_up([(10, 20)], end=31)])
    # then: an old entry without its marker would cost the client the committed records at 21
    assert known.named(0) == known.named(10) == known.named(15) == []
    known.windows = [looked_up([(10, 20)], [(7, 12, 20)], end=31)]
    assert known.named(0) == [(7, 12)]


def test_what_was_aborted_after_the_look_up_comes_from_the_index() -> None:
    index = opened()
    index.records(1, 0, 9, begin(7, 3))
    index.records(2, 10, 19)
    index.drop(1)
    known = Known(index, [looked_up([(0, 9)], end=20)])
    assert (known.plan(0).end, known.named(0)) == (3, [])
    index.markers(3, end(ABORT, 7, 3, 20))
    assert known.named(0) == [(7, 3)]
    assert known.named(0, to=10) == [(7, 3)]


def test_once_the_index_has_forgotten_what_was_aborted_since_merged_files_are_looked_up_again() -> None:
    index = opened()
    index.records(1, 0, 9, begin(7, 3))
    index.records(2, 10, 19)
    index.drop(1)
    known = Known(index, [looked_up([(0, 9)], end=20)])
    index.markers(3, end(ABORT, 7, 3, 20))
    index.drop(2, 3)
    assert index.aborted() == []
    assert known.plan(0).missing == MissingExtents(0)
    assert known.plan(0, committed_only=False).missing is None, "the others need no list"
    known.windows.insert(0, looked_up([(0, 9)], [(7, 3, 20)], end=21))
    assert known.named(0) == [(7, 3)]


def test_a_look_up_from_further_up_says_nothing_of_what_ended_below() -> None:
    index = opened()
    index.records(1, 0, 99, begin(7, 3))
    index.markers(2, end(ABORT, 7, 3, 100))
    index.drop(1, 2)
    known = Known(index, [looked_up([(0, 100)], end=101, from_offset=50)])
    assert known.plan(50).missing is None
    assert known.plan(49).missing == MissingExtents(49)
    assert known.plan(49, committed_only=False).missing is None


def test_a_cold_start_believes_no_earlier_look_up() -> None:
    index = Index()
    index.open_partition(1, start=0, end=100)
    known = Known(index, [looked_up([(0, 99)], end=99)])
    assert known.plan(0).missing == MissingExtents(0)
    known.windows = [looked_up([(0, 99)], end=100)]
    assert known.plan(0).missing is None
