"""A merge that waits for memory ends its wait when it is lost or its compactor stops."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

import compactor.worker
from compactor.merging.execute import MergeEngine
from compactor.merging.memory_gate import MemoryGate
from compactor.worker import Worker, WorkerMemory
from metadata.contract.jobs import JobState, MergeJob, NewJob
from runtime.clock import SystemClock
from runtime.ids import SystemIds
from runtime.metrics import Metrics
from runtime.runtime import Runtime
from tests.fixtures.compacted_systems import System


@dataclass
class Waiting:
    """A job whose merge waits, because another merge has all the memory."""

    system: System
    gate: MemoryGate
    worker: Worker
    job_id: int
    task: asyncio.Task[bool]
    metrics: Metrics

    async def job(self) -> MergeJob:
        job = await self.system.metadata.compactors.job(self.job_id)
        assert job is not None
        return job

    def merges(self, outcome: str) -> float:
        labels = {"kind": "level", "outcome": outcome}
        return self.metrics.registry.get_sample_value("siltstone_merges_total", labels) or 0.0


async def wait_for_memory(system: System, *, limit_ms: int) -> Waiting:
    """The gate is full when this returns; the test frees it."""
    clock, ids, metrics = SystemClock(), SystemIds(), Metrics()
    await system.client.create_topic("t", partitions=1)
    await system.write("t", 1)
    [file] = await system.metadata.operators.files()
    lease = await system.metadata.compactors.register_compactor("host")
    job_id = await system.metadata.compactors.create_job(
        NewJob(kind="level", spec={}, l0_file_ids=[file.file_id], limit_ms=limit_ms)
    )
    gate = MemoryGate(1)
    worker = Worker(
        metadata=system.metadata,
        engine=MergeEngine(store=system.store, runtime=Runtime(clock=clock, ids=ids), lease=lease),
        lease=lease,
        memory=WorkerMemory(gate=gate),
        runtime=Runtime(clock=clock, ids=ids, metrics=metrics),
    )
    return Waiting(system, gate, worker, job_id, asyncio.create_task(worker.work(["level"])), metrics)


async def claimed(waiting: Waiting) -> None:
    async with asyncio.timeout(10):
        while (await waiting.job()).state is not JobState.RUNNING:
            await asyncio.sleep(0.01)


async def test_a_merge_that_is_lost_while_it_waits_leaves_the_line(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a merge whose time runs out while another merge has the memory
    monkeypatch.setattr(compactor.worker, "JOB_BEAT_MS", 50)
    waiting = await wait_for_memory(system, limit_ms=200)
    async with waiting.gate.held(1):
        # when its next heartbeat reports that, then it ends, though there is no memory yet
        async with asyncio.timeout(10):
            assert await waiting.task
    assert (await waiting.job()).state is JobState.FAILED and waiting.merges("lost") == 1
    assert waiting.gate.held_bytes == 0


async def test_a_compactor_that_stops_gives_a_merge_back_that_waits_for_memory(system: System) -> None:
    waiting = await wait_for_memory(system, limit_ms=600_000)
    async with waiting.gate.held(1):
        await claimed(waiting)
        # when the compactor is told to stop, then another compactor can claim the job at once
        waiting.worker.stop()
        async with asyncio.timeout(10):
            assert await waiting.task
    job = await waiting.job()
    assert (job.state, job.attempts, waiting.merges("given_back")) == (JobState.READY, 0, 1)
    assert waiting.gate.held_bytes == 0


async def test_a_compactor_that_stops_while_it_claims_does_not_let_the_merge_wait(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = await wait_for_memory(system, limit_ms=600_000)
    claim = system.metadata.compactors.claim_job

    async def stopped_meanwhile(*args: Any, **kwargs: Any) -> Any:
        job = await claim(*args, **kwargs)
        waiting.worker.stop()
        return job

    monkeypatch.setattr(system.metadata.compactors, "claim_job", stopped_meanwhile)
    async with waiting.gate.held(1), asyncio.timeout(10):
        assert await waiting.task
    assert (await waiting.job()).state is JobState.READY and waiting.merges("given_back") == 1
