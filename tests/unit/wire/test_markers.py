"""Markers of transactions, compared with bytes written by hand and with another implementation, and read again."""

from __future__ import annotations

import importlib
import struct
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.transactions.contract import MARKER_BYTES
from runtime.errors import BadInputError
from tests.fixtures.record_batches import NOW_MS, as_sent, one_batch, with_header, with_payload
from wire.batch import BATCH_HEADER_BYTES, CorruptBatchError, ProducerStamp, crc_matches, read_header, stamp_offset
from wire.codecs import Codec
from wire.markers import Marker, build_marker, read_marker
from wire.records import NewRecord, build_batch

with warnings.catch_warnings():  # kafka-python reads its schemas with a function that Python 3.11 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    kafka_records = importlib.import_module("kafka.record.default_records")

GOLDEN = bytes.fromhex(
    "0000000000000000"  # base offset 0
    "00000042"  # batch length 66 = 78 - 12
    "00000000"  # leader epoch 0
    "02"  # magic
    "40d514e9"  # CRC-32C of the bytes that follow
    "0030"  # attributes: transactional, control, no codec, CreateTime
    "00000000"  # last offset delta 0
    "0000018bcfe56800"  # base timestamp 1700000000000
    "0000018bcfe56800"  # max timestamp
    "00000000000003e8"  # producer id 1000
    "0005"  # producer epoch 5
    "ffffffff"  # no sequence
    "00000001"  # one record
    "20"  # 16 bytes
    "00" "00" "00"  # attributes, timestamp delta 0, offset delta 0
    "08" "0000" "0001"  # key, 4 bytes: version 0, type COMMIT
    "0c" "0000" "00000007"  # value, 6 bytes: version 0, coordinator epoch 7
    "00"  # no headers
)  # fmt: skip

MARKERS = st.builds(
    Marker,
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(0, 2**15 - 1),
    commit=st.booleans(),
    coordinator_epoch=st.integers(-(2**31), 2**31 - 1),
    timestamp_ms=st.integers(0, 2**62),
)


def built(marker: Marker) -> bytes:
    return build_marker(
        marker.producer_id,
        marker.producer_epoch,
        commit=marker.commit,
        coordinator_epoch=marker.coordinator_epoch,
        timestamp_ms=marker.timestamp_ms,
    )


def control_batch(key: bytes | None, value: bytes | None) -> memoryview:
    record = NewRecord(NOW_MS, key, value)
    return memoryview(build_batch([record], producer=ProducerStamp(1, 0), transactional=True, control=True))


class KafkaPythonControlBatch(kafka_records.DefaultRecordBatchBuilder):
    """kafka-python builds what producers write, so not the bit of a control batch."""

    def _get_attributes(self, *args: Any) -> int:
        return super()._get_attributes(*args) | self.CONTROL_MASK


def test_a_marker_has_the_bytes_that_the_format_asks_for() -> None:
    commit = build_marker(1000, 5, commit=True, coordinator_epoch=7, timestamp_ms=NOW_MS)
    abort = build_marker(1000, 5, commit=False, coordinator_epoch=7, timestamp_ms=NOW_MS)

    assert commit == GOLDEN
    differing = [at for at in range(len(commit)) if commit[at] != abort[at]]
    assert [at for at in differing if not 17 <= at < 21] == [BATCH_HEADER_BYTES + 8]  # the type; and the CRC
    assert abort[BATCH_HEADER_BYTES + 8] == 0


@given(marker=MARKERS)
def test_another_implementation_writes_the_same_bytes_and_reads_them(marker: Marker) -> None:
    batch = built(marker)

    builder: Any = KafkaPythonControlBatch(2, 0, True, marker.producer_id, marker.producer_epoch, -1, 1 << 20)
    key, value = struct.pack(">hh", 0, marker.commit), struct.pack(">hi", 0, marker.coordinator_epoch)
    builder.append(0, marker.timestamp_ms, key, value, [])
    theirs: Any = kafka_records.DefaultRecordBatch(bytearray(batch))

    assert bytes(builder.build()) == batch
    assert theirs.validate_crc() and theirs.is_control_batch and theirs.is_transactional
    (record,) = theirs
    assert (record.version, record.abort, record.commit) == (0, not marker.commit, marker.commit)


@given(marker=MARKERS, base_offset=st.integers(0, 2**62))
def test_a_marker_reads_as_it_was_built_wherever_it_is_stamped(marker: Marker, base_offset: int) -> None:
    batch = built(marker)
    stored = stamp_offset(memoryview(batch), base_offset) + batch[16:]

    assert len(batch) == MARKER_BYTES
    assert crc_matches(stored, 0, read_header(stored))
    assert read_header(stored).last_offset == base_offset
    assert read_marker(memoryview(stored)) == marker
    assert read_marker(as_sent([stored, one_batch()])) == marker


def test_a_marker_that_is_cut_short_is_refused() -> None:
    for size in range(MARKER_BYTES):
        with pytest.raises(CorruptBatchError):
            read_marker(memoryview(GOLDEN)[:size])
    keys_and_values = [(None, bytes(6)), (b"", bytes(6)), (bytes(3), bytes(6)), (bytes(4), None), (bytes(4), bytes(5))]
    for key, value in keys_and_values:
        with pytest.raises(CorruptBatchError, match="no whole"):
            read_marker(control_batch(key, value))


def test_a_newer_marker_may_be_longer() -> None:
    batch = control_batch(struct.pack(">hhh", 1, 1, 5), struct.pack(">hih", 1, 7, 5))

    assert read_marker(batch) == Marker(1, 0, True, 7, NOW_MS)


def test_data_other_control_records_and_emptied_markers_are_no_markers() -> None:
    leader_change = control_batch(struct.pack(">hh", 0, 2), b"any")
    emptied = with_payload(GOLDEN, b"", records_count=0)
    for batch in (leader_change, emptied, one_batch(transactional=True), one_batch(codec=Codec.ZSTD)):
        assert read_marker(memoryview(batch)) is None
    # A control batch without its bit is data, whatever it looks like.
    assert read_marker(memoryview(with_header(GOLDEN, attributes=0x10))) is None


def test_no_marker_is_built_for_numbers_that_cannot_be() -> None:
    good = Marker(1, 2**15 - 1, commit=False, coordinator_epoch=0, timestamp_ms=NOW_MS)
    assert read_marker(memoryview(built(good))) == good
    changes = [("producer_id", -1), ("producer_id", 2**63), ("producer_epoch", -1), ("producer_epoch", 2**15)]
    for name, value in [*changes, ("coordinator_epoch", 2**31), ("timestamp_ms", 2**63)]:
        with pytest.raises(BadInputError):
            built(good._replace(**{name: value}))
