"""Requests and answers of very many elements: decoded and encoded in steps, in order, within the same bounds."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from agents.connections import connection
from agents.connections.long_messages import LongMessages
from agents.dispatch import HANDLERS, Handler
from agents.request_context import ClientConnection
from security.quotas.values import DEFAULT, QuotaEntity, QuotaKey
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent
from wire.api import encode_request
from wire.compiler.compile import Steps
from wire.compiler.source_text import STEP_ELEMENTS
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from wire.messages.fetch import FetchRequest, FetchResponse, ForgottenTopic
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

MANY = 5 * STEP_ELEMENTS


def metadata_of(count: int) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=f"absent-{n}") for n in range(count)])


def keys_of(count: int) -> FindCoordinatorRequest:
    return FindCoordinatorRequest(coordinator_keys=[f"g{n}" for n in range(count)])


HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="stranger")


async def test_the_requests_of_a_connection_keep_their_order(start_agent: StartAgent, dial: Dial) -> None:
    raw = await dial.raw((await start_agent()).address)
    for _ in range(2):
        await raw.begin(HEARTBEAT, 4)
        await raw.begin(metadata_of(MANY), 12)
        await raw.begin(keys_of(MANY), 4)
    for _ in range(2):
        await raw.answer(HeartbeatResponse, 4)
        assert len((await raw.answer(MetadataResponse, 12)).topics) == MANY
        found = await raw.answer(FindCoordinatorResponse, 4)
        assert [each.key for each in found.coordinators] == [f"g{n}" for n in range(MANY)]


async def test_another_client_is_served_between_two_steps(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start_agent()
    long, other = await dial.raw(running.address), await dial.raw(running.address)
    finish, goes_on = LongMessages.finish, asyncio.Event()

    async def held(self: LongMessages, steps: Steps[object], client: ClientConnection) -> object:
        await goes_on.wait()
        return await finish(self, steps, client)

    monkeypatch.setattr(LongMessages, "finish", held)
    await long.begin(metadata_of(MANY), 12)
    await long.begin(HEARTBEAT, 4)
    await other.call(HEARTBEAT, HeartbeatResponse, 4)
    assert held_bytes(running) > MANY, "a frame counts until it is decoded"
    goes_on.set()
    await long.answer(MetadataResponse, 12)
    await long.answer(HeartbeatResponse, 4)
    assert held_bytes(running) == 0


def held_bytes(running: RunningAgent) -> int:
    return sum(each.held_bytes for each in running.agent._server.talking())


async def test_a_client_that_leaves_meanwhile_leaves_nothing(start_agent: StartAgent, dial: Dial) -> None:
    running = await start_agent()
    other = await dial.raw(running.address)
    for request, version in ((metadata_of(MANY), 12), (keys_of(MANY), 4)):
        leaving = [await RawConnection.connect(running.address) for _ in range(3)]
        for each in leaving:
            await each.begin(request, version)
        for each in leaving:
            await each.close()
        await other.call(request, MetadataResponse if version == 12 else FindCoordinatorResponse, version)
    async with asyncio.timeout(20):
        while len(running.agent._server.talking()) > 1:
            await asyncio.sleep(0.01)
    assert running.agent._server._held_bytes == 0


async def test_a_long_request_that_is_malformed_ends_its_connection(start_agent: StartAgent, dial: Dial) -> None:
    running = await start_agent()
    raw, other = await dial.raw(running.address), await dial.raw(running.address)
    frame = bytearray(b"".join(encode_request(20, 3, 1, "c", DeleteTopicsRequest(topic_names=["tt"] * MANY))))
    frame[-6] = 0xFF  # the last name is not UTF-8
    await raw.send(bytes(frame))
    assert await raw.is_closed_by_peer()
    assert running.metric("protocol_errors_total", reason="malformed_message") == 1
    answer = await other.call(DeleteTopicsRequest(topic_names=["tt"] * MANY), DeleteTopicsResponse, 3)
    assert len(answer.responses) == MANY


async def test_a_long_answer_tells_a_client_over_its_quota_to_wait(start_agent: StartAgent, dial: Dial) -> None:
    running = await start_agent()
    everybody = QuotaEntity(user=DEFAULT)
    await running.metadata.security.alter_quotas({everybody: {QuotaKey.REQUEST_PERCENTAGE.value: 0.01}})
    raw = await dial.raw(running.address)
    answer = await raw.call(keys_of(MANY), FindCoordinatorResponse, 4)
    assert len(answer.coordinators) == MANY
    assert answer.throttle_time_ms > 0


async def test_a_long_request_begins_only_while_its_rights_are_known(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may become unknown while it is decoded."""
    running = await start_agent()
    raw, other = await dial.raw(running.address), await dial.raw(running.address)
    rights_are_known, finish = True, LongMessages.finish

    async def lost_meanwhile(self: LongMessages, steps: Steps[object], client: ClientConnection) -> object:
        nonlocal rights_are_known
        rights_are_known = False
        return await finish(self, steps, client)

    monkeypatch.setattr(LongMessages, "finish", lost_meanwhile)
    monkeypatch.setattr(connection, "is_held", lambda *_: not rights_are_known)
    # Nothing in the answer is long: only the request has steps.
    await raw.begin(FetchRequest(forgotten_topics_data=[ForgottenTopic(topic=f"t{n}") for n in range(MANY)]), 12)
    server = running.agent._server
    async with asyncio.timeout(20):
        while not any(each._decoded for each in server.talking()):
            await asyncio.sleep(0.01)
    server._pump_all()
    assert any(each._decoded for each in server.talking()), "it waits"
    assert held_bytes(running) > MANY, "and counts"
    rights_are_known = True
    server._pump_all()
    await raw.answer(FetchResponse, 12)
    await other.call(HEARTBEAT, HeartbeatResponse, 4)
    assert held_bytes(running) == 0


