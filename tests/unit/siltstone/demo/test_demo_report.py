"""The charts and numbers at the end of the demo."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from siltstone.demo.flights import FLIGHTS_TOTAL, flights, partition_of
from siltstone.demo.report import (
    Bar,
    bar_picture,
    counter_sum,
    latency_text,
    object_sizes,
    percentile,
    rise,
    size_bars,
)


def test_percentiles_are_values_that_were_measured() -> None:
    values = array("f", range(1, 101))
    assert [percentile(values, fraction) for fraction in (0.0, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]
    assert percentile(array("f"), 0.5) == 0
    assert latency_text(array("f", [10, 20, 1500])) == "p50 20 ms, p90 1,500 ms, p99 1,500 ms, max 1,500 ms"


def test_sizes_fall_into_classes_that_double_with_none_left_out_between() -> None:
    bars = size_bars([1024, 1025, 2048, 9000])
    assert bars == [
        Bar("512 B to 1.0 KiB", 1),
        Bar("1.0 KiB to 2.0 KiB", 2),
        Bar("2.0 KiB to 4.0 KiB", 0),
        Bar("4.0 KiB to 8.0 KiB", 0),
        Bar("8.0 KiB to 16.0 KiB", 1),
    ]
    assert size_bars([]) == []


def test_bars_are_as_long_as_their_counts() -> None:
    picture = bar_picture([Bar("a", 16), Bar("bb", 0), Bar("c", 5), Bar("d", 1)], cells=4)
    assert picture.splitlines() == ["   a  ████ 16", "  bb   0", "   c  █▎ 5", "   d  ▎ 1"]
    assert bar_picture([]) == ""


def test_the_smallest_count_still_shows() -> None:
    assert "▏" in bar_picture([Bar("many", 10_000), Bar("one", 1)])


def test_counters_are_summed_over_labels_and_missing_ones_are_told() -> None:
    samples = {
        'puts_total{outcome="ok",store="a"}': 2.0,
        'puts_total{outcome="error",store="a"}': 1.0,
        "commits_total": 7.0,
    }
    assert counter_sum(samples, "puts_total") == 3
    assert counter_sum(samples, "puts_total", outcome="ok") == 2
    assert counter_sum(samples, "commits_total") == 7
    assert counter_sum(samples, "puts_total", outcome="in_doubt") == 0
    with pytest.raises(KeyError, match="no counter gets_total"):
        counter_sum(samples, "gets_total")


def test_only_what_rose_since_counts() -> None:
    assert rise({"a": 2.0, "gone": 1.0}, {"a": 5.0, "new": 1.0}) == {"a": 3.0, "new": 1.0}


def test_only_files_of_records_are_measured(tmp_path: Path) -> None:
    (tmp_path / "l0" / "7f").mkdir(parents=True)
    (tmp_path / "l0" / "7f" / "a.silt").write_bytes(b"12345")
    (tmp_path / "l0" / "b.silt").write_bytes(b"1")
    (tmp_path / "cluster.json").write_text("{}")
    assert object_sizes(tmp_path) == [1, 5]


def test_flights_of_one_aircraft_share_a_partition_and_those_without_a_tail_number_have_no_key() -> None:
    by_key: dict[bytes | None, set[int]] = {}
    records = list(flights(6, limit=5000))
    for flight in records:
        by_key.setdefault(flight.key, set()).add(flight.partition)
    assert len(records) == 5000 < FLIGHTS_TOTAL
    assert all(len(partitions) == 1 for key, partitions in by_key.items() if key is not None)
    assert len(by_key[None]) > 1
    assert records[0].key == b"N14228"
    assert records[0].value.startswith(b'{"year":2013,"month":1,"day":1,"dep_time":517,')


def test_the_same_key_goes_to_the_same_partition_whatever_the_row() -> None:
    assert len({partition_of(b"N14228", row, 6) for row in range(10)}) == 1
    assert [partition_of(None, row, 3) for row in range(4)] == [0, 1, 2, 0]
