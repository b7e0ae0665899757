"""Produce requests of very many small batches: checked in several turns of the event loop, and stored in order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agents.handlers import produce
from agents.write import walks
from agents.write.reply import ProduceReply
from agents.write.submission import BATCHES_MAX
from agents.yielding import PARTS_PER_TURN
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent
from tests.fixtures.loop_stalls import LoopStalls, assert_holds_up_nobody, loop_stalls
from tests.fixtures.record_batches import one_batch, with_header
from tests.fixtures.waiting import until
from wire.error_codes import ErrorCode
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData


def request_of(count: int, batch: bytes, topics: int = 1) -> ProduceRequest:
    data = [
        TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)] * (count // topics))
        for _ in range(topics)
    ]
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=data)


async def started(start_agent: StartAgent, dial: Dial) -> tuple[RunningAgent, RawConnection]:
    running = await start_agent()
    await running.metadata.agents.create_topic("t", partitions=1, configs={})
    await running.agent._follower.catch_up()
    return running, await dial.raw(running.address)


def codes(answer: ProduceResponse) -> set[int]:
    return {part.error_code for topic in answer.responses for part in topic.partition_responses}


async def test_very_many_batches_hold_up_nobody(start_agent: StartAgent, dial: Dial) -> None:
    _, raw = await started(start_agent, dial)
    # Refused ones: how long a commit of good ones takes is for the store to say.
    request = request_of(40_000, with_header(one_batch(1), base_offset=1))

    async def ask() -> LoopStalls:
        with loop_stalls() as stalls:
            await raw.begin(request, 9)
            stalls.longest_ms = 0  # that was the client's own
            frame = await raw.read_frame(60)
        assert len(frame) > 40_000
        return stalls

    await assert_holds_up_nobody(ask)


async def test_batches_of_several_turns_keep_their_order_and_that_of_their_connection(
    start_agent: StartAgent, dial: Dial
) -> None:
    _, raw = await started(start_agent, dial)
    count = 2 * PARTS_PER_TURN + 100
    for topics in (1, 4, count):
        await raw.begin(request_of(count, one_batch(1), topics), 9)
        await raw.begin(request_of(1, one_batch(1)), 9)
        answers = [await raw.answer(ProduceResponse, 9) for _ in range(2)]
        offsets = [
            part.base_offset for answer in answers for topic in answer.responses for part in topic.partition_responses
        ]
        assert codes(answers[0]) == {0} and len(answers[0].responses) == topics
        assert offsets == list(range(offsets[0], offsets[0] + count + 1))


async def test_what_finds_no_room_is_refused_and_may_come_again(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, raw = await started(start_agent, dial)
    request = request_of(PARTS_PER_TURN + 1, one_batch(1))
    monkeypatch.setattr(walks, "WAITING_BYTES_MAX", 1_000)
    held = running.agent._record_walks.take(asyncio.Event().wait, 1_000)
    assert held is not None
    busy = await raw.call(request, ProduceResponse, 9)
    assert codes(busy) == {ErrorCode.KAFKA_STORAGE_ERROR}
    assert len(busy.responses) == 1 and len(busy.responses[0].partition_responses) == PARTS_PER_TURN + 1
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)
    assert codes(await raw.call(request, ProduceResponse, 9)) == {0}


@pytest.mark.parametrize("acks", [-1, 0])
@pytest.mark.parametrize("leaves", [False, True])
async def test_an_agent_that_stops_stores_all_of_a_request_that_it_hands_over_in_turns(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch, *, leaves: bool, acks: int
) -> None:
    running, raw = await started(start_agent, dial)
    submit, begun, count = produce._submit_in_turns, asyncio.Event(), 2 * BATCHES_MAX + 1
    server, write_path = running.agent._server, running.agent._write_path
    assert server is not None and write_path is not None

    async def slow(*given: Any, **more: Any) -> None:
        begun.set()
        while not server.draining:
            await asyncio.sleep(0.01)
        for _ in range(20):  # the write path could end now
            await asyncio.sleep(0)
        await submit(*given, **more)

    monkeypatch.setattr(produce, "_submit_in_turns", slow)
    request = request_of(count, one_batch(1))
    request.acks = acks
    await raw.begin(request, 9)
    await begun.wait()
    if leaves:
        [connection] = server.talking()
        connection.abort()
    async with asyncio.timeout(60):
        await running.agent.stop()
    assert running.metric("produce_batches_total", outcome="stored") == count
    assert write_path.bytes == 0
    if acks and not leaves:
        assert codes(await raw.answer(ProduceResponse, 9)) == {0}


async def test_batches_of_several_files_keep_their_order(start_agent: StartAgent, dial: Dial) -> None:
    _, raw = await started(start_agent, dial)
    count = 2 * BATCHES_MAX + 1
    answer = await raw.call(request_of(count, one_batch(1)), ProduceResponse, 9)
    offsets = [part.base_offset for topic in answer.responses for part in topic.partition_responses]
    assert offsets == list(range(count))


async def test_the_answer_of_a_client_that_leaves_meanwhile_is_not_kept_for_the_timeout_it_chose(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, raw = await started(start_agent, dial)
    replies: list[ProduceReply] = []
    begun = asyncio.Event()

    class Kept(ProduceReply):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            replies.append(self)

    async def never(*_: object, **__: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(produce, "ProduceReply", Kept)
    monkeypatch.setattr(produce, "_submit_in_turns", never)
    await raw.begin(request_of(2 * BATCHES_MAX, one_batch(1)), 9)
    await begun.wait()
    await raw.close()
    try:
        await until(lambda: replies[0].future.cancelled())
    finally:
        for task in running.agent._record_walks._under_way:
            task.cancel()