async def test_a_long_answer_lets_no_two_requests_begin_at_once(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Produce goes on beside the requests behind it; these wait for each other, also when its answer is long."""
    raw = await dial.raw((await start_agent()).address)
    stored, goes_on, begun = asyncio.Event(), asyncio.Event(), 0

    async def produced(*_: object) -> ProduceResponse:
        await stored.wait()
        partitions = [PartitionProduceResponse(index=n) for n in range(MANY)]
        return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=partitions)])

    async def beaten(*_: object) -> HeartbeatResponse:
        nonlocal begun
        begun += 1
        await goes_on.wait()
        return HeartbeatResponse()

    for key, handle in ((0, produced), (12, beaten)):
        monkeypatch.setitem(cast(dict[int, Handler], HANDLERS), key, replace(HANDLERS[key], handle=handle))
    await raw.begin(ProduceRequest(acks=-1), 9)
    await raw.begin(HEARTBEAT, 4)
    await raw.begin(HEARTBEAT, 4)
    stored.set()
    await raw.answer(ProduceResponse, 9)
    assert begun == 1
    goes_on.set()
    await raw.answer(HeartbeatResponse, 4)
    await raw.answer(HeartbeatResponse, 4)
    assert begun == 2


async def test_an_agent_stops_without_the_long_requests_that_are_decoded(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have not begun: their clients send them to another agent."""
    running = await start_agent(drain_timeout_ms=600_000)
    raw, server, decoding = await dial.raw(running.address), running.agent._server, asyncio.Event()
    finish = LongMessages.finish

    async def until_it_stops(self: LongMessages, steps: Steps[object], client: ClientConnection) -> object:
        decoding.set()
        while not server.draining:
            await asyncio.sleep(0.01)
        return await finish(self, steps, client)

    monkeypatch.setattr(LongMessages, "finish", until_it_stops)
    await raw.call(ProduceRequest(acks=-1), ProduceResponse, 9)
    partitions = [PartitionProduceData(index=n, records=b"") for n in range(MANY)]
    await raw.begin(ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="t", partition_data=partitions)]), 9)
    await decoding.wait()
    async with asyncio.timeout(60):
        await running.agent.stop()
    assert await raw.is_closed_by_peer()


async def test_a_client_whose_first_request_is_long_keeps_its_place_while_it_is_decoded(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start_agent()
    raw, server = await dial.raw(running.address), running.agent._server
    goes_on, decoding = asyncio.Event(), asyncio.Event()
    finish = LongMessages.finish

    async def held(self: LongMessages, steps: Steps[object], client: ClientConnection) -> object:
        decoding.set()
        await goes_on.wait()
        return await finish(self, steps, client)

    monkeypatch.setattr(LongMessages, "finish", held)
    await raw.begin(metadata_of(MANY), 12)
    await decoding.wait()
    now_ms = server._now_ms() + running.agent._settings.preauth_timeout_ms
    monkeypatch.setattr(server, "_now_ms", lambda: now_ms)
    server._close_unproved()
    goes_on.set()
    assert len((await raw.answer(MetadataResponse, 12)).topics) == MANY
