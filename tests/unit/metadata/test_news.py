"""Hints go on after any error of the database, because nobody would notice that they have stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from metadata.contract.errors import MetadataUnavailableError, SchemaMismatchError, WentBackError
from metadata.postgres.connection import UnsafeDatabaseError
from metadata.postgres.log import news
from metadata.postgres.log.news import News
from runtime.clock import SystemClock


class FakeConnection:
    def __init__(self) -> None:
        self.executed: list[str] = []
        self.is_mute = False
        self.listeners: dict[str, Callable[..., None]] = {}

    def is_closed(self) -> bool:
        return False

    def terminate(self) -> None: ...

    async def close(self, timeout: float) -> None: ...

    async def execute(self, statement: str) -> None:
        self.executed.append(statement)
        if self.is_mute:
            await asyncio.Event().wait()

    def add_termination_listener(self, listener: Callable[..., None]) -> None: ...

    async def add_listener(self, channel: str, listener: Callable[..., None]) -> None:
        self.listeners[channel] = listener


class FakeDatabase:
    """The first connection of each application is refused with `error`."""

    def __init__(self, error: Exception) -> None:
        self.clock = SystemClock()
        self._error = error
        self.refused: set[str] = set()
        self.connections: dict[str, FakeConnection] = {}

    async def connect(self, application: str) -> Any:
        if application not in self.refused:
            self.refused.add(application)
            raise self._error
        return self.connections.setdefault(application, FakeConnection())


@pytest.mark.parametrize(
    "error",
    [
        MetadataUnavailableError("away"),
        WentBackError("restored"),
        SchemaMismatchError("too old"),
        UnsafeDatabaseError("not durable"),
    ],
    ids=str,
)
async def test_hints_are_sent_and_heard_again_after_a_connection_was_refused(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news, "LISTEN_AGAIN_MS", 1.0)
    monkeypatch.setattr(news, "INTERVAL_MS", 1.0)
    database: Any = FakeDatabase(error)
    hints = News(database)
    hints.start()
    async with asyncio.timeout(10):
        while "siltstone-notify" not in database.connections:
            await hints.notify()
            await asyncio.sleep(0.002)
        while news.AGENTS not in getattr(database.connections.get("siltstone-listen"), "listeners", {}):
            await asyncio.sleep(0.002)
        while not database.connections["siltstone-notify"].executed:
            await asyncio.sleep(0.002)
    assert database.refused == {"siltstone-notify", "siltstone-listen"}
    heard = asyncio.create_task(hints.wait_for_agents(10_000))
    await asyncio.sleep(0)
    database.connections["siltstone-listen"].listeners[news.AGENTS](None, 1, news.AGENTS, "")
    assert await heard
    await hints.close()


async def test_a_listening_connection_that_no_longer_answers_counts_as_deaf(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(news, "LISTEN_AGAIN_MS", 60_000.0)
    monkeypatch.setattr(news, "LISTEN_CHECK_MS", 100.0)
    monkeypatch.setattr(news, "LISTEN_ANSWER_MS", 20.0)
    database: Any = FakeDatabase(MetadataUnavailableError("away"))
    database.refused.add("siltstone-listen")
    hints = News(database)
    hints.start()
    async with asyncio.timeout(20):
        while not hints.hears_news:
            await asyncio.sleep(0)
        await hints.wait_for_news(60_000)  # the hint with which listening begins
        connection = database.connections["siltstone-listen"]
        while not connection.executed:
            await asyncio.sleep(0.001)
        assert hints.hears_news, "it answered"
        connection.is_mute = True
        # the wait ends, so that the follower polls at its shorter interval
        await hints.wait_for_news(60_000)
        assert not hints.hears_news
    await hints.close()
