"""A merge that waits for memory reports so while it waits."""

from __future__ import annotations

import asyncio

from compactor.merging.execute import MergeEngine
from compactor.merging.memory_gate import WAITS_FOR_MEMORY, MemoryGate
from compactor.worker import Worker, WorkerMemory
from metadata.contract.jobs import JobState, NewJob
from runtime.clock import SystemClock
from runtime.ids import SystemIds
from runtime.runtime import Runtime
from tests.fixtures.compacted_systems import System
from tests.fixtures.waiting import until


async def test_a_merge_that_waits_for_memory_says_so_until_its_turn_comes(system: System) -> None:
    # given a job, and a compactor whose memory is held by another merge
    clock, ids = SystemClock(), SystemIds()
    await system.client.create_topic("t", partitions=1)
    await system.write("t", 1)
    [file] = await system.metadata.operators.files()
    lease = await system.metadata.compactors.register_compactor("host")
    job_id = await system.metadata.compactors.create_job(
        NewJob(kind="level", spec={}, l0_file_ids=[file.file_id], limit_ms=60_000)
    )
    gate = MemoryGate(1)
    worker = Worker(
        metadata=system.metadata,
        engine=MergeEngine(store=system.store, runtime=Runtime(clock=clock, ids=ids), lease=lease),
        lease=lease,
        memory=WorkerMemory(gate=gate),
        runtime=Runtime(clock=clock, ids=ids),
    )

    async def says(what: str) -> bool:
        job = await system.metadata.compactors.job(job_id)
        return job is not None and job.progress.get("step") == what

    async with gate.held(1):
        working = asyncio.create_task(worker.work(["level"]))
        # then its next heartbeat reports that
        await until(lambda: says(WAITS_FOR_MEMORY))
    # and when its turn comes, it goes on (here it fails at once, because its spec is empty)
    await working
    job = await system.metadata.compactors.job(job_id)
    assert job is not None and job.state is JobState.FAILED
