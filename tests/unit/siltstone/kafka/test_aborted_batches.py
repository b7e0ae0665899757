"""The records that a reader of committed ones gets from a fetch, amid markers and aborted transactions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from siltstone.kafka.records import FetchedPartition, batches_of
from wire.batch import ProducerStamp, stamp_offset
from wire.markers import build_marker
from wire.records import NewRecord, build_batch


def at(offset: int, batch: bytes) -> bytes:
    return bytes(stamp_offset(memoryview(batch), offset)) + batch[16:]


def data(producer_id: int, value: bytes) -> bytes:
    records = [NewRecord(1, b"k", value + b"%d" % number) for number in range(2)]
    if producer_id < 0:
        return build_batch(records)
    return build_batch(records, producer=ProducerStamp(producer_id, 0, 0), transactional=True)


def marker(producer_id: int, *, commit: bool) -> bytes:
    return build_marker(producer_id, 0, commit=commit, coordinator_epoch=1, timestamp_ms=1)


LOG = [
    (0, data(7, b"aborted")),
    (2, data(-1, b"plain")),
    (4, data(8, b"committed")),
    (6, marker(8, commit=True)),
    (7, marker(7, commit=False)),
    (8, data(7, b"next")),
    (10, data(8, b"aborted")),
    (12, marker(8, commit=False)),
    (13, marker(7, commit=True)),
]
ABORTED = [(8, 10), (7, 0)]
"""In no order: brokers differ."""


def read(log: Iterable[tuple[int, bytes]], aborted: Sequence[tuple[int, int]], offset: int = 0) -> list[bytes]:
    body = b"".join(at(*each) for each in log)
    fetched = FetchedPartition(
        topic="t", partition=0, error_code=0, high_watermark=14, log_start_offset=0, records=memoryview(body),
        aborted=aborted,
    )  # fmt: skip
    found: list[bytes] = []
    ends = [offset]
    for records, following in batches_of(fetched, offset):
        found += [record.value or b"" for record in records]
        ends.append(following)
    assert ends[-1] == 14
    return found


def test_records_of_aborted_transactions_are_left_out_up_to_their_markers() -> None:
    assert read(LOG, ABORTED) == [b"plain0", b"plain1", b"committed0", b"committed1", b"next0", b"next1"]
    assert len(read(LOG, [])) == 10


def test_a_fetch_that_begins_amid_an_aborted_transaction_leaves_out_the_rest_of_it() -> None:
    assert read(LOG, ABORTED, offset=1)[0] == b"plain0"
    assert read(LOG[5:], [(8, 10)], offset=9) == [b"next1"]


def test_the_end_of_an_aborted_transaction_below_the_offset_counts() -> None:
    # the first batches lie below the offset, as an agent may answer: the marker among them ends the transaction
    assert read(LOG[3:], [(7, 0), (8, 10)], offset=8) == [b"next0", b"next1"]
