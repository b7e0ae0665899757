"""The metadata contract at its borders: the last record of an extent, the older of two pins, the fifth batch."""

from __future__ import annotations

import pytest

from tests.contract.merges import broken, merge, spans
from tests.contract.metadata_worlds import World, Writer, batch, duplicate, new_topic, refused, sent, stored
from tests.fixtures.waiting import until

OUT_OF_ORDER = 45


@pytest.mark.parametrize(
    ("offset", "live"),
    [
        (9, [(0, 9), (10, 19), (20, 29)]),
        (10, [(10, 19), (20, 29)]),
        (11, [(10, 19), (20, 29)]),
        (19, [(10, 19), (20, 29)]),
        (20, [(20, 29)]),
        (29, [(20, 29)]),
        (30, []),
    ],
)
async def test_delete_records_spares_the_extent_of_the_first_record_that_stays(
    world: World, offset: int, live: list[tuple[int, int]]
) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    for _ in range(3):
        await merge(world.service, l0=[(await writer.commit(batch(one, 10))).file_id])

    assert await world.service.agents.delete_records(one, offset) == offset

    assert await spans(world.service, one) == live
    assert await broken(world.service) == []


async def test_of_two_pins_the_older_protects_what_died_between_them(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    between, after = [(await writer.commit(batch(one, 10))).file_id for _ in range(2)]
    await merge(world.service, l0=[between, after])
    older = await world.service.readers.pin("older", ttl_ms=60_000)
    ((_, _, created_ms, _),) = await world.service.operators.pins()

    async def a_while_later() -> bool:
        return await world.service.now_ms() > created_ms + 10

    await until(a_while_later)
    newer = await world.service.readers.pin("newer", ttl_ms=60_000)
    await world.set_death(between, created_ms + 5)
    await world.set_death(after, created_ms + 60_000)

    assert await world.service.deletion.dead_files(grace_ms=-120_000) == []
    await world.service.readers.unpin(older)
    assert [file.file_id for file in await world.service.deletion.dead_files(grace_ms=-120_000)] == [between]
    await world.service.readers.unpin(newer)
    dead = await world.service.deletion.dead_files(grace_ms=-120_000)
    assert [file.file_id for file in dead] == [between, after]


async def test_all_of_the_last_five_batches_of_one_file_are_known_as_duplicates(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    await writer.commit(*(sent(one, 0, number) for number in range(6)))

    again = await writer.commit(*(sent(one, 0, number) for number in range(1, 6)))

    assert list(again.results) == [duplicate(number) for number in range(1, 6)]
    assert list((await writer.commit(sent(one, 0, 0), sent(one, 0, 6))).results) == [refused(OUT_OF_ORDER), stored(6)]


async def test_every_commit_of_a_producer_shows_that_it_is_not_silent(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    await writer.commit(sent(one, 0, 0))
    (first,) = await world.service.agents.producer_states([one])

    async def a_while_later() -> bool:
        return await world.service.now_ms() > first.last_seen_ms + 10

    await until(a_while_later)
    await writer.commit(sent(one, 0, 1))

    (second,) = await world.service.agents.producer_states([one])
    assert second.last_seen_ms > first.last_seen_ms + 10
