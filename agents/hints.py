"""Hints to the other agents that this one has committed a file. A lost hint only costs them a poll interval."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from metadata.contract.agents import AgentMetadata
from metadata.contract.errors import MetadataUnavailableError
from runtime.logging import get_logger

_log = get_logger(__name__)


class Hints:
    def __init__(self, metadata: AgentMetadata, *, has_others: Callable[[], bool]) -> None:
        self._metadata = metadata
        self._has_others = has_others
        self._tasks: set[asyncio.Task[None]] = set()

    def soon(self) -> None:
        """In a task: the clients of the commit do not wait for it."""
        if self._has_others():
            hint = asyncio.create_task(self._hint(), name="hint")
            self._tasks.add(hint)
            hint.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _hint(self) -> None:
        try:
            await self._metadata.notify()
        except MetadataUnavailableError as error:
            _log.debug("others not hinted; they poll", error=str(error))
