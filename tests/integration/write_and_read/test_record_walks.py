"""Records that an agent must look at before it takes them: honest ones keep their order, bombs hold up nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from agents.write import walks
from agents.write.walking import REQUEST_UNFOLDED_BYTES_MAX
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent
from tests.fixtures.loop_stalls import LoopStalls, assert_holds_up_nobody, loop_stalls
from tests.fixtures.produced import bomb, keyless, of_many
from tests.fixtures.record_batches import one_batch
from tests.fixtures.waiting import until
from wire.api import decode_response
from wire.codecs import Codec
from wire.error_codes import ErrorCode
from wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

MIB = 1 << 20
VERSION = 9
FAR_FUTURE_MS = 4_000_000_000_000
HONEST_S_MAX = 30
"""Generous: the honest client is served while the attack runs, on a machine that may be busy with other things."""


class HeldWalks:
    """Every walk stops at its first pause until it is let go."""

    def __init__(self) -> None:
        self.held = 0
        self._go = threading.Event()

    def pause(self) -> None:
        self.held += 1
        self._go.wait()

    def let_go(self) -> None:
        self._go.set()


@pytest.fixture
def held_walks(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldWalks]:
    held = HeldWalks()
    monkeypatch.setattr(walks, "_pause", held.pause)
    yield held
    held.let_go()


@pytest.fixture
async def agent(start_agent: StartAgent, dial: Dial) -> RunningAgent:
    agent = await start_agent()
    client = await dial.kafka(agent.address)
    await client.create_topic("compacted", partitions=2, configs={"cleanup.policy": "compact"})
    await client.create_topic("plain", partitions=1)
    return agent


def request(*batches: bytes, topic: str = "compacted", acks: int = -1) -> ProduceRequest:
    parts = [PartitionProduceData(index=0, records=batch) for batch in batches]
    return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=parts)])


async def answers(raw: RawConnection) -> list[PartitionProduceResponse]:
    _, answer = decode_response(0, VERSION, await raw.read_frame(timeout_s=120))
    assert isinstance(answer, ProduceResponse)
    return answer.responses[0].partition_responses


async def answer(raw: RawConnection) -> tuple[int, int]:
    """(error code, base offset) of the one batch."""
    (only,) = await answers(raw)
    return only.error_code, only.base_offset


async def test_a_long_walk_is_not_overtaken_by_its_own_connection_but_by_others(
    agent: RunningAgent, dial: Dial, held_walks: HeldWalks
) -> None:
    slow, other = await dial.raw(agent.address), await dial.raw(agent.address)
    # given a connection whose first request takes a walk on a thread, and whose second would take none
    await slow.begin(request(of_many(10_000)), VERSION)
    await slow.begin(request(one_batch(3)), VERSION)
    await slow.begin(request(one_batch(2), topic="plain"), VERSION)
    await until(lambda: held_walks.held == 1)
    # when others write
    await other.begin(request(one_batch(1)), VERSION)
    await other.begin(request(one_batch(1), topic="plain"), VERSION)
    # then they are first
    assert await answer(other) == (0, 0)
    assert await answer(other) == (0, 0)
    # and the connection's own requests keep their order
    held_walks.let_go()
    assert await answer(slow) == (0, 1)
    assert await answer(slow) == (0, 10_001)
    assert await answer(slow) == (0, 1)


async def test_requests_that_waited_for_their_topic_keep_their_order_in_a_walk(
    agent: RunningAgent, dial: Dial, held_walks: HeldWalks, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert agent.agent._server is not None
    topic_ids, may_see = agent.agent._server.broker.topic_ids, asyncio.Event()
    looked = topic_ids._see

    async def see() -> bool:
        await may_see.wait()
        return await looked()

    monkeypatch.setattr(topic_ids, "_see", see)
    raw, other = await dial.raw(agent.address), await dial.kafka(agent.address)
    # given two requests for a topic that the agent does not know; both have begun and wait for a look at the store
    await raw.begin(request(of_many(10_000), topic="late"), VERSION)
    await raw.begin(request(one_batch(3), topic="late"), VERSION)
    await until(lambda: topic_ids._line["late"] == 2)
    await other.create_topic("late", partitions=1, configs={"cleanup.policy": "compact"})
    # when the first must be walked and the second need not
    may_see.set()
    await until(lambda: held_walks.held == 1)
    assert await other.produce("plain", 0, one_batch(1)) == 0
    held_walks.let_go()
    # then the second is behind it
    assert await answer(raw) == (0, 0)
    assert await answer(raw) == (0, 10_000)


async def test_a_connection_that_ends_in_a_walk_leaves_nothing_behind(
    agent: RunningAgent, dial: Dial, held_walks: HeldWalks
) -> None:
    gone, other = await dial.raw(agent.address), await dial.raw(agent.address)
    await gone.begin(request(of_many(10_000)), VERSION)
    await until(lambda: held_walks.held == 1)
    await gone.close()
    held_walks.let_go()
    await other.begin(request(of_many(10_000)), VERSION)
    assert (await answer(other))[0] == 0


async def test_an_agent_that_stops_takes_the_records_of_a_walk_to_their_end(
    agent: RunningAgent, dial: Dial, held_walks: HeldWalks
) -> None:
    raw = await dial.raw(agent.address)
    await raw.begin(request(of_many(10_000)), VERSION)
    await until(lambda: held_walks.held == 1)
    stopping = asyncio.create_task(agent.agent.stop())
    await asyncio.sleep(0)
    held_walks.let_go()
    assert await answer(raw) == (0, 0)
    await stopping


async def test_requests_that_wait_for_walks_are_bounded_and_one_more_is_to_be_tried_again(
    agent: RunningAgent, dial: Dial, held_walks: HeldWalks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walks, "WAITING_BYTES_MAX", 1)
    first, second = await dial.raw(agent.address), await dial.raw(agent.address)
    await first.begin(request(of_many(10_000)), VERSION)
    await until(lambda: held_walks.held == 1)
    # one with a batch that needs no thread
    await second.begin(request(one_batch(1), of_many(10_000)), VERSION)
    good, busy = await answers(second)
    assert (good.error_code, busy.error_code) == (0, ErrorCode.KAFKA_STORAGE_ERROR)
    assert "try again" in (busy.error_message or "")
    held_walks.let_go()
    assert (await answer(first))[0] == 0
    await second.begin(request(of_many(10_000)), VERSION)
    assert (await answer(second))[0] == 0


async def test_a_refusal_after_a_walk_without_acknowledgement_ends_the_connection(
    agent: RunningAgent, dial: Dial
) -> None:
    raw = await dial.raw(agent.address)
    await raw.begin(request(keyless(10_000), acks=0), VERSION)
    assert await raw.is_closed_by_peer(60)
    raw = await dial.raw(agent.address)
    await raw.begin(request(of_many(10_000), acks=0), VERSION)
    await raw.begin(request(one_batch(1)), VERSION)
    assert (await answer(raw))[0] == 0


ATTACKS = {
    "zstd": ("compacted", lambda: [bomb(64 * MIB)] * 450),
    "gzip": ("compacted", lambda: [bomb(16 * MIB, Codec.GZIP)] * 60),
    "lz4": ("compacted", lambda: [bomb(16 * MIB, Codec.LZ4)] * 15),
    "snappy": ("compacted", lambda: [bomb(16 * MIB, Codec.SNAPPY)] * 15),
    "future": ("plain", lambda: [bomb(64 * MIB, max_timestamp_ms=FAR_FUTURE_MS)] * 450),
    "records": ("compacted", lambda: [of_many(200_000)] * 8),
    "names": ("compacted", lambda: [keyless(100_000)] * 300),
}


@pytest.mark.parametrize("name", ATTACKS)
async def test_a_request_that_unfolds_to_far_more_than_it_is_holds_up_nobody(
    agent: RunningAgent, dial: Dial, name: str
) -> None:
    topic, make = ATTACKS[name]
    attack = request(*make(), topic=topic)
    raw, honest = await dial.raw(agent.address), await dial.kafka(agent.address)
    found: list[PartitionProduceResponse] = []

    async def attacked() -> LoopStalls:
        served = 0
        with loop_stalls() as stalls:
            await raw.begin(attack, VERSION)
            answered = asyncio.create_task(answers(raw))
            while not answered.done() or not served:
                # while it runs, an honest client's records are taken, and read again
                async with asyncio.timeout(HONEST_S_MAX):
                    offset = await honest.produce("compacted", 1, one_batch(10, codec=Codec.ZSTD))
                    assert (await honest.fetch("compacted", 1, offset)).records
                served += 1
        found[:] = await answered
        return stalls

    await assert_holds_up_nobody(attacked)
    codes = {each.error_code for each in found}
    match name:
        case "future":
            assert codes == {ErrorCode.INVALID_TIMESTAMP}
        case "records":
            assert [each.error_code for each in found] == [0] * 5 + [ErrorCode.MESSAGE_TOO_LARGE] * 3
        case "names":
            assert sum(len(each.record_errors) for each in found) <= 10_000
        case _:
            taken = sum(each.error_code == ErrorCode.INVALID_RECORD for each in found)
            assert codes == {ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE}
            assert taken <= REQUEST_UNFOLDED_BYTES_MAX // (16 * MIB)
