"""The compactor's contract (`metadata/contract/compactors.py`): leases of compactors, and duties."""

from __future__ import annotations

from metadata.contract.leases import AgentAddress
from metadata.rules.refusals import compactor_lease_ended
from tests.contract.metadata_worlds import World, raises_exactly


async def test_compactors_draw_node_ids_from_the_agents_sequence_and_are_alive_while_they_beat(world: World) -> None:
    agent = await world.service.agents.register_agent(AgentAddress(host="agent", port=1))
    first = await world.service.compactors.register_compactor("here")
    second = await world.service.compactors.register_compactor("there")

    assert len({agent.writer_id, first.writer_id, second.writer_id}) == 3
    assert list(await world.service.compactors.live_compactors()) == [
        (first.writer_id, "here"),
        (second.writer_id, "there"),
    ]
    await world.lapse_jobs()
    assert list(await world.service.compactors.live_compactors()) == []
    await world.service.compactors.beat_compactor(first)
    await world.service.compactors.unregister_compactor(second)
    assert list(await world.service.compactors.live_compactors()) == [(first.writer_id, "here")]
    with raises_exactly(compactor_lease_ended(second)):
        await world.service.compactors.beat_compactor(second)


async def test_a_duty_belongs_to_one_until_it_runs_out(world: World) -> None:
    first, second = [await world.service.compactors.register_compactor("host") for _ in range(2)]
    take = world.service.compactors.take_duty

    assert await take("plan", first, ttl_ms=60_000)
    assert not await take("plan", second, ttl_ms=60_000)
    assert await take("plan", first, ttl_ms=60_000)
    assert await take("sweep", second, ttl_ms=60_000)
    await world.end_pins_and_duties()
    assert await take("plan", second, ttl_ms=60_000)
    assert not await take("plan", first, ttl_ms=60_000)


async def test_a_duty_of_one_whose_lease_ran_out_or_was_given_back_is_free_at_once(world: World) -> None:
    first, second, third = [await world.service.compactors.register_compactor("host") for _ in range(3)]
    take = world.service.compactors.take_duty
    assert await take("retain", first, ttl_ms=3_600_000)

    await world.lapse_jobs()
    await world.service.compactors.beat_compactor(second)
    assert await take("retain", second, ttl_ms=3_600_000)
    # a holder that comes back to life does not have the duty any more
    await world.service.compactors.beat_compactor(first)
    assert not await take("retain", first, ttl_ms=3_600_000)
    await world.service.compactors.unregister_compactor(second)
    await world.service.compactors.beat_compactor(third)
    assert await take("retain", third, ttl_ms=3_600_000)
