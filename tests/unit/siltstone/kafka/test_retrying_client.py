"""The connection of a client that repeats requests."""

from __future__ import annotations

import pytest

from runtime.clock import ManualClock
from siltstone.kafka.client import ConnectionLostError, KafkaClient
from siltstone.kafka.retrying import RetryingClient


class Forgetful:
    """An agent's connection that breaks at the first request."""

    is_closed = False

    async def metadata(self, _topics: object) -> None:
        raise ConnectionLostError("the agent closed the connection")

    async def close(self) -> None:
        self.is_closed = True


async def test_a_connection_that_breaks_before_it_is_used_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = Forgetful()

    async def connect(_bootstrap: str) -> Forgetful:
        return connection

    monkeypatch.setattr(KafkaClient, "connect", connect)
    with pytest.raises(ConnectionLostError):
        async with RetryingClient("agent:9092", ManualClock()):
            pass
    assert connection.is_closed
