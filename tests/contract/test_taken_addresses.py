"""Two processes that want one address, on every metadata store: who is refused, and what a refusal leaves behind."""

from __future__ import annotations

import asyncio

import pytest

from metadata.contract.leases import ALIVE_MS, LEASE_MS, AddressTakenError, AgentAddress, WriterFencedError, WriterLease
from metadata.contract.store import MetadataStore
from metadata.rules.jobs import LEASE_SLACK
from tests.contract.metadata_worlds import World, Writer, batch, new_topic

NOW_MS = 1_700_000_000_000
HERE = AgentAddress(host="a", port=1)


async def refused(service: MetadataStore, *, instead_of: WriterLease | None = None) -> AddressTakenError:
    with pytest.raises(AddressTakenError) as caught:
        await service.agents.register_agent(HERE, instead_of=instead_of)
    return caught.value


async def test_the_address_of_a_holder_that_beat_a_moment_ago_is_refused_and_the_holder_goes_on(world: World) -> None:
    await world.set_clock(NOW_MS)
    holder = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    await world.set_clock(NOW_MS + 500)
    await world.service.agents.heartbeat(holder.lease)
    # when
    await world.set_clock(NOW_MS + 500 + ALIVE_MS - 1)
    with pytest.raises(AddressTakenError) as caught:
        await world.service.agents.register_agent(AgentAddress(host="agent", port=9092))
    # then
    taken = caught.value
    assert (taken.holder, taken.beat_ms, taken.now_ms) == (holder.lease, NOW_MS + 500, NOW_MS + 500 + ALIVE_MS - 1)
    assert taken.message == "agent:9092 is held by writer 1 epoch 0, which may still run"
    await holder.commit(batch(one))
    await world.service.agents.heartbeat(holder.lease)


async def test_a_refusal_draws_neither_an_epoch_nor_a_node_id(world: World) -> None:
    first = await world.service.agents.register_agent(HERE)
    for _ in range(3):
        assert (await refused(world.service)).holder == first
    # then
    again = await world.service.agents.register_agent(HERE, instead_of=first)
    other = await world.service.agents.register_agent(AgentAddress(host="a", port=2))
    assert again == WriterLease(writer_id=first.writer_id, epoch=first.epoch + 1)
    assert other.writer_id == first.writer_id + 1


async def test_an_address_is_taken_as_soon_as_a_living_holder_would_have_beaten(world: World) -> None:
    await world.set_clock(NOW_MS)
    dead = await world.service.agents.register_agent(HERE)
    await world.set_clock(NOW_MS + ALIVE_MS)
    heir = await world.service.agents.register_agent(HERE)
    assert heir == WriterLease(writer_id=dead.writer_id, epoch=dead.epoch + 1)
    with pytest.raises(WriterFencedError):
        await world.service.agents.heartbeat(dead)


async def test_a_lease_that_was_given_back_leaves_its_address_at_once(world: World) -> None:
    ended = await world.service.agents.register_agent(HERE)
    await world.service.agents.unregister_agent(ended)
    assert (await world.service.agents.register_agent(HERE)).epoch == ended.epoch + 1


async def test_a_holder_that_drains_still_runs(world: World) -> None:
    draining = await world.service.agents.register_agent(HERE)
    await world.service.agents.heartbeat(draining, draining=True)
    assert (await refused(world.service)).holder == draining


async def test_only_the_present_lease_opens_its_address_to_its_owner(world: World) -> None:
    fenced = await world.service.agents.register_agent(HERE)
    present = await world.service.agents.register_agent(HERE, instead_of=fenced)
    elsewhere = await world.service.agents.register_agent(AgentAddress(host="a", port=2))
    for other in (None, fenced, elsewhere):
        assert (await refused(world.service, instead_of=other)).holder == present


async def test_a_lease_from_before_the_clock_went_back_far_keeps_nobody_out(world: World) -> None:
    await world.set_clock(NOW_MS)
    old = await world.service.agents.register_agent(HERE)
    # as long as it could count as running, it does
    await world.set_clock(NOW_MS + LEASE_MS - LEASE_SLACK * LEASE_MS)
    assert (await refused(world.service)).beat_ms == NOW_MS
    await world.set_clock(NOW_MS + LEASE_MS - LEASE_SLACK * LEASE_MS - 1)
    assert (await world.service.agents.register_agent(HERE)).epoch == old.epoch + 1


@pytest.mark.parametrize("before", ["nobody", "a dead one"])
async def test_of_many_that_register_one_address_at_once_one_gets_it(world: World, before: str) -> None:
    other = await world.another()
    epoch = 0
    if before == "a dead one":
        epoch = (await world.service.agents.register_agent(HERE)).epoch + 1
        await world.expire_leases()
    # when
    services = [world.service, other] * 3
    answers = await asyncio.gather(
        *(service.agents.register_agent(HERE) for service in services), return_exceptions=True
    )
    # then
    [winner] = [answer for answer in answers if isinstance(answer, WriterLease)]
    assert winner.epoch == epoch
    losers = [answer for answer in answers if isinstance(answer, AddressTakenError)]
    assert [loser.holder for loser in losers] == [winner] * 5
    assert [agent.epoch for agent in await world.service.agents.live_agents()] == [epoch]
