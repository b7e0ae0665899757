"""Hints between followers, and between agents, by LISTEN and NOTIFY on connections of their own.

A NOTIFY inside the commit would take a lock that serialises the flushes of all commits. So one task sends the hints
after the commits, at most 20 times a second, without a flush. A hint may be lost; followers also poll.

Followers poll seldom while hints come (`hears_news`). So the end of the listening connection and the beginning of a new
one both wake them. A connection that brought nothing for LISTEN_CHECK_MS is asked for an answer: firewalls forget quiet
connections and tell neither side.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from metadata.contract.errors import MetadataUnavailableError
from metadata.memory.hints import Hint
from metadata.postgres.connection import CONNECTION_ERRORS, Database, DedicatedConnection
from metadata.postgres.driver import Connection
from runtime.logging import get_logger

_log = get_logger(__name__)

NEWS = "siltstone_news"
AGENTS = "siltstone_agents"
INTERVAL_MS = 50.0
LISTEN_AGAIN_MS = 1000.0
"""Pause before a lost listening connection is made again; followers poll meanwhile."""
LISTEN_CHECK_MS = 10_000.0
LISTEN_ANSWER_MS = 5_000.0
"""A listening connection that does not answer for this long counts as lost."""


class News:
    """Part of `PostgresAgents`. `PostgresCompactors` sends its hints through it, too."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._heard = {channel: Hint(database.clock) for channel in (NEWS, AGENTS)}
        self._to_send: set[str] = set()
        self._any_to_send = asyncio.Event()
        self.hears_news = False
        """See `AgentMetadata.hears_news`."""
        self._heard_ms = float("-inf")
        """When the listening connection last brought anything."""
        self._line = DedicatedConnection(database, "siltstone-notify")
        self._listener: Connection | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._send())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self._drop_listener()
        await self._line.close()

    async def notify(self) -> None:
        self._send_soon(NEWS)

    async def wait_for_news(self, timeout_ms: float) -> None:
        await self._heard[NEWS].wait(timeout_ms)

    async def announce_agents(self) -> None:
        self._send_soon(AGENTS)

    async def wait_for_agents(self, timeout_ms: float) -> bool:
        return await self._heard[AGENTS].wait(timeout_ms)

    def _send_soon(self, channel: str) -> None:
        self._to_send.add(channel)
        self._any_to_send.set()

    async def _send(self) -> None:
        while True:
            await self._any_to_send.wait()
            self._any_to_send.clear()  # before the set is read: a hint that comes during the send wakes us again
            hints = "; ".join(f"NOTIFY {channel}" for channel in sorted(self._to_send))
            self._to_send.clear()
            try:
                async with self._line.lock:
                    connection = await self._line.get()
                    # Off for this session alone: a hint needs no flush, and nothing else is written here.
                    await connection.execute(f"SET synchronous_commit = off; {hints}")
            except Exception as error:
                _report(error)
                self._line.drop()  # a lost hint costs others the time to their next poll
            # Hints that come meanwhile go together: NOTIFY takes a lock that all databases of the server share.
            await asyncio.sleep(INTERVAL_MS / 1000)

    async def _listen(self) -> None:
        while True:
            try:
                listener = self._listener = await self._database.connect("siltstone-listen")
                ended = asyncio.Event()
                listener.add_termination_listener(partial(_set, ended))
                for channel in self._heard:
                    await listener.add_listener(channel, self._on_hint)
                self.hears_news = True
                for hint in self._heard.values():  # the hints of the time before are lost
                    hint.give()
                await self._until_deaf(listener, ended)
            except Exception as error:
                _report(error)
            self._drop_listener()
            if self.hears_news:
                self.hears_news = False
                self._heard[NEWS].give()
            await asyncio.sleep(LISTEN_AGAIN_MS / 1000)

    async def _until_deaf(self, listener: Connection, ended: asyncio.Event) -> None:
        """Return, or raise one of CONNECTION_ERRORS, once the connection brings no hints any more."""
        clock = self._database.clock
        self._heard_ms = clock.monotonic_ms()
        while not ended.is_set():
            check_ms = self._heard_ms + LISTEN_CHECK_MS - clock.monotonic_ms()
            if check_ms > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(check_ms / 1000):
                        await ended.wait()
                continue
            async with asyncio.timeout(LISTEN_ANSWER_MS / 1000):
                await listener.execute("SELECT 1")
            self._heard_ms = clock.monotonic_ms()

    def _drop_listener(self) -> None:
        if self._listener is not None and not self._listener.is_closed():
            self._listener.terminate()

    def _on_hint(self, _connection: object, _pid: object, channel: str, _payload: object) -> None:
        self._heard_ms = self._database.clock.monotonic_ms()
        self._heard[channel].give()


def _set(event: asyncio.Event, *_: object) -> None:
    event.set()


def _report(error: Exception) -> None:
    # A lost connection is ordinary. Any other error also fails the process's own calls, and they decide whether it
    # halts. The tasks here go on, because nobody would notice their end.
    if not isinstance(error, (*CONNECTION_ERRORS, MetadataUnavailableError)):
        _log.warning("hints failed, trying again", error=str(error))
