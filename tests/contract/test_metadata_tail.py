"""The metadata contract: followers, their cursors, snapshots and hints."""

from __future__ import annotations

import asyncio

from metadata.contract.agents import each_live_file
from metadata.contract.files import FileState
from metadata.contract.store import MetadataStore
from metadata.contract.tail import ChangeKind, Cursor
from tests.contract.metadata_worlds import World, Writer, batch, new_topic
from tests.fixtures.waiting import until


async def test_the_tail_gives_every_file_once_in_file_id_order(world: World) -> None:
    writers = [await Writer.register(world.service, port) for port in (9092, 9093)]
    (one,) = (await new_topic(world.service)).partition_ids
    committed = [await writers[n % 2].commit(batch(one)) for n in range(4)]

    first = await world.service.agents.tail(Cursor())
    committed.append(await writers[0].commit(batch(one)))
    second = await world.service.agents.tail(first.cursor)
    third = await world.service.agents.tail(second.cursor)

    assert [file.file_id for file in [*first.files, *second.files]] == [file.file_id for file in committed]
    assert [file.index for file in [*first.files, *second.files]] == [file.index for file in committed]
    assert (list(third.files), list(third.changes), third.cold) == ([], [], False)


async def test_the_tail_never_waits_for_a_missing_seq(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    await writer.commit(batch(one))
    writer.seq += 10
    await writer.commit(batch(one))

    seen = await world.service.agents.tail(Cursor())

    assert [file.seq for file in seen.files] == [1, 12]
    assert seen.cursor.writers == {writer.lease.writer_id: (writer.lease.epoch, 12)}


async def test_the_tail_sees_files_that_were_merged_or_deleted_before_it_looked(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    files = [await writer.commit(batch(one)) for _ in range(3)]
    await world.set_state(files[0].file_id, FileState.DEAD)
    await world.set_state(files[1].file_id, FileState.DELETED)

    seen = await world.service.agents.tail(Cursor())

    assert [file.file_id for file in seen.files] == [file.file_id for file in files]


async def test_the_tail_follows_a_writer_into_its_new_epoch(world: World) -> None:
    old = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    await old.commit(batch(one))
    await old.commit(batch(one))
    cursor = (await world.service.agents.tail(Cursor())).cursor
    new = await Writer.register(world.service, instead_of=old.lease)
    later = await new.commit(batch(one))

    seen = await world.service.agents.tail(cursor)

    assert [file.file_id for file in seen.files] == [later.file_id]


async def test_a_snapshot_and_the_tail_after_it_lose_nothing_and_repeat_nothing(world: World) -> None:
    writer = await Writer.register(world.service)
    topic = await new_topic(world.service)
    (one,) = topic.partition_ids
    files = [await writer.commit(batch(one)) for _ in range(3)]
    await world.set_state(files[1].file_id, FileState.DEAD)
    snapshot = await world.service.agents.snapshot()
    later = await writer.commit(batch(one))
    grown = await world.service.agents.create_partitions(topic.topic_id, 2)

    seen = await world.service.agents.tail(snapshot.cursor)

    live = [file async for file in each_live_file(world.service.agents, snapshot)]
    assert [file.file_id for file in live] == [files[0].file_id, files[2].file_id]
    assert list(snapshot.topics) == [topic]
    assert [mark.high_watermark for mark in snapshot.watermarks] == [3]
    assert [file.file_id for file in seen.files] == [later.file_id]
    assert [change.kind for change in seen.changes] == [ChangeKind.PARTITIONS_ADDED]
    assert seen.changes[0].detail["partition_ids"] == list(grown.partition_ids)


async def test_the_files_of_a_snapshot_come_in_slices_by_id_and_none_that_lie_behind_it(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    files = [await writer.commit(batch(one)) for _ in range(5)]
    snapshot = await world.service.agents.snapshot()
    later = await writer.commit(batch(one))

    first = await world.service.agents.live_files(snapshot, 0)
    await world.set_state(files[3].file_id, FileState.DEAD)
    rest = await world.service.agents.live_files(snapshot, files[1].file_id)
    none = await world.service.agents.live_files(snapshot, files[4].file_id)

    assert snapshot.last_file_id == files[4].file_id < later.file_id
    assert [(file.file_id, file.index, file.live) for file in first] == [
        (file.file_id, file.index, True) for file in files
    ]
    assert [file.file_id for file in rest] == [files[2].file_id, files[4].file_id]
    assert list(none) == []


async def test_a_cursor_older_than_the_changes_kept_starts_cold(world: World) -> None:
    old = (await world.service.agents.snapshot()).cursor
    await new_topic(world.service)
    await world.forget_rows()

    assert (await world.service.agents.tail(old)).cold
    assert not (await world.service.agents.tail((await world.service.agents.snapshot()).cursor)).cold


async def test_a_cursor_older_than_the_files_kept_starts_cold(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    await world.forget_rows()
    old = (await world.service.agents.snapshot()).cursor
    file = await writer.commit(batch(one))
    await writer.commit(batch(one))
    current = (await world.service.agents.tail(old)).cursor
    await world.set_state(file.file_id, FileState.DELETED)
    await world.forget_rows()

    assert (await world.service.agents.tail(old)).cold
    assert not (await world.service.agents.tail(current)).cold
    assert not (await world.service.agents.tail((await world.service.agents.snapshot()).cursor)).cold


async def test_changes_are_seen_once_and_in_order_by_a_follower_amid_many_writers(world: World) -> None:
    services = [world.service, *[await world.another() for _ in range(3)]]
    follower = await world.another()
    seen: list[int] = []
    names: list[str] = []

    async def create(service_number: int) -> None:
        for n in range(8):
            await new_topic(services[service_number], f"t-{service_number}-{n}")

    writing = asyncio.gather(*(create(n) for n in range(4)))
    cursor = Cursor()
    while len(seen) < 32:
        done = writing.done()
        tail = await follower.agents.tail(cursor)
        seen += [change.change_id for change in tail.changes]
        names += [change.detail["name"] for change in tail.changes]
        cursor = tail.cursor
        assert not done or tail.changes, f"a change was lost: {sorted(names)}"
        await asyncio.sleep(0)
    await writing

    assert seen == sorted(set(seen))
    assert sorted(names) == sorted(f"t-{service}-{n}" for service in range(4) for n in range(8))


async def test_news_wakes_a_follower_of_the_same_store(world: World) -> None:
    other = await _listening(world)

    async def hint() -> None:
        while True:
            await world.service.agents.notify()
            await asyncio.sleep(0.02)

    hints = asyncio.create_task(hint())
    try:
        await asyncio.wait_for(other.agents.wait_for_news(60_000), timeout=20)
    finally:
        hints.cancel()


async def test_a_hint_that_comes_while_nobody_waits_ends_the_next_wait(world: World) -> None:
    other = await _listening(world)
    await world.service.agents.notify()
    await asyncio.sleep(0.1)  # it mostly comes in this time
    await asyncio.wait_for(other.agents.wait_for_news(60_000), timeout=20)


async def _listening(world: World) -> MetadataStore:
    """Another service that hears hints, and has heard the one with which listening begins."""
    other = await world.another()
    await until(other.agents.hears_news)
    await other.agents.wait_for_news(200)
    return other


async def test_waiting_for_news_ends_with_its_timeout(world: World) -> None:
    await asyncio.wait_for(world.service.agents.wait_for_news(10), timeout=20)


async def test_who_waits_for_agents_is_woken_by_an_announcement_and_not_by_news(world: World) -> None:
    other = await world.another()
    await other.agents.wait_for_agents(200)  # gives it time to begin to listen
    heard: list[bool] = []

    async def announce() -> None:
        while not heard:
            await world.service.agents.announce_agents()
            await asyncio.sleep(0.02)

    announcing = asyncio.create_task(announce())
    try:
        heard.append(await asyncio.wait_for(other.agents.wait_for_agents(60_000), timeout=20))
    finally:
        announcing.cancel()
    assert heard == [True]
    # two announcements are one hint, and news comes behind those that are under way
    await other.agents.wait_for_news(0)
    await world.service.agents.notify()
    await other.agents.wait_for_news(20_000)
    await other.agents.wait_for_agents(0)
    # news is no announcement
    await world.service.agents.notify()
    assert not await other.agents.wait_for_agents(300)
