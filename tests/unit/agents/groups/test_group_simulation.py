"""A group under chaos: clients of all versions, static and dynamic, that come, crash, come back, leave, hurry and
pause; lost answers; saves that are slow, fail, or fail and are stored all the same; owners that change. The world
checks its rules after every event. The tests here check the end, when everybody behaves again.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from agents.groups.events import GroupState
from tests.fixtures.group_world import OPTIONS, World

LONG_ENOUGH_MS = 150_000
SEEDS = 12
SOAK_FROM, SOAK_SEEDS = 1_000_000, 1_000
LIMITED_FROM, LIMITED_SEEDS = 100, 3


def assert_settled(world: World) -> None:
    live = world.live()
    if not live:
        return
    assert world.group is not None
    view = world.group.view()
    assert view.state is GroupState.STABLE
    assert all(client.assigned for client in live), live
    assert {member.member_id for member in view.members} == {client.member_id for client in live}
    assert {client.generation for client in live} == {view.generation}
    assert world.record.generation == view.generation
    assert {member.member_id for member in world.record.members} == {member.member_id for member in view.members}
    assert world.group.size == len(live), "ids that were given out and not used are gone"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_group_survives_chaos_and_settles_when_everybody_behaves(seed: int) -> None:
    chaos_and_calm(seed)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_groups_survive_chaos_in_many_more_histories() -> None:
    for seed in range(SOAK_FROM, SOAK_FROM + SOAK_SEEDS):
        chaos_and_calm(seed)
        chaos_with_a_limit(seed)


def chaos_and_calm(seed: int) -> None:
    world = World(seed)
    for _ in range(2):
        # given chaos
        world.calm = False
        world.disturb(120_000, every_ms=(300, 1_000, 4_000)[seed % 3])
        # when it ends, then the group is stable with all living members, in one generation
        world.arrive()
        world.settle(LONG_ENOUGH_MS)
        assert_settled(world)
    # when all leave, or disappear silently, then nothing of them stays
    for client in world.live():
        if world.random.random() < 0.5:
            client.leave()
        client.gone = True
    world.run(LONG_ENOUGH_MS)
    assert world.group is not None
    assert world.group.state is GroupState.EMPTY
    assert world.group.is_forgettable
    assert world.group.wake_at_ms is None
    assert world.record.members == ()


@pytest.mark.parametrize("seed", range(LIMITED_FROM, LIMITED_FROM + LIMITED_SEEDS))
def test_a_group_with_a_limit_survives_chaos(seed: int) -> None:
    chaos_with_a_limit(seed)


def chaos_with_a_limit(seed: int) -> None:
    world = World(seed, options=replace(OPTIONS, max_size=4))
    world.disturb(120_000, every_ms=1_000)
    world.settle(LONG_ENOUGH_MS)
    assert_settled(world)
    assert world.group is None or len(world.group.view().members) <= 4


def test_the_simulation_meets_every_answer_there_is() -> None:
    # A simulation that never reaches a rule proves nothing about the rule.
    met: set[str] = set()
    for seed in range(200, 208):
        world = World(seed)
        world.disturb(240_000, every_ms=1_000)
        met |= world.answered.keys()
    of_joins = "NONE UNKNOWN_MEMBER_ID MEMBER_ID_REQUIRED FENCED_INSTANCE_ID REBALANCE_IN_PROGRESS NOT_COORDINATOR"
    of_syncs = "NONE UNKNOWN_MEMBER_ID ILLEGAL_GENERATION REBALANCE_IN_PROGRESS COORDINATOR_NOT_AVAILABLE"
    of_others = "NONE UNKNOWN_MEMBER_ID ILLEGAL_GENERATION REBALANCE_IN_PROGRESS FENCED_INSTANCE_ID NON_EMPTY_GROUP"
    expected = {f"JoinAnswer:{error}" for error in of_joins.split()}
    expected |= {f"SyncAnswer:{error}" for error in of_syncs.split()}
    expected |= {f"PlainAnswer:{error}" for error in of_others.split()}
    assert expected - met == set()
