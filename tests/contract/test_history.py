"""The compactor's contract: the histories of the server under which the janitor may delete."""

from __future__ import annotations

from metadata.rules.history import history_moved
from tests.contract.metadata_worlds import World, raises_exactly


async def test_a_new_database_is_adopted_by_who_made_it(world: World) -> None:
    history = await world.service.deletion.history()
    assert history.adopted == history.present
    assert history.present.system_identifier > 0 and history.present.timeline > 0
    assert history.halts == ""


async def test_on_another_server_the_janitor_is_halted_for_every_service_until_somebody_adopts(world: World) -> None:
    await world.another_server()
    history = await world.service.deletion.history()
    assert "system identifier" in history.halts
    # a process that starts now and remembers nothing reads the same history
    late = await world.another()
    assert await late.deletion.history() == history
    await late.operators.adopt_history(history.present)
    await late.operators.adopt_history(history.present)
    for service in (world.service, late):
        now = await service.deletion.history()
        assert (now.halts, now.adopted, now.present) == ("", history.present, history.present)


async def test_what_was_not_checked_is_not_adopted(world: World) -> None:
    await world.another_server()
    history = await world.service.deletion.history()
    checked = history.present._replace(timeline=history.present.timeline + 1)
    with raises_exactly(history_moved(checked, history.present)):
        await world.service.operators.adopt_history(checked)
    assert await world.service.deletion.history() == history
