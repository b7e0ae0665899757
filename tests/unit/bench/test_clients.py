"""The client benchmarks' readers of other programs' output, and their sums."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bench.loads.clients import percentile
from bench.loads.load import Load
from bench.servers.kafka import find_jars, parse_consumer_perf, parse_producer_perf
from bench.servers.latency_proxy import body_bytes, has_body
from bench.servers.stack import parse_metrics, per_gib

PRODUCED = """\
SLF4J: Class path contains multiple SLF4J bindings.
66013 records sent, 13202.6 records/sec (12.89 MB/sec), 1710.3 ms avg latency, 2312.0 ms max latency.
200000 records sent, 22476.960000 records/sec (21.95 MB/sec), 1131.62 ms avg latency, 2041.00 ms max latency, \
998 ms 50th, 1930 ms 95th, 2001 ms 99th, 2040 ms 99.9th.
"""
CONSUMED = """\
start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, \
fetch.MB.sec, fetch.nMsg.sec
2026-01-05 10:00:00:100, 2026-01-05 10:00:08:600, 976.5625, 114.8897, 1000000, 117647.0588, 3520, 4980, 196.0969, \
200803.2129
"""
METRICS = """\
# HELP siltstone_requests_total Kafka requests answered.
# TYPE siltstone_requests_total counter
siltstone_requests_total{api="Produce"} 7.0
siltstone_requests_total{api="Fetch"} 2.0
# HELP siltstone_object_requests_total Requests to the object store.
# TYPE siltstone_object_requests_total counter
siltstone_object_requests_total{op="put",outcome="ok"} 5.0
siltstone_object_requests_total{op="put",outcome="exists"} 1.0
siltstone_object_requests_total{op="list",outcome="ok"} 3.0
"""


def test_the_producer_tools_summary_is_read_not_its_progress_and_its_mb_is_a_mebibyte() -> None:
    found = parse_producer_perf(PRODUCED)
    assert (found.records, found.avg_ms, found.p50_ms, found.p99_ms) == (200_000, 1131.62, 998, 2001)
    assert found.mb_per_s == pytest.approx(21.95 * 1.048576)


def test_a_producer_tool_that_did_not_come_to_its_end_is_an_error() -> None:
    with pytest.raises(ValueError, match="no summary"):
        parse_producer_perf("66013 records sent, 13202.6 records/sec (12.89 MB/sec), 1710.3 ms avg latency.\n")


def test_the_consumer_tools_rate_is_the_one_without_the_wait_for_the_group() -> None:
    found = parse_consumer_perf("WARN something, with a comma\n" + CONSUMED)
    assert found.records == 1_000_000
    assert found.mb_per_s == pytest.approx(196.0969 * 1.048576)


@pytest.mark.parametrize("output", ["", CONSUMED.splitlines()[0]])
def test_a_consumer_tool_that_printed_no_row_is_an_error(output: str) -> None:
    with pytest.raises(ValueError, match="no row"):
        parse_consumer_perf(output)


def test_a_percentile_is_the_nearest_rank_and_none_of_nothing() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert [percentile(values, share) for share in (0.25, 0.5, 0.51, 0.99, 1.0)] == [1.0, 2.0, 3.0, 4.0, 4.0]
    assert percentile([5.0], 0.01) == 5.0
    assert percentile([], 0.5) is None


def test_counters_are_summed_over_the_labels_that_are_not_named_and_over_agents() -> None:
    once = parse_metrics(METRICS)
    assert once.sum("object_requests_total", op="put") == 6
    assert once.sum("object_requests_total") == 9
    assert once.sum("requests_total", api="JoinGroup") == 0
    assert (once + once).sum("requests_total", api="Produce") == 14


def test_the_difference_of_two_readings_takes_a_counter_that_was_not_there_as_0() -> None:
    earlier = parse_metrics(METRICS.replace('siltstone_requests_total{api="Fetch"} 2.0\n', "").replace("7.0", "4.0"))
    used = parse_metrics(METRICS) - earlier
    assert (used.sum("requests_total", api="Produce"), used.sum("requests_total", api="Fetch")) == (3, 2)


def test_nothing_stored_has_no_requests_per_gib() -> None:
    assert per_gib(3, 1 << 29) == 6
    assert per_gib(3, 0) is None


def test_rows_are_compared_between_brokers_only_when_all_of_the_load_is_the_same() -> None:
    load = Load(partitions=10, idempotent=True)
    assert load.key == Load(partitions=10, idempotent=True, topic_configs={"max.message.bytes": "1"}).key
    for change in ({"record_bytes": 100}, {"partitions": 1}, {"idempotent": False}, {"linger_ms": 5}, {"in_flight": 1}):
        assert load.key != dataclasses.replace(load, **change).key


def test_kafka_is_found_by_its_jars_and_its_absence_is_no_error(tmp_path: Path) -> None:
    jars = tmp_path / "libs"
    jars.mkdir()
    (jars / "kafka-clients-3.9.1.jar").touch()
    java = {"JAVA_HOME": "/java"}
    for environ in ({"KAFKA_HOME": str(tmp_path)}, {"KAFKA_JARS": str(jars)}):
        found = find_jars({**java, **environ})
        assert found is not None
        assert (found.java, found.folder, found.version) == ("/java/bin/java", jars, "3.9.1")
    assert find_jars({**java}) is None
    assert find_jars({"KAFKA_JARS": str(jars), "PATH": ""}) is None
    with pytest.raises(RuntimeError, match="no kafka-clients jar"):
        find_jars({**java, "KAFKA_JARS": str(tmp_path)})


def test_the_latency_proxy_knows_how_long_a_body_is() -> None:
    assert body_bytes(b"PUT /b/k HTTP/1.1\r\nHost: h\r\ncontent-LENGTH: 12\r\n\r\n") == 12
    assert body_bytes(b"GET /b/k HTTP/1.1\r\nHost: h\r\n\r\n") == 0
    with pytest.raises(ValueError, match="cannot pass on"):
        body_bytes(b"PUT /b/k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")


@pytest.mark.parametrize(
    ("method", "status", "expected"),
    [(b"GET", b"200 OK", True), (b"HEAD", b"200 OK", False), (b"DELETE", b"204 No Content", False)],
)
def test_the_latency_proxy_knows_which_answers_have_a_body(method: bytes, status: bytes, expected: bool) -> None:
    assert has_body(method, b"HTTP/1.1 " + status + b"\r\n\r\n") is expected
