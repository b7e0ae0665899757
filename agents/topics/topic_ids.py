"""Topics and partitions that Fetch and Produce ask for and this agent does not know (KIP-516): it looks in the store
before it calls them unknown.

A client learns an id from an answer, so the topic was committed before the client asks for it. An agent that has caught
up with the store since and still does not know the id will never know it. Such ids are remembered, the last GONE_MAX of
them, and not looked for again; otherwise a client that clings to a deleted topic would cost a query per request. Names
and partitions may come to exist at any time, so they are looked for at each request; looks are shared and paced
(`agents/topics/present.py`).

Requests that write keep their order. One that names a topic which an earlier request is waiting for waits behind it;
otherwise a producer's second batch would be taken in before its first.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import TypeAlias
from uuid import UUID

from agents.topics.topic_cache import TopicCache
from wire.schema import ZERO_UUID

GONE_MAX = 1_000
LINE_BYTES_MAX = 16 << 20
"""Bytes of records that wait for a look; a request above the bound is answered at once, with what is known."""

Wanted: TypeAlias = "tuple[UUID | str, int]"
"""A topic by id or by name, and the highest partition that is asked for."""


class TopicIds:
    def __init__(self, topic_cache: TopicCache, see: Callable[[], Awaitable[bool]]) -> None:
        """`see`: as `PresentTopics.see`."""
        self._topic_cache = topic_cache
        self._see = see
        self._gone: OrderedDict[UUID, None] = OrderedDict()
        self._line: Counter[UUID | str] = Counter()
        """How many requests that name a topic wait."""
        self._line_bytes = 0
        self._last: asyncio.Future[None] | None = None
        """Done when the last request in line goes on."""
        self._looking: set[asyncio.Task[bool]] = set()

    async def look_for(self, wanted: Collection[Wanted]) -> bool:
        """True: all is known that can be known; what is missing does not exist. False: the store did not say."""
        unknown = [each for each in wanted if self._is_unheard_of(each)]
        if not unknown:
            return True
        if not await self._see():
            return False
        for key, _ in unknown:
            if isinstance(key, UUID) and self._topic_cache.topic_by_id(key) is None:
                self._gone[key] = None
        while len(self._gone) > GONE_MAX:
            self._gone.popitem(last=False)
        return True

    def line_up(self, wanted: Collection[Wanted], records_bytes: int) -> asyncio.Task[bool] | bool:
        """As `look_for`, for a request that must not be overtaken.

        Not a task: the request may go on at once; False if there is no room for it in the line. A caller that waited
        must go on without waiting again.
        """
        if not any(each[0] in self._line or self._is_unheard_of(each) for each in wanted):
            return True
        # The records are in no other bound while they wait here. A first request is always taken, or none could be.
        if self._line and self._line_bytes + records_bytes > LINE_BYTES_MAX:
            return False
        keys = [key for key, _ in wanted]
        self._line.update(keys)
        self._line_bytes += records_bytes
        before, self._last = self._last, asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._wait_in_line(wanted, before), name="unknown topics")
        self._looking.add(task)
        # Not at the end of the coroutine: one that is cancelled before it began has none.
        task.add_done_callback(partial(self._leave_line, keys, records_bytes, self._last))
        return task

    async def _wait_in_line(self, wanted: Collection[Wanted], before: asyncio.Future[None] | None) -> bool:
        seen = await self.look_for(wanted)
        if before is not None and not before.done():
            # Shielded: the future belongs to the request in front, not to this one.
            await asyncio.shield(before)
        return seen

    def _leave_line(
        self,
        keys: Collection[UUID | str],
        records_bytes: int,
        mine: asyncio.Future[None],
        task: asyncio.Task[bool],
    ) -> None:
        self._looking.discard(task)
        self._line_bytes -= records_bytes
        for key in keys:
            self._line[key] -= 1
            if not self._line[key]:
                del self._line[key]
        mine.set_result(None)

    def _is_unheard_of(self, wanted: Wanted) -> bool:
        key, highest = wanted
        if isinstance(key, str):
            topic = self._topic_cache.topic(key)
        elif key in self._gone or key == ZERO_UUID:
            return False
        else:
            topic = self._topic_cache.topic_by_id(key)
        return topic is None or highest >= len(topic.partition_ids)
