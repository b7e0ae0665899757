"""The metrics that every process exports."""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import version

from prometheus_client.parser import text_string_to_metric_families

from runtime.metrics import Metrics
from runtime.runtime import Runtime
from siltstone.processes.process_watch import LAG_INTERVAL_MS, process_watched

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
