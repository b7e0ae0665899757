"""A right that was taken away while the agent was cut off from the store, and in the middle of a fetch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest

from agents.read.reader import Reader, Reading
from metadata.contract.leases import LEASE_MS
from metadata.memory.store import MemoryDatabase, MemoryMetadata
from runtime.runtime import Runtime
from security.acls.values import CLUSTER_NAME, AclFilter, Operation, ResourceType
from siltstone.kafka.access.acls import deletion_of
from storage.memory import MemoryStore
from tests.fixtures.acls import allow
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent, records_of
from tests.fixtures.ahead_clock import AheadClock
from tests.fixtures.waiting import until
from wire.error_codes import ErrorCode
from wire.messages.acls import DeleteAclsResponse
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.records import NewRecord, build_batch

RIGHTS = [allow(each, "t", to="User:ANONYMOUS") for each in (Operation.READ, Operation.WRITE)]
DELETE_READ = deletion_of([AclFilter(resource_type=ResourceType.TOPIC, resource_name="t", operation=Operation.READ)])
ALTER_CLUSTER = allow(Operation.ALTER, CLUSTER_NAME, to="User:ANONYMOUS", resource_type=ResourceType.CLUSTER)
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def produce() -> ProduceRequest:
    batch = build_batch([NewRecord(1, b"k", b"v")])
    data = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])]
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=data)


def fetch(*, min_bytes: int, max_wait_ms: int) -> FetchRequest:
    parts = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000_000)]
    topics = [FetchTopic(topic="t", partitions=parts)]
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=min_bytes, topics=topics)


def records_in(answer: FetchResponse) -> int:
    parts = [part for topic in answer.responses for part in topic.partitions]
    return sum(len(records_of(memoryview(bytes(part.records or b"")))) for part in parts)


def code_of(answer: ProduceResponse) -> int:
    return answer.responses[0].partition_responses[0].error_code


async def started(start_agent: StartAgent, **options: Any) -> RunningAgent:
    running = await start_agent(**{"acl_mode": "on", **options})
    await running.metadata.agents.create_topic("t", partitions=1, configs={})
    await running.metadata.security.create_acls(RIGHTS)
    await running.agent._follower.catch_up()
    return running


class AwayStore:
    """Calls of an agent to its store. They get no answer until `is_back` is set; errors if it `fails`."""

    def __init__(
        self, running: RunningAgent, patch: pytest.MonkeyPatch, calls: Sequence[str] = ("tail", "heartbeat")
    ) -> None:
        self.is_back = asyncio.Event()
        self.fails = False
        self.calls = 0
        agents = running.agent._follower._metadata
        for name in calls:
            patch.setattr(agents, name, partial(self._answered, getattr(agents, name)))

    async def _answered(self, call: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
        self.calls += 1
        found = await call(*args, **options)
        await self.is_back.wait()
        if self.fails:
            raise OSError("the store is away")
        return found


async def cut_off(
    start_agent: StartAgent, dial: Dial, patch: pytest.MonkeyPatch, **options: Any
) -> tuple[RunningAgent, RawConnection, AwayStore]:
    """An agent that did not hear the store for as long as its lease. Its client lost all rights and has sent a request
    since."""
    clock = AheadClock()
    running = await started(start_agent, clock=clock, **options)
    raw = await dial.raw(running.address)
    assert code_of(await raw.call(produce(), ProduceResponse, 9)) == 0
    store = AwayStore(running, patch)
    # a poll from before the change is on its way
    await until(lambda: running.agent._follower._poll is not None and not running.agent._follower._poll.done())
    await running.metadata.security.delete_acls([AclFilter(principal="User:ANONYMOUS")])
    clock.ahead_ms += LEASE_MS
    await raw.begin(produce(), 9)
    await until(lambda: is_waiting(running))
    return running, raw, store


def is_waiting(running: RunningAgent) -> bool:
    """Some request has not begun."""
    server = running.agent._server
    return server is not None and any(each._frames for each in server.talking())


async def test_nobody_is_judged_by_what_was_known_before_the_lease_ended(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, raw, store = await cut_off(start_agent, dial, monkeypatch)
    # while the store is away, requests wait, and versions are told
    store.fails = True
    store.is_back.set()
    freshness = running.agent._access.freshness
    assert freshness is not None
    await until(lambda: freshness._is_away)
    other = await dial.raw(running.address)
    assert (await other.call(ApiVersionsRequest(), ApiVersionsResponse, 0)).error_code == 0
    assert is_waiting(running) and freshness.is_behind
    # and when it is back, they are judged by what it says
    store.fails = False
    assert code_of(await raw.answer(ProduceResponse, 9)) == DENIED
    assert code_of(await raw.call(produce(), ProduceResponse, 9)) == DENIED


async def test_whoever_is_not_bound_by_acls_goes_on_if_the_store_is_away(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    for options in ({"acl_mode": "shadow"}, {"super_users": "User:robot", "allow_everyone_if_no_acl_found": True}):
        running, raw, store = await cut_off(start_agent, dial, monkeypatch, **options)
        if "super_users" in options:
            server = running.agent._server
            assert server is not None
            for each in server.talking():
                each.client.principal = "User:robot"  # as a certificate says
        store.fails = True
        store.is_back.set()
        assert await raw.read_frame()


async def test_a_fetch_that_waited_past_the_lease_tells_no_records(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a fetch that is parked while the lease ends
    clock = AheadClock()
    running = await started(start_agent, clock=clock)
    raw, other = await dial.raw(running.address), await dial.raw(running.address)
    await raw.begin(fetch(min_bytes=1, max_wait_ms=60_000), 11)
    await until(lambda: running.agent._parked_readers._waiting)
    commits = AwayStore(running, monkeypatch, ["commit_l0"])
    await other.begin(produce(), 9)
    await until(lambda: commits.calls > 0)
    store = AwayStore(running, monkeypatch)
    clock.ahead_ms += LEASE_MS
    # when a record comes that was sent before
    commits.is_back.set()
    assert code_of(await other.answer(ProduceResponse, 9)) == 0
    # then it wakes the fetch, which is answered without it
    assert records_in(await raw.answer(FetchResponse, 11)) == 0
    # and the next one waits
    await raw.begin(fetch(min_bytes=0, max_wait_ms=0), 11)
    await until(lambda: is_waiting(running))
    store.is_back.set()
    assert records_in(await raw.answer(FetchResponse, 11)) == 1


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
    assert records_in(await raw.call(fetch(min_bytes=0, max_wait_ms=0), FetchResponse, 11)) == 1
    loses = True
    [topic] = (await raw.call(fetch(min_bytes=0, max_wait_ms=0), FetchResponse, 11)).responses
    [part] = topic.partitions
    assert (part.error_code, bool(part.records), part.high_watermark) == (DENIED, False, -1)


async def test_a_deletion_is_answered_when_each_agent_knows_of_it_or_has_lost_its_lease(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given three agents, and a fetch that waits at each
    clock, database = AheadClock(), MemoryDatabase(cluster_id="c")
    stores = [MemoryMetadata(runtime=Runtime(clock=clock), database=database) for _ in range(3)]
    files = MemoryStore()
    one, two, cut = [await start_agent(acl_mode="on", clock=clock, store=files, metadata=each) for each in stores]
    await one.metadata.agents.create_topic("t", partitions=1, configs={})
    await one.metadata.security.create_acls([*RIGHTS, ALTER_CLUSTER])
    for each in (one, two, cut):
        await each.agent._follower.catch_up()
    fetches = [await dial.raw(each.address) for each in (one, two, cut)]
    for raw, running in zip(fetches, (one, two, cut), strict=True):
        await raw.begin(fetch(min_bytes=1, max_wait_ms=60_000), 11)
        await until(lambda running=running: running.agent._parked_readers._waiting)
    # when one is cut off, and the right to read goes
    store = AwayStore(cut, monkeypatch)
    admin = await dial.raw(one.address)
    await admin.begin(DELETE_READ, 3)
    await until(lambda: all(RIGHTS[0] not in each.agent._access.known.acls for each in (one, two)))
    [behind] = await one.metadata.security.agents_behind(one.agent._access.known.change_id)
    assert behind.address.port == int(cut.address.rpartition(":")[2])
    late = await dial.raw(cut.address)
    assert records_in(await late.call(fetch(min_bytes=0, max_wait_ms=0), FetchResponse, 11)) == 0, "its lease runs"
    clock.ahead_ms += 2 * LEASE_MS
    [deleted] = (await admin.answer(DeleteAclsResponse, 3)).filter_results
    assert (deleted.error_code, len(deleted.matching_acls)) == (0, 1)
    # then nobody is told of what comes now
    assert code_of(await admin.call(produce(), ProduceResponse, 9)) == 0
    await late.begin(fetch(min_bytes=0, max_wait_ms=0), 11)
    await until(lambda: is_waiting(cut))
    for raw in fetches[:2]:
        # Nothing at all, if the record was there before the agent knew that its lease runs again.
        assert records_in(await raw.answer(FetchResponse, 11)) == 0
    store.is_back.set()
    answers = [await raw.answer(FetchResponse, 11) for raw in (late, fetches[2])]
    answers += [await raw.call(fetch(min_bytes=0, max_wait_ms=0), FetchResponse, 11) for raw in fetches]
    assert [records_in(answer) for answer in answers] == [0] * 5
    for answer in (answers[0], *answers[2:]):
        assert answer.responses[0].partitions[0].error_code == DENIED
