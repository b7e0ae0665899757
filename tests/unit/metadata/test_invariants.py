"""Every invariant holds on a good system, and names the fault of a bad one."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from metadata.contract.files import FileInfo, FileState, L0File
from metadata.contract.l0_commit import ProducerState
from metadata.contract.topics import Watermarks
from metadata.rules.invariants.all_levels import (
    LiveExtent,
    Violation,
    check_file_1,
    check_log_1,
    check_log_2,
    check_log_2_bytes,
    check_log_3,
    check_one_row_each,
    check_prod_1,
    check_prod_1_bytes,
    live_extents,
)
from metadata.rules.packed_index import IndexRow, encode_index
from tests.fixtures.record_batches import one_batch, with_header
from wire.crc import crc32c

ONE = 1


def mark(high: int, start: int = 0) -> dict[int, Watermarks]:
    return {ONE: Watermarks(partition_id=ONE, log_start_offset=start, last_stable_offset=high, high_watermark=high)}


def row(base: int, last: int, *, position: int = 0, length: int = 100) -> IndexRow:
    return IndexRow(ONE, base, last, position, length, 0, 0)


def file(file_id: int, *rows: IndexRow, state: FileState = FileState.LIVE, body: bytes = b"") -> FileInfo:
    return FileInfo(
        file_id=file_id,
        key=f"k{file_id}",
        level=0,
        state=state,
        writer_id=1,
        epoch=0,
        seq=file_id,
        size_bytes=len(body),
        crc32c=crc32c(body),
        created_ms=0,
        index=encode_index(rows),
    )


def extents(*ranges: tuple[int, int]) -> list[LiveExtent]:
    return [LiveExtent(key=f"k{n}", row=row(*range_)) for n, range_ in enumerate(ranges)]


def ids(violations: list[Violation]) -> list[str]:
    return [violation.id for violation in violations]


def said(violations: list[Violation]) -> str:
    return " / ".join(violation.message for violation in violations)


# ---- LOG-1


def test_log_1_holds_when_files_tile_the_log_in_any_state() -> None:
    files = [file(1, row(0, 4)), file(2, row(5, 5), row(6, 9), state=FileState.DEAD), file(3, state=FileState.ABORTED)]

    assert check_log_1(files, mark(10)) == []


@pytest.mark.parametrize(
    ("files", "high", "message"),
    [
        ([file(1, row(0, 4)), file(2, row(4, 9))], 10, "file 2 repeats 4"),
        ([file(1, row(0, 4)), file(2, row(6, 9))], 10, "no file has [5, 6)"),
        ([file(1, row(5, 9)), file(2, row(0, 4))], 10, "file 2 repeats 0"),
        ([file(1, row(0, 4))], 6, "files end at 5, the high watermark is 6"),
        ([file(1, row(0, 4))], 4, "files end at 5, the high watermark is 4"),
        ([], 1, "files end at 0, the high watermark is 1"),
    ],
)
def test_log_1_names_offsets_given_twice_never_or_out_of_order(files: list[FileInfo], high: int, message: str) -> None:
    violations = check_log_1(files, mark(high))

    assert set(ids(violations)) == {"LOG-1"}
    assert message in said(violations)


def test_log_1_allows_gaps_where_rows_were_forgotten() -> None:
    assert check_log_1([file(3, row(7, 9))], mark(12), complete=False) == []
    assert ids(check_log_1([file(3, row(7, 9))], mark(9), complete=False)) == ["LOG-1"]


# ---- LOG-2, LOG-3


def test_live_extents_leave_out_what_is_deleted_or_below_the_log_start() -> None:
    rows = (row(0, 4), row(5, 9), row(10, 12), IndexRow(2, 0, 0, 0, 1, 0, 0))
    l0 = L0File(file_id=1, key="k", writer_id=1, epoch=0, seq=0, size_bytes=1, created_ms=0, index=encode_index(rows))

    assert [extent.row for extent in live_extents([l0], mark(13, start=7))] == [rows[1], rows[2]]


def test_log_2_and_log_3_hold_when_live_extents_cover_the_log() -> None:
    covering = extents((5, 9), (0, 4), (10, 10))

    assert check_log_2(covering, mark(11)) == []
    assert check_log_3(covering, mark(11)) == []
    assert check_log_3(extents((3, 9)), mark(10, start=7)) == []
    assert check_log_3([], mark(7, start=7)) == []


@pytest.mark.parametrize(
    ("ranges", "high", "message"),
    [
        (((0, 4), (6, 9)), 10, "[5, 6)"),
        (((0, 4),), 10, "[5, 10)"),
        (((2, 9),), 10, "[0, 2)"),
        ((), 10, "[0, 10)"),
    ],
)
def test_log_2_and_log_3_name_what_cannot_be_read(ranges: tuple[tuple[int, int], ...], high: int, message: str) -> None:
    for check, id_ in ((check_log_2, "LOG-2"), (check_log_3, "LOG-3")):
        violations = check(extents(*ranges), mark(high))
        assert ids(violations) == [id_]
        assert message in said(violations)


def test_log_3_names_extents_that_overlap_or_reach_too_far() -> None:
    assert "two live extents hold [4, 4]" in said(check_log_3(extents((0, 4), (4, 9)), mark(10)))
    assert "reaches 9" in said(check_log_3(extents((0, 9)), mark(9)))


# ---- FILE-1 and the bytes


@dataclass(frozen=True)
class Stat:
    size_bytes: int
    crc32c: int | None


class Bucket:
    def __init__(self, bodies: dict[str, bytes], *, keeps_crc: bool = True) -> None:
        self.bodies = bodies
        self.keeps_crc = keeps_crc

    async def head(self, key: str) -> Stat | None:
        body = self.bodies.get(key)
        return None if body is None else Stat(len(body), crc32c(body) if self.keeps_crc else None)

    async def get(self, key: str) -> bytes | None:
        return self.bodies.get(key)


@pytest.mark.parametrize("keeps_crc", [True, False])
async def test_file_1_compares_live_files_with_their_objects(keeps_crc: bool) -> None:
    files = [file(n, body=b"body") for n in (1, 2, 3)] + [file(4, body=b"gone", state=FileState.DEAD)]
    good = Bucket({"k1": b"body", "k2": b"body", "k3": b"body"}, keeps_crc=keeps_crc)
    bad = Bucket({"k1": b"body", "k2": b"bodi"}, keeps_crc=keeps_crc)

    assert await check_file_1(files, good) == []
    violations = await check_file_1(files, bad)
    assert ids(violations) == ["FILE-1", "FILE-1"]
    assert "k2" in said(violations)
    assert "no object k3" in said(violations)


async def test_the_bytes_of_a_live_extent_are_batches_that_hold_its_offsets() -> None:
    body = one_batch(3) + one_batch(2)
    extent = LiveExtent(key="k", row=row(10, 14, length=len(body)))

    assert await check_log_2_bytes([extent], Bucket({"k": body})) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: body[:-1],
        lambda body: body[:70] + bytes([body[70] ^ 1]) + body[71:],
        lambda body: with_header(body, last_offset_delta=3),
        lambda body: with_header(body, last_offset_delta=-1),
        lambda body: with_header(body, magic=1),
        lambda body: bytes(len(body)),
    ],
)
async def test_bytes_that_cannot_be_read_break_log_2(damage: object) -> None:
    body = one_batch(3)
    extent = LiveExtent(key="k", row=row(10, 12, length=len(body)))

    assert ids(await check_log_2_bytes([extent], Bucket({"k": damage(body)}))) == ["LOG-2"]  # type: ignore[operator]
    assert ids(await check_log_2_bytes([extent], Bucket({}))) == ["LOG-2"]


# ---- one row each


def test_a_partition_or_a_producer_with_two_rows_is_named() -> None:
    marks = [*mark(9).values(), Watermarks(partition_id=2, log_start_offset=0, last_stable_offset=1, high_watermark=1)]
    producers = [*state((0, 0, 1)), ProducerState(partition_id=2, producer_id=7, epoch=0, batches=(), last_seen_ms=0)]
    assert check_one_row_each(marks, producers) == []

    found = check_one_row_each([*marks, *mark(10).values()], [*producers, *state((1, 1, 2))])

    assert [(each.id, each.message) for each in found] == [
        ("LOG-1", "partition 1: 2 rows of watermarks"),
        ("PROD-1", "partition 1: 2 rows of producer 7"),
    ]


# ---- PROD-1


def state(*batches: tuple[int, int, int]) -> list[ProducerState]:
    return [ProducerState(partition_id=ONE, producer_id=7, epoch=0, batches=batches, last_seen_ms=0)]


def test_prod_1_holds_for_consecutive_batches_across_the_wrap() -> None:
    assert check_prod_1(state((2**31 - 2, 0, 10), (1, 4, 20)), mark(24)) == []


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (((0, 1, 0), (3, 3, 5)), "3 follows 1"),
        (((0, 1, 0), (0, 1, 5)), "0 follows 1"),
        (((0, 1, 5), (2, 3, 5)), "at offset 5 follows one at 5"),
        (((0, 4, 96),), "ends past the high watermark 100"),
    ],
)
def test_prod_1_names_batches_that_are_not_consecutive(batches: tuple[tuple[int, int, int], ...], message: str) -> None:
    violations = check_prod_1(state(*batches), mark(100))

    assert ids(violations) == ["PROD-1"]
    assert message in said(violations)


async def test_prod_1_names_a_batch_that_is_stored_twice() -> None:
    first = with_header(one_batch(2), producer_id=7, producer_epoch=0, base_sequence=0)
    second = with_header(one_batch(2), producer_id=7, producer_epoch=0, base_sequence=2)
    anonymous = one_batch(2)
    once, twice = first + second + anonymous * 2, first + second + first

    def of(body: bytes, last: int) -> list[LiveExtent]:
        return [LiveExtent(key="k", row=row(0, last, length=len(body)))]

    assert await check_prod_1_bytes(of(once, 7), Bucket({"k": once})) == []
    violations = await check_prod_1_bytes(of(twice, 5), Bucket({"k": twice}))
    assert ids(violations) == ["PROD-1"]
    assert "stored at 0 and at 4" in said(violations)
