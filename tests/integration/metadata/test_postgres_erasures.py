"""Erasures that are requested, advanced and ended at once, in Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from metadata.contract.store import MetadataStore
from metadata.erasures.contract import Erasure, ErasureStage
from metadata.postgres.connection import connect
from metadata.postgres.erasures.erasures import STAMPS_LOCK
from tests.contract.erasing import a_log, delete_dead, erase_file, erasure, mark, request
from tests.contract.metadata_worlds import PostgresWorld

HOUR_MS = 3_600_000


@pytest.fixture
async def world(postgres_url: str) -> AsyncIterator[PostgresWorld]:
    made = PostgresWorld(postgres_url)
    await made.service.open()
    yield made
    await made.close()


async def stamps(service: MetadataStore) -> list[int]:
    return sorted(each.stamp for each in await service.erasures.erasures() if each.stamp is not None)


async def test_whoever_sees_a_stamp_sees_all_smaller_ones(world: PostgresWorld) -> None:
    topic, _ = await a_log(world)
    others = [await world.another() for _ in range(3)]
    requested = asyncio.gather(
        *(request(each, topic, mark(f"{number}", 5)) for number in range(8) for each in others),
    )

    while not requested.done():
        seen = await stamps(world.service)
        assert seen == list(range(1, len(seen) + 1))
        keys = await world.service.erasures.erased_keys(topic.partition_ids)
        assert all(len(each.marks) == each.stamp for each in keys.values())

    await requested
    assert await stamps(world.service) == list(range(1, 25))


async def test_two_compactors_that_advance_at_once_take_one_step(world: PostgresWorld) -> None:
    topic, _ = await a_log(world)
    number = await request(world.service, topic, mark("a", 5), wait_ms=HOUR_MS)
    others = [await world.another() for _ in range(3)]
    await world.age_erasures(HOUR_MS)

    found = await asyncio.gather(*(each.erasures.advance_erasures() for each in others for _ in range(3)))

    expected: Erasure = await erasure(world.service, number)
    assert (expected.stage, expected.stamp) == (ErasureStage.ERASING, 1)
    assert all(each == [expected] for each in found)


async def test_of_two_reports_at_once_one_stays(world: PostgresWorld) -> None:
    topic, (first,) = await a_log(world)
    number = await request(world.service, topic, mark("a", 5))
    await erase_file(world.service, first)
    await delete_dead(world.service)
    other = await world.another()

    await asyncio.gather(
        *(each.erasures.finish_erasure(number, {"by": n}) for n, each in enumerate([world.service, other]))
    )
    found = await erasure(world.service, number)
    await other.erasures.finish_erasure(number, {"by": 2})

    assert found.report["by"] in (0, 1)
    assert found == await erasure(world.service, number)


async def test_without_an_open_erasure_compactors_take_no_lock(world: PostgresWorld) -> None:
    """They ask every few seconds."""
    line = await connect(world.url)
    await line.execute(f"SELECT pg_advisory_lock({STAMPS_LOCK})")

    async with asyncio.timeout(5):
        assert await world.service.erasures.advance_erasures() == []

    await line.close()
