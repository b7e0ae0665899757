"""The metrics that every process exports."""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import version

from prometheus_client.parser import text_string_to_metric_families

from runtime.metrics import Metrics
from runtime.runtime import Runtime
from siltstone.processes.monitoring.process_watch import LAG_INTERVAL_MS, process_watched
from tests.fixtures.log_lines import LogLines

DEADLINE_S = 20


def value(metrics: Metrics, name: str, **labels: str) -> float:
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    raise AssertionError(f"no {name} {labels}")


async def test_a_process_tells_its_release_whether_it_is_ready_and_what_it_takes() -> None:
    metrics, reasons = Metrics(), ["starting"]
    async with process_watched(Runtime(metrics=metrics), role="compactor", not_ready=lambda: reasons):
        assert value(metrics, "siltstone_build_info", role="compactor", version=version("siltstone")) == 1
        assert value(metrics, "siltstone_ready", role="compactor") == 0
        reasons.clear()
        assert value(metrics, "siltstone_ready", role="compactor") == 1
        assert value(metrics, "process_cpu_seconds_total") > 0
        assert value(metrics, "process_resident_memory_bytes") > 2**20
        assert 0 < value(metrics, "process_open_fds") < value(metrics, "process_max_fds")


async def test_work_that_holds_up_the_event_loop_is_seen() -> None:
    metrics = Metrics()
    async with process_watched(Runtime(metrics=metrics), role="agent", not_ready=list):
        await asyncio.sleep(LAG_INTERVAL_MS / 4000)  # the measuring task is asleep now
        time.sleep((LAG_INTERVAL_MS + 300) / 1000)  # work that blocks the event loop
        deadline = time.monotonic() + DEADLINE_S
        while not value(metrics, "siltstone_event_loop_lag_seconds_count"):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
    assert value(metrics, "siltstone_event_loop_lag_seconds_sum") >= 0.25


async def test_a_process_that_ends_measures_no_more() -> None:
    async with process_watched(Runtime(), role="agent", not_ready=list):
        tasks = {task.get_name() for task in asyncio.all_tasks()}
        assert "event-loop-lag" in tasks
    assert "event-loop-lag" not in {task.get_name() for task in asyncio.all_tasks()}


async def test_figures_are_logged_now_and_then_and_once_more_at_the_end(log_lines: LogLines) -> None:
    metrics = Metrics()
    async with process_watched(Runtime(metrics=metrics), role="agent", not_ready=list, figures_interval_ms=30):
        metrics.produce_batches_total.labels(outcome="stored").inc(3)
        await log_lines.until("figures")
        metrics.produce_batches_total.labels(outcome="failed").inc(2)
    lines = log_lines.named("figures")
    assert {(line["level"], line["role"], line["ready"]) for line in lines} == {("info", "agent", 1)}
    assert sum(line["produce_batches"] for line in lines) == 5
    assert sum(line["produce_failed"] for line in lines) == 2
    # and: a process of long intervals tells all at its end, one without an interval nothing
    metrics.lease_errors_total.inc()
    async with process_watched(Runtime(metrics=metrics), role="agent", not_ready=list, figures_interval_ms=3_600_000):
        pass
    async with process_watched(Runtime(metrics=metrics), role="agent", not_ready=list):
        pass
    assert [line["lease_errors"] for line in log_lines.named("figures")[len(lines) :]] == [1]
