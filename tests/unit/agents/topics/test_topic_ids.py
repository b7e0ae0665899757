"""Unknown topics and partitions: an id is looked up once. The requests that wait for it stay in their order."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

from agents.topics.topic_cache import TopicCache
from agents.topics.topic_ids import GONE_MAX, LINE_BYTES_MAX, TopicIds
from metadata.contract.topics import Topic
from wire.schema import ZERO_UUID

KNOWN, NEW, OTHER = UUID(int=1), UUID(int=2), UUID(int=3)


class Store:
    """The store with which an agent catches up. Each look-up ends when the test lets it."""

    def __init__(self) -> None:
        self.topic_cache = TopicCache()
        self.topics = [self.topic(KNOWN)]
        self.topic_cache.load(self.topics)
        self.looks: list[asyncio.Future[bool]] = []
        self.ids = TopicIds(self.topic_cache, self.see)

    @staticmethod
    def topic(topic_id: UUID) -> Topic:
        return Topic(topic_id=topic_id, name=str(topic_id), partition_ids=(topic_id.int,), configs={}, created_ms=0)

    def learn(self, topic_id: UUID) -> None:
        self.topics.append(self.topic(topic_id))
        self.topic_cache.load(self.topics)

    async def see(self) -> bool:
        look = asyncio.get_running_loop().create_future()
        self.looks.append(look)
        return await look


async def test_known_ids_and_no_id_at_all_are_not_looked_for() -> None:
    store = Store()
    await store.ids.look_for([(KNOWN, 0), (ZERO_UUID, 0), (str(KNOWN), 0)])
    assert store.ids.line_up([(KNOWN, 0), (ZERO_UUID, 0), (str(KNOWN), 0)], 10) is True
    assert store.looks == []


async def test_an_id_that_the_store_does_not_know_is_looked_for_once() -> None:
    store = Store()
    for _ in range(2):
        looking = asyncio.create_task(store.ids.look_for([(NEW, 0)]))
        await asyncio.sleep(0)
        if store.looks and not store.looks[0].done():
            store.looks[0].set_result(True)
        await looking
    assert len(store.looks) == 1
    assert store.ids.line_up([(NEW, 0)], 10) is True


async def test_an_id_is_looked_for_again_after_a_look_that_failed() -> None:
    store = Store()
    for number in range(2):
        looking = asyncio.create_task(store.ids.look_for([(NEW, 0)]))
        await asyncio.sleep(0)
        store.looks[number].set_result(False)
        assert await looking is False
    assert len(store.looks) == 2


async def test_what_is_gone_is_remembered_up_to_a_bound() -> None:
    store = Store()
    strangers = [uuid4() for _ in range(GONE_MAX + 5)]
    looking = asyncio.create_task(store.ids.look_for([(each, 0) for each in strangers]))
    await asyncio.sleep(0)
    store.looks[0].set_result(True)
    await looking
    assert len(store.ids._gone) == GONE_MAX


async def test_nobody_overtakes_who_waits_for_the_same_id() -> None:
    store = Store()
    order: list[str] = []

    async def write(name: str, waits: asyncio.Task[bool] | bool) -> None:
        if isinstance(waits, asyncio.Task):
            await waits
        order.append(name)

    writes = [asyncio.create_task(write("first", store.ids.line_up([(NEW, 0)], 10)))]
    await asyncio.sleep(0)
    # given: the agent has heard of the topic, and its look-up is not over
    store.learn(NEW)
    writes.append(asyncio.create_task(write("second", store.ids.line_up([(NEW, 0), (KNOWN, 0)], 10))))
    for _ in range(5):
        await asyncio.sleep(0)
    assert order == []
    # and: a third one comes in the very moment in which the first may go on
    store.looks[0].set_result(True)
    while not order:
        writes.append(asyncio.create_task(write(f"later {len(writes)}", store.ids.line_up([(NEW, 0)], 10))))
        await asyncio.sleep(0)
    await asyncio.gather(*writes)
    assert order[:2] == ["first", "second"]
    assert order[2:] == [f"later {number}" for number in range(2, len(writes))]
    assert (dict(store.ids._line), store.ids._line_bytes) == ({}, 0)
    assert store.ids.line_up([(NEW, 0)], 10) is True


async def test_a_request_for_another_topic_goes_on_at_once() -> None:
    store = Store()
    assert isinstance(store.ids.line_up([(NEW, 0)], 10), asyncio.Task)
    assert store.ids.line_up([(KNOWN, 0)], 10) is True


async def test_who_gives_up_before_it_began_leaves_the_line() -> None:
    store = Store()
    first, second = store.ids.line_up([(NEW, 0)], 10), store.ids.line_up([(NEW, 0)], 10)
    assert isinstance(first, asyncio.Task) and isinstance(second, asyncio.Task)
    first.cancel()
    store.learn(NEW)
    await second
    await asyncio.sleep(0)
    assert (dict(store.ids._line), store.ids._line_bytes) == ({}, 0)


async def test_the_records_that_wait_are_bounded_and_one_request_always_may() -> None:
    store = Store()
    assert isinstance(store.ids.line_up([(NEW, 0)], LINE_BYTES_MAX + 1), asyncio.Task)
    assert store.ids.line_up([(NEW, 0)], 1) is False, "answered at once, and not that the topic does not exist"
    assert store.ids.line_up([(OTHER, 0)], 1) is False


async def test_a_name_and_a_partition_beyond_the_last_are_looked_for_every_time() -> None:
    store = Store()
    for number, wanted in enumerate([("new", 0), (str(KNOWN), 1), (KNOWN, 1), (KNOWN, 1), ("new", 0)]):
        looking = asyncio.create_task(store.ids.look_for([wanted]))
        await asyncio.sleep(0)
        store.looks[number].set_result(True)
        assert await looking is True
    assert await store.ids.look_for([(KNOWN, 0)]) is True
    assert len(store.looks) == 5
