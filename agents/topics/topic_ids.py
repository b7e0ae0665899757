"""Topic ids that this agent does not know (KIP-516): it looks for them in the store before it calls them unknown.

A client learns an id from an answer, so the topic was committed before the client asks for it. An agent that has caught
up with the store since and still does not know the id will never know it. Such ids are remembered, the last GONE_MAX of
them, and not looked for again; otherwise a client that clings to a deleted topic would cost a query per request.

Requests that write keep their order. One that names an id which an earlier request is waiting for waits behind it;
otherwise a producer's second batch would be taken in before its first.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from uuid import UUID

from agents.topics.topic_cache import TopicCache
from runtime.errors import SiltstoneError
from wire.schema import ZERO_UUID

LOOK_MS_MAX = 5_000.0
"""Longest wait for the store. A silent store is waited for up to its own time-outs, longer than the client waits."""
GONE_MAX = 1_000
LINE_BYTES_MAX = 16 << 20
"""Bytes of records that wait for a look; a request above the bound is answered at once, with what is known."""


class TopicIds:
    def __init__(self, topic_cache: TopicCache, catch_up: Callable[[], Awaitable[None]]) -> None:
        self._topic_cache = topic_cache
        self._catch_up = catch_up
        self._gone: OrderedDict[UUID, None] = OrderedDict()
        self._line: Counter[UUID] = Counter()
        """How many requests that name an id wait."""
        self._line_bytes = 0
        self._last: asyncio.Future[None] | None = None
        """Done when the last request in line goes on."""
        self._looking: set[asyncio.Task[None]] = set()

    async def look_for(self, topic_ids: Collection[UUID]) -> None:
        """Return when all that can be known of these ids is known. A failure leaves them as they are."""
        unknown = [each for each in topic_ids if self._is_unheard_of(each)]
        if not unknown:
            return
        try:
            async with asyncio.timeout(LOOK_MS_MAX / 1000):
                await self._catch_up()
        except (SiltstoneError, TimeoutError):
            return
        self._gone.update((each, None) for each in unknown if self._topic_cache.topic_by_id(each) is None)
        while len(self._gone) > GONE_MAX:
            self._gone.popitem(last=False)

    def line_up(self, topic_ids: Collection[UUID], records_bytes: int) -> asyncio.Task[None] | None:
        """As `look_for`, for a request that must not be overtaken; None if it may go on at once.

        A caller that waited must go on without waiting again.
        """
        if not any(each in self._line or self._is_unheard_of(each) for each in topic_ids):
            return None
        # The records are in no other bound while they wait here. A first request is always taken, or none could be.
        if self._line and self._line_bytes + records_bytes > LINE_BYTES_MAX:
            return None
        self._line.update(topic_ids)
        self._line_bytes += records_bytes
        before, self._last = self._last, asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._wait_in_line(topic_ids, before), name="topic ids")
        self._looking.add(task)
        # Not at the end of the coroutine: one that is cancelled before it began has none.
        task.add_done_callback(partial(self._leave_line, topic_ids, records_bytes, self._last))
        return task

    async def _wait_in_line(self, topic_ids: Collection[UUID], before: asyncio.Future[None] | None) -> None:
        await self.look_for(topic_ids)
        if before is not None and not before.done():
            # Shielded: the future belongs to the request in front, not to this one.
            await asyncio.shield(before)

    def _leave_line(
        self, topic_ids: Collection[UUID], records_bytes: int, mine: asyncio.Future[None], task: asyncio.Task[None]
    ) -> None:
        self._looking.discard(task)
        self._line_bytes -= records_bytes
        for topic_id in topic_ids:
            self._line[topic_id] -= 1
            if not self._line[topic_id]:
                del self._line[topic_id]
        mine.set_result(None)

    def _is_unheard_of(self, topic_id: UUID) -> bool:
        return self._topic_cache.topic_by_id(topic_id) is None and topic_id not in self._gone and topic_id != ZERO_UUID
