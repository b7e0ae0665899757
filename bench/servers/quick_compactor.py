"""A compactor that merges small amounts soon: `python -m bench.servers.quick_compactor METADATA_URL STORE_URL RUN_MIB`.

It is the compactor of production with other numbers of its planner, because a benchmark cannot wait for 16 GiB: L0
files are merged at RUN_MIB, and L1_RUNS runs of L1 make one of L2. Prints `ready` when it is started. Ends with its
standard input.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack

from compactor.compactor import Compactor
from compactor.intervals import Intervals, Tuning
from compactor.planning.spec import MIB, PlanOptions
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from siltstone.processes.opening import opened_stores

L1_RUNS = 4
L0_WAIT_MS = 4_000
PLAN_INTERVAL_MS = 500


def tuning(run_mib: int) -> Tuning:
    plan = PlanOptions(
        l0_files_min=4,
        l0_bytes_min=run_mib * MIB,
        l0_job_bytes_max=run_mib * MIB,
        l0_wait_ms=L0_WAIT_MS,
        l1_runs_min=L1_RUNS,
        # Production rewrites no run of L2 that has its full size.
        l2_runs_min=1_000,
    )
    return Tuning(plan=plan, intervals=Intervals(plan_interval_ms=PLAN_INTERVAL_MS))


async def run(metadata_url: str, store_url: str, run_mib: int) -> None:
    settings = Settings(metadata_url=metadata_url, object_store_url=store_url, compaction_l0_wait_max_ms=L0_WAIT_MS)
    runtime = Runtime()
    async with AsyncExitStack() as stack:
        store, metadata = await stack.enter_async_context(opened_stores(settings, runtime))
        compactor = Compactor(
            settings=settings, store=store, metadata=metadata, runtime=runtime, host="bench", tuning=tuning(run_mib)
        )
        stack.push_async_callback(compactor.stop)
        await compactor.start()
        print("ready", flush=True)
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        await asyncio.wait({ended, compactor.failed}, return_when=asyncio.FIRST_COMPLETED)
        if compactor.failed.done():
            compactor.failed.result()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3])))
