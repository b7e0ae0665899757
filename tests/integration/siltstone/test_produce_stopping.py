"""`siltstone produce` while the store fails: the first signal ends it soon, and it reports what was not written."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence

import pytest

from runtime.clock import SystemClock
from runtime.ids import SystemIds
from storage.memory import MemoryStore
from storage.wrappers.faulty import Fault, FaultPlan, FaultRule, Faulty
from tests.fixtures.agents import Dial, StartAgent
from tests.fixtures.waiting import until

ENDS_WITHIN_S = 30
"""Far above the 4 s of the command, for a busy machine, and far below the 60 s of a client's patience."""


class WatchedPlan(FaultPlan):
    struck = 0
    """The faults so far."""

    def decide(self, op: str, keys: Sequence[str], draw: Callable[[], float]) -> FaultRule | None:
        found = super().decide(op, keys, draw)
        self.struck += found is not None
        return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_a_writer_whose_store_fails_and_it_says_what_was_not_written(
    start_agent: StartAgent, dial: Dial, number: signal.Signals
) -> None:
    plan = WatchedPlan()
    running = await start_agent(store=Faulty(MemoryStore(), plan, SystemIds(), SystemClock()))
    await (await dial.kafka(running.address)).create_topic("orders", partitions=1)
    words = ("-m", "siltstone", "produce", "orders", "--bootstrap", running.address, "-p", "0", "-v")
    pipe = asyncio.subprocess.PIPE
    async with asyncio.timeout(2 * ENDS_WITHIN_S):
        producer = await asyncio.create_subprocess_exec(sys.executable, *words, stdin=pipe, stdout=pipe, stderr=pipe)
        assert producer.stdin is not None and producer.stdout is not None
        producer.stdin.write(b"kept\n")
        assert (await producer.stdout.readline()).startswith(b"orders 0@0")
        plan.rules = (FaultRule(op="put", fault=Fault.SLOW_DOWN),)
        producer.stdin.write(b"lost 1\nlost 2\n")
        await until(lambda: plan.struck > 0)
        producer.send_signal(number)
        async with asyncio.timeout(ENDS_WITHIN_S):
            _, errors = await producer.communicate()
    told = errors.decode()
    assert producer.returncode == 1, told
    assert "stopping, 2 records in flight; again to quit" in told
    assert "error: records 2 to 3: stopped before an agent confirmed it" in told
    assert "wrote 1 record to orders" in told and "2 records failed" in told
    assert "stopped: the input after record 3 was not written" in told
