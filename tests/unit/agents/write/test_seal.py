"""From submissions to one file: batches grouped by partition, in order of arrival, with each result at its place."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.write.seal import seal
from agents.write.submission import PendingBatch, Submission
from metadata.contract.l0_commit import BatchResult
from storage.format.file_format import read_file
from wire.batch import crc_matches, iter_headers, read_header
from wire.crc import JOINED_BYTES_MIN, crc32c
from wire.records import NewRecord, build_batch

NOW_MS = 1_800_000_000_000


class Promise:
    def done(self) -> bool:
        return False

    def set_result(self, result: Sequence[BatchResult], /) -> None:
        raise AssertionError("sealing answers nobody")


def pending(partition_id: int, value: bytes, *, log_append_time: bool = False, count: int = 1) -> PendingBatch:
    records = memoryview(build_batch([NewRecord(NOW_MS - 5, None, value)] * count))
    return PendingBatch(partition_id, UUID(int=9), partition_id, records, read_header(records), log_append_time)


@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=6))
def test_every_batch_lies_where_its_row_says_and_its_result_finds_the_way_back(partitions: list[list[int]]) -> None:
    number = iter(range(1000))
    submissions = [
        Submission([pending(each, b"%d" % next(number)) for each in request], Promise()) for request in partitions
    ]
    sealed = seal(submissions, now_ms=NOW_MS)
    body = memoryview(sealed.file.body)
    assert crc32c(body) == sealed.file.crc32c
    # rows: partitions ascending, touching, in order of arrival
    assert [row.partition_id for row in sealed.batches] == sorted(row.partition_id for row in sealed.batches)
    for row, (submission, place) in zip(sealed.batches, sealed.places, strict=True):
        original = submissions[submission].batches[place]
        assert body[row.position : row.position + row.length] == original.records
        assert row.partition_id == original.partition_id
    for one, other in zip(sealed.batches, sealed.batches[1:], strict=False):
        if one.partition_id == other.partition_id:
            assert one.position + one.length == other.position
    arrivals = [place for partition in range(1, 5) for place in _places(sealed, partition)]
    assert arrivals == [place for partition in range(1, 5) for place in sorted(_places(sealed, partition))]
    # results
    results = [
        BatchResult(error=0, duplicate=False, base_offset=index, log_append_time_ms=-1)
        for index in range(len(sealed.batches))
    ]
    back = sealed.results_by_submission(results)
    for index, (submission, place) in enumerate(sealed.places):
        assert back[submission][place].base_offset == index


def _places(sealed: object, partition_id: int) -> list[tuple[int, int]]:
    return [
        place
        for row, place in zip(sealed.batches, sealed.places, strict=True)  # type: ignore[attr-defined]
        if row.partition_id == partition_id
    ]


def test_log_append_time_is_stamped_into_the_bytes_and_the_row() -> None:
    plain, stamped = pending(1, b"a"), pending(2, b"b", log_append_time=True, count=3)
    sealed = seal([Submission([plain, stamped], Promise())], now_ms=NOW_MS)
    first, second = sealed.batches
    assert (first.log_append_time_ms, first.max_timestamp_ms) == (-1, NOW_MS - 5)
    assert (second.log_append_time_ms, second.min_timestamp_ms, second.max_timestamp_ms) == (NOW_MS, NOW_MS, NOW_MS)
    assert second.record_count == 3
    written = memoryview(sealed.file.body)[second.position : second.position + second.length]
    [(_, header)] = list(iter_headers(written))
    assert header.is_log_append_time
    assert header.max_timestamp_ms == NOW_MS
    assert crc_matches(written, 0, header)


def test_rows_and_extents_have_the_least_and_the_greatest_time_of_their_batches() -> None:
    def timed(*timestamps_ms: int) -> PendingBatch:
        records = memoryview(build_batch([NewRecord(each, None, b"v") for each in timestamps_ms]))
        return PendingBatch(1, UUID(int=9), 1, records, read_header(records), False)

    sealed = seal([Submission([timed(50, 70), timed(20, 40, 30), timed(60)], Promise())], now_ms=NOW_MS)

    rows = [(row.min_timestamp_ms, row.max_timestamp_ms) for row in sealed.batches]
    assert rows == [(50, 70), (20, 40), (60, 60)]
    [extent] = read_file(sealed.file.body).extents
    assert (extent.min_timestamp_ms, extent.max_timestamp_ms) == (20, 70)


@pytest.mark.parametrize("log_append_time", [False, True])
def test_the_sums_of_long_batches_are_those_of_the_bytes_written(log_append_time: bool) -> None:
    # given long and short batches of two partitions, some so long that their own sums are used
    sizes = [JOINED_BYTES_MIN + 1, 5, 3 * JOINED_BYTES_MIN, 5, JOINED_BYTES_MIN]
    batches = [
        pending(1 + number % 2, bytes(size), log_append_time=log_append_time) for number, size in enumerate(sizes)
    ]
    # when they are sealed between partitions with short ones
    sealed = seal([Submission([pending(0, b"a"), *batches, pending(9, b"b")], Promise())], now_ms=NOW_MS)
    # then every sum is that of the bytes
    body = memoryview(sealed.file.body)
    assert sealed.file.crc32c == crc32c(body)
    for extent in read_file(body).extents:
        assert extent.crc32c == crc32c(body[extent.position : extent.position + extent.length])


def test_long_batches_lie_in_the_file_where_the_request_left_them() -> None:
    long, short = pending(1, bytes(1 << 20)), pending(2, b"a")
    stamped = pending(3, bytes(1 << 20), log_append_time=True)
    sealed = seal([Submission([stamped, short, long], Promise())], now_ms=NOW_MS)
    first, _, third, _ = [view.obj for view in sealed.file.parts.views]
    assert first is long.records.obj
    assert third is stamped.records.obj
    # the short batch and the new header of the stamped one are a copy, and so is the footer
    slack = sealed.file.parts.held_bytes - len(sealed.file.parts)
    assert slack == 61, "the header that the stamp replaced"
