"""How long one request waits for records that are not at hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeAlias, TypeVar

WAIT_AT_HAND_MS = 250.0
"""How long records at hand wait for others that must come from the store."""

News: TypeAlias = Callable[[], Awaitable[bool]]
"""Returns True when records have come that the answer cannot hold any more, so that it should leave soon."""

T = TypeVar("T")


class WaitBound:
    """The wait of one request. `news` is listened to as long as the request waits."""

    def __init__(self, news: News | None) -> None:
        self._news = news
        self._heard: asyncio.Future[bool] | None = None

    async def wait(
        self, tasks: Collection[asyncio.Task[T]], *, at_hand: bool, puts_at_hand: Callable[[asyncio.Task[T]], bool]
    ) -> None:
        """Return when all tasks are done, or WAIT_AT_HAND_MS after something is at hand: at the start, by a task, or by
        news."""
        waiting: set[asyncio.Future[Any]] = {task for task in tasks if not task.done()}
        unseen = list(tasks)
        # Listened to once for all waits of the request: news during an earlier wait must not be lost.
        if self._heard is None and self._news is not None:
            self._heard = asyncio.ensure_future(self._news())
        while waiting and not at_hand:
            heard = {self._heard} if self._heard is not None and not self._heard.done() else set[asyncio.Future[Any]]()
            await asyncio.wait(waiting | heard, return_when=asyncio.FIRST_COMPLETED)
            at_hand = self._heard is not None and self._heard.done() and self._heard.result()
            at_hand = at_hand or any(task.done() and puts_at_hand(task) for task in unseen)
            unseen = [task for task in unseen if not task.done()]
            waiting = {task for task in waiting if not task.done()}
        if waiting:
            await asyncio.wait(waiting, timeout=WAIT_AT_HAND_MS / 1000)

    def close(self) -> None:
        if self._heard is not None:
            self._heard.cancel()
