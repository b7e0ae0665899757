"""The report of `record diagnose` about a batch."""

from __future__ import annotations

from dataclasses import replace

from siltstone.ops.record_report import BatchFacts, batch_pairs

BATCH = BatchFacts(
    position=0,
    size_bytes=100,
    base_offset=3,
    last_offset=4,
    records_count=2,
    codec="none",
    base_timestamp_ms=1_000_000,
    max_timestamp_ms=2_000_000,
    producer_id=-1,
    producer_epoch=-1,
    base_sequence=-1,
    is_transactional=False,
    is_control=False,
    is_log_append_time=False,
    has_delete_horizon=False,
    crc_matches=True,
)


def test_the_times_of_a_batch_are_those_of_its_first_and_its_newest_record() -> None:
    pairs = batch_pairs(BATCH)
    assert "00:16:40" in pairs["times"]
    assert "00:33:20" in pairs["times"]
    assert "tombstones stay until" not in pairs


def test_a_delete_horizon_is_not_told_as_the_time_of_a_record() -> None:
    # given a batch whose first timestamp was overwritten by its horizon, which lies after all its records
    pairs = batch_pairs(replace(BATCH, has_delete_horizon=True, base_timestamp_ms=9_000_000))
    assert "02:30:00" not in pairs["times"]
    assert "02:30:00" in pairs["tombstones stay until"]
