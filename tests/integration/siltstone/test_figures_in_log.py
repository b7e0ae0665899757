"""The lines with figures that agents and compactors write as processes, as a log service without Prometheus reads them:
flat JSON with numbers, from the first interval to the end of the process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from siltstone.kafka.client import connected
from tests.fixtures.compactors import CompactorProcesses
from tests.fixtures.faults import AgentProcess, Processes, create_topic, in_thread
from tests.fixtures.waiting import wait_until
from wire.records import NewRecord, build_batch

LOGGED = {"log_format": "json", "log_figures_interval_ms": 200}
ONE_LINE = {"event", "level", "module", "timestamp", "role"}


def lines(process: AgentProcess) -> list[dict[str, Any]]:
    logged = [json.loads(line) for line in process.log.splitlines() if line.startswith("{") and line.endswith("}")]
    return [line for line in logged if line["event"] == "figures"]


def has(process: AgentProcess, holds: Callable[[dict[str, Any]], bool]) -> bool:
    return any(holds(line) for line in lines(process))


async def produce(bootstrap: str, batches: int) -> None:
    async with connected(bootstrap) as client:
        for number in range(batches):
            await client.produce("t", 0, build_batch([NewRecord(int(time.time() * 1000), None, b"%d" % number)]))


def test_processes_log_their_figures_and_the_last_ones_at_their_end(
    processes: Processes, compactors: CompactorProcesses
) -> None:
    [agent] = processes.start(1, **LOGGED)
    create_topic(processes.bootstrap, "t", partitions=1)
    [compactor] = compactors.start(1, **LOGGED)
    in_thread(produce(processes.bootstrap, 20))
    wait_until(lambda: sum(line["produce_batches"] for line in lines(agent)) == 20)
    wait_until(lambda: has(compactor, lambda line: line["merges_done"] >= 1), 60)
    duties = {"l0_oldest_s", "janitor_halted", "group_lag_s_max", "erasures_overdue"}
    wait_until(lambda: has(compactor, lambda line: duties <= line.keys()))
    for process, role in ((agent, "agent"), (compactor, "compactor")):
        for line in lines(process):
            assert (line["role"], line["level"]) == (role, "info")
            facts = {name: value for name, value in line.items() if name not in ONE_LINE}
            assert all(isinstance(value, int | float) for value in facts.values()), line
    assert has(agent, lambda line: line["ready"] == 1 and line.get("produce_p99_ms", 0) > 0)
    # when they stop
    before = [len(lines(each)) for each in (agent, compactor)]
    assert (agent.stop(), compactor.stop()) == (0, 0)
    assert all(len(lines(each)) > count for each, count in zip((agent, compactor), before, strict=True))
    assert lines(agent)[-1]["ready"] == lines(compactor)[-1]["ready"] == 0
    assert sum(line["produce_batches"] for line in lines(agent)) == 20
