"""A look at the topics in the store, before an answer says that a topic or a partition does not exist.

An agent hears of topics by polling, so its memory proves that a topic was there, and never that there is none. Another
agent may have created it a moment ago, for a client that created it by asking for it too. The follower may not have
reached the store for a while: its connection is being made again, its cursor fell behind and a snapshot is being read,
or the store is busy. If the look fails, the answer is an error after which clients ask again.

Requests share looks. One that comes during a look waits for the next, which begins later. A client that clings to a
wrong name cannot make the agent ask the store more often than LOOKS_PER_SECOND.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context
from typing import Protocol

from agents.topics.rules import RequestError
from agents.topics.topic_cache import TopicCache
from agents.yielding import LoopYielder
from runtime.clock import Clock
from runtime.errors import SiltstoneError
from wire.error_codes import ErrorCode

LOOK_MS_MAX = 5_000.0
"""Longest wait for the store. A silent store is waited for up to its own time-outs, longer than the client waits."""
LOOKS_PER_SECOND = 20
"""As often as hints make the follower poll at most."""
LOOKS_AT_ONCE = 10
"""Looks that go ahead without a pause after a quiet time."""
_PAUSE_MS = 1000 / LOOKS_PER_SECOND


class PresentTopics:
    def __init__(self, catch_up: Callable[[], Awaitable[None]], clock: Clock) -> None:
        self._catch_up = catch_up
        self._clock = clock
        self._next: asyncio.Task[None] | None = None
        """The look that has not begun yet."""
        self._due_ms = float("-inf")

    async def see(self) -> bool:
        """True: the topic cache now holds all that was committed before this call. False: the store did not say."""
        if self._next is None:
            # In a context of its own: the log lines of a shared look belong to no request.
            self._next = asyncio.create_task(self._look(), name="look for topics", context=Context())
        try:
            async with asyncio.timeout(LOOK_MS_MAX / 1000):
                await asyncio.shield(self._next)
        except (SiltstoneError, TimeoutError):
            return False
        return True

    async def _look(self) -> None:
        now_ms = self._clock.monotonic_ms()
        begins_ms = max(self._due_ms, now_ms - (LOOKS_AT_ONCE - 1) * _PAUSE_MS)
        self._due_ms = begins_ms + _PAUSE_MS
        if begins_ms > now_ms:
            await self._clock.sleep_ms(begins_ms - now_ms)
        self._next = None
        await self._catch_up()


class _HasTopics(Protocol):
    @property
    def topic_cache(self) -> TopicCache: ...
    @property
    def present_topics(self) -> PresentTopics: ...


def has_partition(topic_cache: TopicCache, name: str, number: int) -> bool:
    topic = topic_cache.topic(name)
    return topic is not None and 0 <= number < len(topic.partition_ids)


async def look_for(broker: _HasTopics, places: Iterable[tuple[str, int]]) -> bool:
    """Look if one of these partitions is not known. True: those that are still not known do not exist."""
    async for name, number in LoopYielder().through(places):
        if not has_partition(broker.topic_cache, name, number):
            return await broker.present_topics.see()
    return True


def not_there(what: str, *, seen: bool) -> RequestError:
    """The error about something that memory lacks, after a look that was successful (`seen`) or not."""
    if seen:
        return RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {what}")
    return RequestError(
        ErrorCode.REQUEST_TIMED_OUT, f"the metadata store did not say in time whether there is a {what}; try again"
    )
