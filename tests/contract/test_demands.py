"""Clients' demands at each agent: one suite for both metadata stores."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from metadata.contract.leases import AgentAddress, WriterLease
from runtime.errors import BugError
from security.quotas.sharing import REPORTED_MAX
from tests.contract.metadata_worlds import World


def address(port: int) -> AgentAddress:
    return AgentAddress(host="a", port=port)


async def exchanged(
    world: World, lease: WriterLease, demands: Mapping[int, float] | None = None
) -> Sequence[Mapping[int, float]]:
    return await world.service.security.exchange_demands(lease, demands or {})


async def test_each_agent_reads_what_the_others_reported_last(world: World) -> None:
    one, two, three = [await world.service.agents.register_agent(address(port)) for port in (1, 2, 3)]
    assert await exchanged(world, one, {7: 1.0, -(2**63): 0.5}) == [{}, {}]
    assert await exchanged(world, two, {7: 0.25}) == [{7: 1.0, -(2**63): 0.5}, {}]
    other = await world.another()
    assert await other.security.exchange_demands(three, {2**63 - 1: 0.125}) == [{7: 1.0, -(2**63): 0.5}, {7: 0.25}]
    # a report takes the place of the one before
    assert await exchanged(world, one, {8: 0.75}) == [{7: 0.25}, {2**63 - 1: 0.125}]
    assert await exchanged(world, one) == [{7: 0.25}, {2**63 - 1: 0.125}]
    assert await exchanged(world, two) == [{}, {2**63 - 1: 0.125}]


async def test_an_agent_counts_for_as_long_as_its_lease_runs(world: World) -> None:
    agents = world.service.agents
    one, two, three = [await agents.register_agent(address(port)) for port in (1, 2, 3)]
    for lease in (one, two, three):
        await exchanged(world, lease, {lease.writer_id: 1.0})
    await agents.heartbeat(two, draining=True)  # it still serves its clients
    await agents.unregister_agent(three)
    assert await exchanged(world, one) == [{two.writer_id: 1.0}]
    # its successor at the same address has reported nothing yet
    again = await agents.register_agent(address(2), instead_of=two)
    assert await exchanged(world, one) == [{}]
    # and nobody counts what the one before says late
    await exchanged(world, two, {1: 1.0})
    await exchanged(world, three, {1: 1.0})
    assert await exchanged(world, one) == [{}]
    await exchanged(world, again, {1: 0.5})
    assert await exchanged(world, one) == [{1: 0.5}]
    await world.expire_leases()
    assert await exchanged(world, one) == []
    # a beat brings both back
    await agents.heartbeat(again)
    assert await exchanged(world, one) == [{1: 0.5}]


async def test_the_longest_report_comes_back_as_it_was_and_a_longer_one_is_no_report(world: World) -> None:
    one, two = [await world.service.agents.register_agent(address(port)) for port in (1, 2)]
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    demands = {chance.randrange(-(2**63), 2**63): chance.randrange(1, 65) / 64 for _ in range(REPORTED_MAX)}
    await exchanged(world, one, demands)
    assert await exchanged(world, two) == [demands]
    with pytest.raises(BugError, match="longer than 1000"):
        await exchanged(world, one, dict.fromkeys(range(REPORTED_MAX + 1), 1.0))
    assert await exchanged(world, two) == [demands]
