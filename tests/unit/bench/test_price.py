"""Requests at list prices, beside the least that a load can ask."""

from __future__ import annotations

import pytest

from bench.measures.price import (
    GIB,
    MIB,
    PRICE_COLUMNS,
    Asked,
    Floor,
    asked_of,
    floor_in,
    floor_merge,
    floor_out,
    month_usd,
    no_price,
    of_floor,
    price_cells,
    requests_usd,
)
from bench.servers.stack import parse_metrics
from runtime.metrics import Metrics


def test_the_counters_of_a_process_become_the_two_classes_of_a_bill() -> None:
    metrics = Metrics()
    requests = {"put": 3, "list": 1, "multipart_start": 1, "multipart_write": 4, "multipart_complete": 1}
    for op, count in {**requests, "get_range": 7, "get": 2, "head": 1, "delete": 9, "multipart_abort": 5}.items():
        metrics.object_requests_total.labels(op=op, outcome="ok").inc(count)
    for op, size in {"put": 100, "multipart_write": 200, "get_range": 70, "get": 5}.items():
        metrics.object_bytes_total.labels(op=op).inc(size)
    asked = asked_of(parse_metrics(metrics.render().decode()), 11)
    assert asked == Asked(puts=10, gets=10, written_bytes=300, read_bytes=75, wal_bytes=11)


def test_a_failed_request_is_billed_as_one_that_succeeded() -> None:
    metrics = Metrics()
    for outcome in ("ok", "unavailable", "exists"):
        metrics.object_requests_total.labels(op="put", outcome=outcome).inc()
    assert asked_of(parse_metrics(metrics.render().decode()), 0).puts == 3


def test_requests_cost_their_list_price() -> None:
    assert requests_usd(Asked(puts=1000, gets=1000)) == pytest.approx(0.0054)
    assert requests_usd(Floor(puts=2000), {"s3.put.1000": 0.01, "s3.get.1000": 1}) == pytest.approx(0.02)
    assert month_usd(2 * GIB) == pytest.approx(0.046)


def test_the_floor_is_a_put_for_each_seal_and_a_get_for_each_mib_and_zone() -> None:
    assert floor_in(12) == Floor(puts=12)
    assert floor_out(GIB, zones=2) == Floor(gets=2048)


def test_the_floor_of_a_merge_reads_each_input_once_and_writes_each_output_once() -> None:
    assert floor_merge([MIB], [8 * MIB]) == Floor(puts=1, gets=1)
    assert floor_merge([33 * MIB, 5], [8 * MIB + 1]) == Floor(puts=2 + 2, gets=3 + 1)


def test_a_row_says_what_a_gib_costs_and_how_far_that_is_from_the_floor() -> None:
    asked = Asked(puts=300, gets=0, written_bytes=GIB / 2, wal_bytes=MIB)
    cells = price_cells(asked, floor_in(250), GIB / 2)
    row = {column.title: cell for column, cell in zip(PRICE_COLUMNS, cells, strict=True)}
    assert row["WAL (MiB/GiB)"] == pytest.approx(2)
    assert row["store price ($/GiB)"] == pytest.approx(0.003)
    assert row["of floor (x)"] == pytest.approx(1.2)
    assert row["written (B/GiB)"] == pytest.approx(GIB)
    assert row["floor ($/GiB)"] == pytest.approx(0.0025)


def test_nothing_to_ask_has_no_ratio() -> None:
    assert of_floor(Asked(), Floor()) is None
    assert set(no_price()) == {None} == set(price_cells(Asked(puts=1), floor_in(1), 0))
    assert len(no_price()) == len(PRICE_COLUMNS)
