"""A right that was taken away: requests after a pause of the process, and fetches in the middle of their reading."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agents.read.reader import Reader, Reading
from agents.security.pauses import PAUSE_MS
from runtime.clock import SystemClock
from security.acls.values import AclFilter, Operation
from tests.fixtures.acls import allow
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent, records_of
from tests.fixtures.waiting import until
from wire.error_codes import ErrorCode
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.records import NewRecord, build_batch

RIGHTS = [allow(each, "t", to="User:ANONYMOUS") for each in (Operation.READ, Operation.WRITE)]
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class AheadClock(SystemClock):
    """Goes on by itself while the process does not run: a test says for how long."""

    ahead_ms = 0.0

    def monotonic_ms(self) -> float:
        return super().monotonic_ms() + self.ahead_ms


def produce() -> ProduceRequest:
    batch = build_batch([NewRecord(1, b"k", b"v")])
    data = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])]
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=data)


def code_of(answer: ProduceResponse) -> int:
    return answer.responses[0].partition_responses[0].error_code


async def started(start_agent: StartAgent, **options: Any) -> RunningAgent:
    running = await start_agent(acl_mode="on", **options)
    await running.metadata.agents.create_topic("t", partitions=1, configs={})
    await running.metadata.security.create_acls(RIGHTS)
    await running.agent._follower.catch_up()
    return running


class AwayStore:
    """The tail of an agent's store, which does not answer while it is `away`."""

    def __init__(self, running: RunningAgent, patch: pytest.MonkeyPatch) -> None:
        self.is_back = asyncio.Event()
        self.is_back.set()
        self.fails = False
        follower = running.agent._follower
        tail = follower._metadata.tail

        async def answered(cursor: Any) -> Any:
            found = await tail(cursor)
            await self.is_back.wait()
            if self.fails:
                raise OSError("the store is away")
            return found

        patch.setattr(follower._metadata, "tail", answered)


async def paused(
    start_agent: StartAgent, dial: Dial, patch: pytest.MonkeyPatch
) -> tuple[RunningAgent, RawConnection, AwayStore]:
    """An agent that slept for longer than its lease. Its client lost all rights, and has sent a request since."""
    clock = AheadClock()
    running = await started(start_agent, clock=clock)
    raw = await dial.raw(running.address)
    assert code_of(await raw.call(produce(), ProduceResponse, 9)) == 0
    store = AwayStore(running, patch)
    store.is_back.clear()
    # a poll from before the change is on its way
    await until(lambda: running.agent._follower._poll is not None and not running.agent._follower._poll.done())
    await running.metadata.security.delete_acls([AclFilter(principal="User:ANONYMOUS")])
    clock.ahead_ms += 2 * PAUSE_MS
    await raw.begin(produce(), 9)
    server = running.agent._server
    assert server is not None
    await until(lambda: any(each._frames for each in server.talking()))
    return running, raw, store


async def test_after_a_pause_nobody_is_judged_by_what_was_known_before(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, raw, store = await paused(start_agent, dial, monkeypatch)
    store.is_back.set()
    assert code_of(await raw.answer(ProduceResponse, 9)) == DENIED
    assert code_of(await raw.call(produce(), ProduceResponse, 9)) == DENIED


async def test_after_a_pause_requests_go_on_if_the_store_is_away(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, raw, store = await paused(start_agent, dial, monkeypatch)
    store.fails = True
    store.is_back.set()
    assert code_of(await raw.answer(ProduceResponse, 9)) == 0


async def test_a_fetch_that_loses_its_right_while_it_reads_tells_no_records(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await started(start_agent)
    raw = await dial.raw(running.address)
    assert code_of(await raw.call(produce(), ProduceResponse, 9)) == 0
    read = Reader.read
    loses = False

    async def read_then_lose(self: Reader, *args: Any, **options: Any) -> Reading:
        reading = await read(self, *args, **options)
        if loses:
            running.agent.authorizer.change(removed=RIGHTS)
        return reading

    monkeypatch.setattr(Reader, "read", read_then_lose)
    parts = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000_000)]
    fetch = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic="t", partitions=parts)])
    [topic] = (await raw.call(fetch, FetchResponse, 11)).responses
    assert len(records_of(memoryview(bytes(topic.partitions[0].records or b"")))) == 1
    loses = True
    [topic] = (await raw.call(fetch, FetchResponse, 11)).responses
    [part] = topic.partitions
    assert (part.error_code, bool(part.records), part.high_watermark) == (DENIED, False, -1)
