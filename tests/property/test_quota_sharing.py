"""Agents that share a quota hold a client to it in sum, wherever it asks, and come to rest."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest

from metadata.contract.leases import LEASE_MS
from security.quotas.bucket import BURST_S
from security.quotas.values import QuotaEntity, QuotaKey
from tests.fixtures.quota_fleet import GREEDY, RATE, USER, Fleet

LEASE_S = LEASE_MS / 1000
NEAR = 0.1


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    fleet = Fleet()
    yield fleet
    fleet.close()


async def test_a_client_of_one_agent_has_all_of_its_quota_after_a_beat(fleet: Fleet) -> None:
    await fleet.have([0, 1, 2])
    await fleet.run({0: GREEDY}, 3)
    assert fleet.agents[0].part() == 1.0
    await fleet.run({0: GREEDY}, 20)
    assert fleet.total(15) == pytest.approx(1, abs=NEAR)


async def test_one_agent_alone_is_as_if_nothing_were_shared(fleet: Fleet) -> None:
    await fleet.have([0])
    await fleet.run({0: 0.5 * RATE}, 30)
    await fleet.run({0: GREEDY}, 30)
    await fleet.run({}, 100)
    await fleet.run({0: GREEDY}, 30)
    assert {part for step in fleet.parts for part in step.values()} <= {0.0, 1.0}
    # ten seconds' worth at once after each silence
    assert fleet.total(30) == pytest.approx((30 + BURST_S) / 30, abs=0.02)


async def test_a_client_of_all_agents_has_its_quota_in_sum(fleet: Fleet) -> None:
    await fleet.have([0, 1, 2])
    await fleet.run(dict.fromkeys(range(3), GREEDY), 60)
    # a burst of ten seconds in all, and not at each
    assert fleet.total(60) <= (60 + BURST_S) / 60 * (1 + NEAR)
    rates = fleet.rate(30)
    assert [rates[number] for number in range(3)] == pytest.approx([1 / 3] * 3, abs=0.05)
    assert fleet.wander(30) <= 0.02


@pytest.mark.parametrize(
    ("offers", "expected"),
    [
        ((1.0, 0.3), (0.7, 0.3)),
        ((GREEDY, 0.3), (0.7, 0.3)),
        ((GREEDY, 0.3, 0.1, GREEDY), (0.3, 0.3, 0.1, 0.3)),
        ((GREEDY, 0.01, 0.01, 0.01), (0.97, 0.01, 0.01, 0.01)),
        ((0.45, 0.45), (0.45, 0.45)),
        ((0.6, 0.6), (0.5, 0.5)),
        ((GREEDY, 0.45, 0.45), (0.334, 0.333, 0.333)),
    ],
)
async def test_modest_demands_are_met_and_nothing_swings(
    fleet: Fleet, offers: Sequence[float], expected: Sequence[float]
) -> None:
    await fleet.have(range(len(offers)))
    # so long, because a bucket of ten seconds' worth covers up a small overdraft
    await fleet.run({number: offer * RATE for number, offer in enumerate(offers)}, 240)
    rates = fleet.rate(60)
    assert [rates[number] for number in range(len(offers))] == pytest.approx(list(expected), abs=0.04)
    assert fleet.wander(60) <= 0.1


async def test_a_small_demand_that_becomes_a_large_one_has_as_much_within_some_beats(fleet: Fleet) -> None:
    await fleet.have(range(12))
    await fleet.run({0: GREEDY, 1: 0.03 * RATE}, 60)
    # the least part of an agent, or what is asked of it and a quarter more
    assert fleet.agents[1].part() < 0.05
    await fleet.run({0: GREEDY, 1: GREEDY}, 10)
    assert [fleet.agents[number].part() for number in (0, 1)] == pytest.approx([1 / 2] * 2)


async def test_a_client_that_moves_takes_its_quota_along(fleet: Fleet) -> None:
    await fleet.have([0, 1, 2])
    await fleet.run({0: GREEDY}, 30)
    for number in (1, 2, 0, 1):
        await fleet.run({number: GREEDY}, 20)
        # what its bucket there held, and not ten seconds' worth of the whole
        assert fleet.total(10, ago_s=10) <= 1 + (BURST_S / 3) / 10 + NEAR
        assert fleet.total(10) == pytest.approx(1, abs=NEAR)


async def test_a_client_cannot_gain_by_going_to_and_fro(fleet: Fleet) -> None:
    await fleet.have([0, 1, 2])
    for number in range(60):
        await fleet.run({number % 2: GREEDY}, 3 + number % 5)
    assert fleet.total(200) <= 1.2


async def test_a_client_that_comes_back_finds_its_part_where_it_was(fleet: Fleet) -> None:
    await fleet.have([0, 1, 2])
    await fleet.run({0: GREEDY}, 20)
    await fleet.run({}, 25)
    assert fleet.agents[0].part() == 1.0
    await fleet.run({0: GREEDY}, 10)
    assert fleet.total(10) == pytest.approx(2, abs=NEAR)  # ten seconds' worth at once
    await fleet.run({}, 60)
    await fleet.run({1: GREEDY}, 3)
    assert fleet.agents[1].part() == 1.0


async def test_agents_come_go_and_die(fleet: Fleet) -> None:
    everywhere = dict.fromkeys(range(4), GREEDY)
    for count in (1, 2, 3, 4):
        await fleet.have(range(count))
        await fleet.run(everywhere, 40)
        assert fleet.total(20) == pytest.approx(1, abs=NEAR)
        # one that comes brings a burst of its part
        assert fleet.total(40) <= (40 + BURST_S / count) / 40 + NEAR
    # those that die count until their leases end
    await fleet.have([0])
    await fleet.run(everywhere, LEASE_S - 3)
    assert fleet.agents[0].part() == pytest.approx(1 / 4)
    await fleet.run(everywhere, 6)
    assert fleet.agents[0].part() == 1.0
    # and one that says that it leaves counts no more
    await fleet.have([0, 1])
    await fleet.run(everywhere, 20)
    await fleet.agents[1].metadata.agents.unregister_agent(fleet.agents[1].lease)
    await fleet.have([0])
    await fleet.run(everywhere, 3)
    assert fleet.agents[0].part() == 1.0


async def test_parts_stand_while_the_store_is_away_and_are_even_after_a_lease(fleet: Fleet) -> None:
    await fleet.have([0, 1])
    await fleet.run({0: GREEDY}, 20)
    for agent in fleet.agents.values():
        agent.away = True
    await fleet.run({0: GREEDY}, LEASE_S - 3)
    assert (fleet.agents[0].part(), fleet.total(5)) == (1.0, pytest.approx(1, abs=NEAR))
    await fleet.run({0: GREEDY, 1: GREEDY}, 20)
    assert [agent.part() for agent in fleet.agents.values()] == [0.5, 0.5]
    assert fleet.total(10) == pytest.approx(1, abs=NEAR)
    for agent in fleet.agents.values():
        agent.away = False
    await fleet.run({0: GREEDY}, 20)
    assert fleet.agents[0].part() == pytest.approx(1, abs=0.01)


async def test_an_agent_that_cannot_reach_the_store_leaves_its_part_after_a_lease(fleet: Fleet) -> None:
    await fleet.have([0, 1, 2])
    everywhere = dict.fromkeys(range(3), GREEDY)
    await fleet.run(everywhere, 30)
    fleet.agents[2].away = True
    await fleet.run(everywhere, 30)
    assert [agent.part() for agent in fleet.agents.values()] == pytest.approx([1 / 2, 1 / 2, 1 / 3])
    fleet.agents[2].away = False
    await fleet.run(everywhere, 10)
    assert [agent.part() for agent in fleet.agents.values()] == pytest.approx([1 / 3] * 3)


async def test_a_quota_that_changes_counts_at_once_at_every_part(fleet: Fleet) -> None:
    await fleet.have([0, 1])
    everywhere = dict.fromkeys(range(2), GREEDY)
    await fleet.run(everywhere, 30)
    fleet.known.set({QuotaEntity(user=USER): {QuotaKey.PRODUCER_BYTE_RATE: RATE / 4}})
    await fleet.run(everywhere, 40)
    assert fleet.total(20) == pytest.approx(1 / 4, abs=NEAR / 4)
    fleet.known.set({QuotaEntity(user=USER): {QuotaKey.PRODUCER_BYTE_RATE: RATE * 2}})
    await fleet.run(everywhere, 40)
    assert fleet.total(20) == pytest.approx(2, abs=NEAR * 2)


def phase(chance: random.Random, agents: Sequence[int]) -> Mapping[int, float]:
    return {number: chance.choice([0.0, 0.05, 0.2, 0.5, 1.5, GREEDY]) * RATE for number in agents}


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(100, 200))])
async def test_whatever_was_before_the_parts_come_to_what_is_asked(fleet: Fleet, seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    agents = list(range(chance.randint(1, 6)))
    for _ in range(5):
        if chance.random() < 0.5:
            agents = chance.sample(range(8), chance.randint(1, 6))
        await fleet.have(agents)
        for number in agents:
            fleet.agents[number].away = chance.random() < 0.15
        await fleet.run(phase(chance, agents), chance.choice([1, 5, 12, 30]))
    for number in agents:
        fleet.agents[number].away = False
    offers = phase(chance, agents)
    print(offers)
    # The leases of the dead end, and what was saved up is spent.
    await fleet.run(offers, 250)
    total = sum(min(1.0, offer / RATE) for offer in offers.values())
    assert fleet.total(50) == pytest.approx(min(1.0, total), abs=0.05)
    assert fleet.wander(50) <= 0.15
