"""A restore drill counts records as lost, as wrong or as unfit, and leaves others to the live cluster."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from compactor.deletion.backup_format import Increment
from metadata.contract.backup import BackupInstant, DoneJob
from metadata.contract.files import L0File
from metadata.contract.leveled import LeveledExtent
from metadata.contract.operators import SystemView
from metadata.contract.tail import Cursor
from metadata.contract.topics import Topic, Watermarks
from metadata.postgres.backup.kept import GroupPlace, Kept
from metadata.postgres.backup.scratch import at_database
from metadata.rules.packed_index import IndexRow, encode_index
from siltstone.ops.drill.compare import Comparison, Seen, SeenLater, compare
from siltstone.ops.drill.run import judge
from siltstone.ops.rebuild.plan import Hole
from siltstone.ops.rebuild.reading import Found, has_no_half
from siltstone.ops.rebuild.state import Catalogued
from siltstone.ops.rebuild.tiling import Footer

NOW_MS = 1_000_000
T, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)
COUNTS = {"groups": 0, "transactional ids": 0, "ACLs": 0, "quotas": 0, "users": 2, "erasures": 0}

NOTHING_FOUND = Found(
    catalogued=Catalogued(
        instant=BackupInstant(taken_ms=0, cluster_id="c", cursor=Cursor(writers={}, change_id=0), sequences={}),
        tables={},
        increments=[],
    ),
    snapshot="s",
)
"""A bucket without damage."""


def topic(id_: uuid.UUID = T, *partition_ids: int, created_ms: int = 0, **configs: str) -> Topic:
    return Topic(topic_id=id_, name=f"t{id_.int}", partition_ids=partition_ids, configs=configs, created_ms=created_ms)


def file(number: int, created_ms: int, *rows: tuple[int, int, int], position: int = 0) -> L0File:
    """`rows`: (partition id, base offset, last offset)."""
    packed = [IndexRow(*row, position + 100 * at, 100, 0, 0) for at, row in enumerate(rows)]
    return L0File(
        file_id=number, key=f"l0/{number}", writer_id=1, epoch=0, seq=number, size_bytes=1000, created_ms=created_ms,
        index=encode_index(packed),
    )  # fmt: skip


def kept(offsets: Mapping[GroupPlace, int] | None = None, **counts: int) -> Kept:
    return Kept(counts=COUNTS | counts, group_offsets=offsets or {}, size_bytes=0, changed_ms=0)


def seen(
    topics: Sequence[Topic],
    bounds: Mapping[int, tuple[int, int]],
    *files: L0File,
    offsets: Mapping[GroupPlace, int] = {},
) -> Seen:
    view = SystemView(
        now_ms=NOW_MS,
        watermarks=[Watermarks(partition_id=id_, log_start_offset=start, last_stable_offset=end, high_watermark=end)
                    for id_, (start, end) in bounds.items()],
        l0_files=files,
        extents=[],
        live_extents={},
        job_inputs=[],
        pins=[],
    )  # fmt: skip
    return Seen(topics={each.topic_id: each for each in topics}, view=view, kept=kept(offsets))


def later(topics: Sequence[Topic], starts: Mapping[int, int]) -> SeenLater:
    return SeenLater(topics={each.topic_id: each for each in topics}, log_starts=starts, kept=kept())


def rows(comparison: Comparison) -> dict[str, tuple[int, int]]:
    return {row.what: (row.live, row.rebuilt) for row in comparison.rows}


def test_the_tail_that_did_not_come_back_is_lost_since_its_first_commit() -> None:
    files = file(1, NOW_MS - 900, (10, 0, 4)), file(2, NOW_MS - 500, (10, 5, 9)), file(3, NOW_MS - 100, (10, 10, 14))
    live = seen([topic(T, 10)], {10: (0, 15)}, *files)
    comparison = compare(live, later([topic(T, 10)], {10: 0}), seen([topic(T, 10)], {10: (0, 5)}, files[0]), [],
                         known_ms=NOW_MS - 600)  # fmt: skip
    [lost] = comparison.lost
    assert lost[:4] == ("t1", 0, 5, 14)
    assert (comparison.lost_records, comparison.lost_ms) == (10, 500)
    assert rows(comparison)["records"] == (15, 5)
    assert rows(comparison)["users"] == (2, 0) and not comparison.differing()


def test_holes_and_a_log_start_that_moved_are_lost_but_not_what_clients_deleted_meanwhile() -> None:
    live = seen([topic(T, 10, 11)], {10: (0, 20), 11: (0, 20)}, file(1, 7, (10, 0, 19), (11, 0, 19)))
    rebuilt = seen([topic(T, 10, 11)], {10: (3, 20), 11: (12, 20)})
    holes = [Hole(10, T, 0, 8, 9, False)]
    # when DeleteRecords moved partition 0 to 2 and partition 1 to 12
    comparison = compare(live, later([topic(T, 10, 11)], {10: 2, 11: 12}), rebuilt, holes, known_ms=50)
    assert sorted(each[:4] for each in comparison.lost) == [("t1", 0, 2, 2), ("t1", 0, 8, 9)]
    assert {each.since_ms for each in comparison.lost} == {7}


def test_a_topic_counts_as_lost_unless_it_was_deleted_meanwhile() -> None:
    late, gone = topic(OTHER, 20, created_ms=NOW_MS - 40), topic(uuid.UUID(int=3), 30)
    live = seen([topic(T, 10), late, gone], {10: (0, 1), 20: (0, 0), 30: (0, 9)})
    comparison = compare(live, later([topic(T, 10), late], {10: 0, 20: 0}), seen([topic(T, 10)], {10: (0, 1)}), [],
                         known_ms=0)  # fmt: skip
    assert [each.name for each in comparison.lost_topics] == ["t2"]
    assert comparison.lost_ms == 40 and comparison.lost_records == 0
    assert rows(comparison)["topics"] == (2, 1) and comparison.differing() == ["topics"]


def test_other_configs_count_unless_they_changed_meanwhile() -> None:
    live = seen([topic(T, 10, a="1"), topic(OTHER, 20, a="1")], {})
    again = later([topic(T, 10, a="1"), topic(OTHER, 20, a="2")], {})
    rebuilt = seen([topic(T, 10, a="0"), topic(OTHER, 20, a="2")], {})
    comparison = compare(live, again, rebuilt, [], known_ms=0)
    assert rows(comparison)["topic configs"] == (1, 0)


def test_offsets_of_groups_that_are_older_are_counted() -> None:
    places = [GroupPlace(b"g", str(T), number) for number in range(3)]
    live = seen([topic(T, 10)], {}, offsets={places[0]: 5, places[1]: 6, places[2]: 7})
    rebuilt = seen([topic(T, 10)], {}, offsets={places[0]: 5, places[1]: 4})
    comparison = compare(live, later([topic(T, 10)], {}), rebuilt, [], known_ms=0)
    assert rows(comparison)["group offsets"] == (3, 1) and not comparison.differing()


def test_a_file_with_other_offsets_or_places_is_wrong() -> None:
    live = seen([topic(T, 10)], {10: (0, 20)}, file(1, 0, (10, 0, 9)), file(2, 0, (10, 10, 19)))
    for other, wrong in (
        (file(2, 0, (10, 10, 19)), 0),
        (file(2, 0, (10, 9, 18)), 1),
        (file(2, 0, (10, 10, 19), position=7), 1),
        # of a topic that the live one has no more
        (file(2, 0, (99, 3, 4)), 0),
    ):
        rebuilt = seen([topic(T, 10)], {10: (0, 20)}, file(1, 0, (10, 0, 9)), other)
        comparison = compare(live, later([topic(T, 10)], {10: 0}), rebuilt, [], known_ms=0)
        assert len(comparison.wrong) == wrong, comparison.wrong


def extent(*, last: int = 9, position: int = 0, length: int = 100, crc32c: int = 1) -> LeveledExtent:
    return LeveledExtent(
        extent_id=1, partition_id=10, base_offset=0, last_offset=last, file_id=1, key="l1/1", level=1,
        file_size_bytes=1000, position=position, length=length, block_index_position=0, block_index_length=0,
        record_count=10, crc32c=crc32c, min_timestamp_ms=0, max_timestamp_ms=0, has_tombstones=False,
        flagged_reason=None,
    )  # fmt: skip


@pytest.mark.parametrize("other", [{"last": 8}, {"position": 7}, {"length": 99}, {"crc32c": 2}])
def test_an_extent_of_a_merge_with_other_offsets_or_bytes_is_wrong(other: dict[str, int]) -> None:
    def of(each: LeveledExtent) -> Seen:
        found = seen([topic(T, 10)], {10: (0, 10)})
        return replace(found, view=replace(found.view, extents=[each]))

    again = later([topic(T, 10)], {10: 0})
    assert compare(of(extent()), again, of(extent()), [], known_ms=0).wrong == []
    comparison = compare(of(extent()), again, of(extent(**other)), [], known_ms=0)
    assert comparison.wrong == ["l1/1: its extent at offset 0 differs"]
    assert judge(NOTHING_FOUND, comparison, [], lost_ms_max=0)[0] == f"wrong: {comparison.wrong[0]}"


@pytest.mark.parametrize("what", ["ACLs", "quotas"])
def test_what_clients_set_and_did_not_come_back_is_told_unless_it_changed_of_late(what: str) -> None:
    def with_one(seen_: Seen, changed_ms: int = 0) -> Seen:
        return replace(seen_, kept=replace(kept(**{what: 1}), changed_ms=changed_ms))

    bare = seen([topic(T, 10, a="1")], {})
    other = seen([topic(T, 10, a="2")], {})
    again = replace(later([topic(T, 10, a="1")], {}), kept=kept(**{what: 1}))
    for changed_ms, told in ((NOW_MS - 501, [f"differing from the live ones, though not changed of late: {what}"]),
                             (NOW_MS - 500, [])):  # fmt: skip
        comparison = compare(with_one(bare, changed_ms), again, bare, [], known_ms=NOW_MS)
        assert judge(NOTHING_FOUND, comparison, [], lost_ms_max=500) == told
    both = compare(with_one(bare), again, other, [], known_ms=NOW_MS)
    assert judge(NOTHING_FOUND, both, [], lost_ms_max=500) == [
        f"differing from the live ones, though not changed of late: topic configs, {what}"
    ]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u:p@h:5432/db", "postgresql://u:p@h:5432/x"),
        ("postgresql://u@h1:1,h2:2/db?sslmode=verify-full&sslrootcert=/a/b", "postgresql://u@h1:1,h2:2/x?sslmode=verify-full&sslrootcert=/a/b"),
        ("postgres:///db?host=/run/postgres", "postgres:///x?host=/run/postgres"),
        ("postgresql://h", "postgresql://h/x"),
        ("postgresql://h?sslmode=require", "postgresql://h/x?sslmode=require"),
    ],
)  # fmt: skip
def test_the_scratch_database_is_on_the_same_server(url: str, expected: str) -> None:
    assert at_database(url, "x") == expected


def merged(key: str, *inputs: str, file_class: str = "compacted") -> Footer:
    return Footer(
        key=key, size_bytes=1, crc32c=0, level=1, file_class=file_class, created_ms=0, job_id=1, epoch=1, kind="merge",
        inputs=tuple(enumerate(inputs)), config_version=1, extents=(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("footers", "listed", "expected"),
    [
        # the whole merge, and no part of it
        ([merged("a", "i"), merged("b", "i")], "abi", True),
        ([], "i", True),
        # one of two outputs; an input is missing
        ([merged("a", "i")], "ai", False),
        ([merged("a", "i"), merged("b", "i")], "ab", False),
        # plain topics: inputs hold the same records
        ([merged("a", "i", file_class="plain")], "a", True),
    ],
)
def test_a_half_of_a_merge_of_compacted_topics_is_seen(footers: list[Footer], listed: str, expected: bool) -> None:
    cursor = Cursor(writers={}, change_id=0)
    increment = Increment(
        taken_ms=1, cluster_id="c", cursor=cursor, files=(), changes=(), jobs=[DoneJob(1, 1, 1, ("a", "b"))]
    )
    instant = BackupInstant(taken_ms=0, cluster_id="c", cursor=cursor, sequences={})
    found = Found(catalogued=Catalogued(instant=instant, tables={}, increments=[increment]), snapshot="s")
    found.listing, found.footers = dict.fromkeys(listed, 1), footers
    assert has_no_half(found) is expected
