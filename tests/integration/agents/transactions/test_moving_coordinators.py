"""Transactions whose coordinator goes, or is asked beside another one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agents.transactions.ownership import owner
from metadata.transactions.contract import EndTransactions, TransactionsEnded, TransactionState
from tests.fixtures.agents import Dial, RunningAgent, StartAgent
from tests.fixtures.fleet import Counted, Fleet, fleet
from tests.fixtures.transaction_clients import RecordsOf, TransactionalClient
from tests.fixtures.waiting import until
from wire.error_codes import ErrorCode
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

TAKEN_OVER_S = 20


class HeldEnds(Counted):
    """Ends wait until the test lets them go."""

    gate: asyncio.Event

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0

    async def end_transactions(self, request: EndTransactions) -> TransactionsEnded:
        self.waiting += 1
        await self.gate.wait()
        return await self.inner.transactions.end_transactions(request)


def name_of(agents: Fleet, number: int) -> str:
    """An id that this agent coordinates."""
    membership = agents[number].agent._membership
    assert membership is not None
    names = (f"tx-{each}" for each in range(1_000))
    return next(name for name in names if _owner_of(name, agents) == membership.node_id)


def _owner_of(name: str, agents: Fleet) -> int:
    membership = agents[0].agent._membership
    assert membership is not None
    found = owner(name, membership.agents)
    assert found is not None
    return found.writer_id


async def client_at(dial: Dial, agent: RunningAgent, name: str, like: TransactionalClient | None = None) -> Any:
    client = TransactionalClient(await dial.raw(agent.address), name)
    if like is not None:
        client.producer_id, client.epoch = like.producer_id, like.epoch
    return client


async def test_ids_have_one_coordinator_and_the_others_send_clients_there(start_agent: StartAgent, dial: Dial) -> None:
    async with fleet(start_agent, 2) as agents:
        await agents.know_each_other()
        for number, running in enumerate(agents.agents):
            name = name_of(agents, number)
            other = await client_at(dial, agents[1 - number], name)
            assert (await other.init()).error_code == ErrorCode.NOT_COORDINATOR
            asked = FindCoordinatorRequest(key_type=1, coordinator_keys=[name])
            found = (await other.raw.call(asked, FindCoordinatorResponse, 5)).coordinators[0]
            assert found.port == int(running.address.rpartition(":")[2])
            assert (await (await client_at(dial, running, name)).init()).error_code == 0


@pytest.mark.parametrize("version", [1, 5])
async def test_an_agent_that_goes_ends_what_is_under_way_and_another_goes_on(
    start_agent: StartAgent, dial: Dial, version: int
) -> None:
    """Order 35 of the design."""
    async with fleet(start_agent, 2, wrap=HeldEnds) as agents:
        await agents.know_each_other()
        goes, stays = agents.agents
        name = name_of(agents, 0)
        topic = await stays.metadata.agents.create_topic("t", partitions=1, configs={})
        records = await RecordsOf.register(stays.metadata)
        await agents.know_topic("t")
        client = await client_at(dial, goes, name)
        await client.begin()
        await client.add(t=[0])
        await records.write(client, topic.partition_ids[0], adds=False)
        before = await client_at(dial, stays, name, client)
        agents.services[0].gate.clear()
        ending = asyncio.create_task(client.end(version=version))
        await until(lambda: agents.services[0].waiting)

        stopping = asyncio.create_task(goes.agent.stop())
        transactions = goes.agent._transactions
        assert transactions is not None
        await until(lambda: transactions.coordinator._stopped)
        assert not ending.done()
        agents.services[0].gate.set()

        assert await ending == 0
        again = await client_at(dial, goes, name, client)
        assert await again.end(version=version) == ErrorCode.NOT_COORDINATOR
        # the next coordinator answers the same end, and goes on
        assert await before.end(version=version) == 0
        assert (before.producer_id, before.epoch) == (client.producer_id, client.epoch)
        await before.add(t=[0])
        await records.write(before, topic.partition_ids[0], adds=False)
        assert await before.end(version=version) == 0
        marks = (await stays.metadata.agents.watermarks(topic.partition_ids))[topic.partition_ids[0]]
        assert (marks.last_stable_offset, marks.high_watermark) == (4, 4)
        await stopping


async def test_a_transaction_past_its_time_is_aborted_by_an_agent_alone(start_agent: StartAgent, dial: Dial) -> None:
    running = await start_agent()
    topic = await running.metadata.agents.create_topic("t", partitions=1, configs={})
    records = await RecordsOf.register(running.metadata)
    client = await client_at(dial, running, "tx")
    await client.init(transaction_timeout_ms=200)
    await records.write(client, topic.partition_ids[0])

    async def is_aborted() -> bool:
        (info,) = await running.metadata.transactions.transactions(["tx"])
        return info.state is TransactionState.COMPLETE_ABORT

    await until(is_aborted, TAKEN_OVER_S)
    assert (await client.init(producer_id=client.producer_id, producer_epoch=0)).error_code == (
        ErrorCode.PRODUCER_FENCED
    )
    assert running.metric("transactions_ended_total", outcome="timed_out") == 1
