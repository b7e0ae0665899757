"""When the follower polls: on hints, but not too often; seldom while hints come, and soon when they do not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from agents.tail import follower as module
from agents.tail.follower import ERROR_BACKOFF_MS, HINT_INTERVAL_MS, QUIET_POLL_MS, Follower, FollowerCallbacks
from agents.tail.log_index import LogIndex
from agents.tail.waiters import ParkedReaders
from agents.topics.topic_cache import TopicCache
from metadata.contract.agents import AgentMetadata
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.tail import Cursor, Tail
from metadata.memory.store import MemoryMetadata
from runtime.clock import Clock, ManualClock, SystemClock
from runtime.runtime import Runtime
from tests.fixtures.metadata_parts import Part
from tests.fixtures.waiting import until

POLL_MS = 100.0


class Scripted(Part):
    """Each wait for news ends at the next of `hints_ms` after its beginning, or with its time-out (None). Behind the
    last one the follower waits for ever. Time moves only by waits and sleeps."""

    def __init__(self, inner: AgentMetadata, clock: ManualClock, hints_ms: Sequence[float | None]) -> None:
        super().__init__(inner)
        self._clock, self._hints_ms = clock, list(hints_ms)
        self.hears = True
        self.failures = 0
        self.polled_ms: list[float] = []
        self.ended = asyncio.Event()
        self.on_wait: Callable[[], None] = lambda: None

    def hears_news(self) -> bool:
        return self.hears

    async def wait_for_news(self, timeout_ms: float) -> None:
        if not self._hints_ms:
            self.ended.set()
            await asyncio.Event().wait()
        hint_ms = self._hints_ms.pop(0)
        assert hint_ms is None or hint_ms <= timeout_ms
        self._clock.advance_ms(timeout_ms if hint_ms is None else hint_ms)
        self.on_wait()

    async def tail(self, cursor: Cursor) -> Tail:
        self.polled_ms.append(self._clock.monotonic_ms())
        if self.failures:
            self.failures -= 1
            raise MetadataUnavailableError("away")
        return await self.inner.tail(cursor)


def follower_of(metadata: Part, clock: Clock) -> Follower:
    return Follower(
        metadata=metadata,  # type: ignore[arg-type]
        topic_cache=TopicCache(),
        index=LogIndex(),
        parked_readers=ParkedReaders(),
        poll_ms=POLL_MS,
        callbacks=FollowerCallbacks(on_fatal=_fail),
        runtime=Runtime(clock=clock),
    )


def _fail(error: Exception) -> None:
    raise AssertionError(error)


async def polls(
    *hints_ms: float | None, hears: bool = True, failures: int = 0, deaf_after: int | None = None
) -> list[float]:
    """When the follower polled, in ms since its start."""
    clock = ManualClock()
    metadata = Scripted(MemoryMetadata().agents, clock, hints_ms)
    metadata.hears, metadata.failures = hears, failures

    def on_wait() -> None:
        if deaf_after is not None and len(metadata.polled_ms) >= deaf_after:
            metadata.hears = False

    metadata.on_wait = on_wait
    follower = follower_of(metadata, clock)
    await follower.start()
    async with asyncio.timeout(20):
        await metadata.ended.wait()
    await follower.stop()
    return metadata.polled_ms


async def test_hints_without_end_make_one_poll_an_interval() -> None:
    assert await polls(0, 0, 0, 0) == [0, HINT_INTERVAL_MS, 2 * HINT_INTERVAL_MS, 3 * HINT_INTERVAL_MS]


async def test_the_first_hint_after_a_quiet_time_is_served_at_once() -> None:
    assert await polls(0, 700, 0) == [0, 700 + HINT_INTERVAL_MS, 700 + 2 * HINT_INTERVAL_MS]


async def test_without_a_hint_it_polls_each_second_while_hints_reach_us_and_at_the_setting_otherwise() -> None:
    assert await polls(0, None, None) == [0, QUIET_POLL_MS, 2 * QUIET_POLL_MS]
    assert await polls(0, None, None, hears=False) == [0, POLL_MS, 2 * POLL_MS]


async def test_when_hints_stop_reaching_us_the_next_poll_comes_soon() -> None:
    # the store ends the wait, and says that it is deaf
    assert await polls(0, 300, None, deaf_after=1) == [0, 300 + HINT_INTERVAL_MS, 300 + HINT_INTERVAL_MS + POLL_MS]


async def test_a_poll_that_failed_is_repeated_soon_though_no_hint_comes() -> None:
    assert await polls(0, None, failures=2) == [
        0,
        ERROR_BACKOFF_MS,
        2 * ERROR_BACKOFF_MS,
        2 * ERROR_BACKOFF_MS + QUIET_POLL_MS,
    ]


async def test_who_must_see_the_present_is_not_held_up_by_the_interval() -> None:
    clock = ManualClock()
    metadata = Scripted(MemoryMetadata().agents, clock, [0])
    follower = follower_of(metadata, clock)
    await follower.start()
    await metadata.ended.wait()
    now_ms = clock.monotonic_ms()
    await follower.catch_up()
    await follower.catch_up()
    assert metadata.polled_ms[-2:] == [now_ms, now_ms]
    await follower.stop()


class Slow(Part):
    """Answers polls when the gate is open; nobody polls by himself."""

    def __init__(self, inner: AgentMetadata) -> None:
        super().__init__(inner)
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = self.answered = 0

    async def tail(self, cursor: Cursor) -> Tail:
        self.asked += 1
        answer = await self.inner.tail(cursor)
        await self.gate.wait()
        self.answered += 1
        return answer


async def test_a_hint_during_a_poll_or_the_rest_after_it_makes_one_more_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUIET_POLL_MS", 3_600_000.0)
    store = MemoryMetadata()
    await store.open()
    metadata = Slow(store.agents)
    follower = follower_of(metadata, SystemClock())
    await follower.start()
    # given a poll under way, which read the store before the change
    metadata.gate.clear()
    await store.agents.notify()
    await until(lambda: metadata.asked == 1)
    await store.agents.create_topic("t", partitions=1, configs={})
    await store.agents.notify()
    # when it ends
    metadata.gate.set()
    # then the hint that came meanwhile is served
    await until(lambda: follower._topic_cache.topic("t") is not None)
    assert metadata.asked == metadata.answered == 2
    # and of the rest behind a poll the same is true
    monkeypatch.setattr(module, "HINT_INTERVAL_MS", 2_000.0)
    await store.agents.notify()
    await until(lambda: metadata.answered == 3)
    await store.agents.create_topic("u", partitions=1, configs={})
    for _ in range(3):
        await store.agents.notify()
        await asyncio.sleep(0.01)
    await until(lambda: follower._topic_cache.topic("u") is not None)
    assert metadata.asked == 4
    await follower.stop()
    await store.close()
