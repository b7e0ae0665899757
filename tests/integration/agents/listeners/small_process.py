"""An agent that may open few files: run as a program, with the number of files beyond those that it has open.

It prints its address. At the end of its input it prints what it counted, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time

from agents.agent import Agent
from metadata.memory.store import MemoryMetadata
from runtime.metrics import Metrics
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from storage.memory import MemoryStore
from tests.fixtures.metric_values import metric_value


async def run(files_more: int) -> None:
    metrics, metadata = Metrics(), MemoryMetadata()
    await metadata.open()
    agent = Agent(
        settings=Settings(listen="127.0.0.1:0", drain_notice_ms=0),
        store=MemoryStore(),
        metadata=metadata,
        runtime=Runtime(metrics=metrics),
    )
    await agent.start()
    limit = len(os.listdir("/proc/self/fd")) + files_more
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    began_s, cpu_s = time.monotonic(), time.process_time()
    print(agent.address, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    counted = {
        "pauses": metric_value(metrics, "accept_pauses_total", {"reason": "descriptors"}),
        "evicted": metric_value(metrics, "connections_evicted_total", {"reason": "descriptors"}),
        "seconds": time.monotonic() - began_s,
        "cpu_seconds": time.process_time() - cpu_s,
    }
    print(json.dumps(counted), flush=True)
    await agent.stop()
    await metadata.close()


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1])))
