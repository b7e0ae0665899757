"""Looks at the topics in the store: fresh for each request, shared, and paced."""

from __future__ import annotations

import asyncio

import pytest

from agents.topics.present import LOOKS_AT_ONCE, LOOKS_PER_SECOND, PresentTopics
from metadata.contract.errors import MetadataUnavailableError
from runtime.clock import ManualClock


class Store:
    """Each look ends when the test lets it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.looks: list[asyncio.Future[None]] = []
        self.present = PresentTopics(self.catch_up, self.clock)

    async def catch_up(self) -> None:
        self.looks.append(asyncio.get_running_loop().create_future())
        await self.looks[-1]

    def ask(self) -> asyncio.Task[bool]:
        return asyncio.create_task(self.present.see())


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_requests_that_come_together_share_a_look_and_later_ones_get_a_later_look() -> None:
    store = Store()
    together = [store.ask() for _ in range(3)]
    await turns()
    assert len(store.looks) == 1
    # this one came after the look began, which may have read the store before what it asks about was committed
    late = [store.ask() for _ in range(3)]
    await turns()
    store.looks[0].set_result(None)
    assert await asyncio.gather(*together) == [True] * 3
    assert not any(each.done() for each in late)
    assert len(store.looks) == 2
    store.looks[1].set_result(None)
    assert await asyncio.gather(*late) == [True] * 3


async def test_a_look_that_fails_or_takes_too_long_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    asking = store.ask()
    await turns()
    store.looks[0].set_exception(MetadataUnavailableError("away"))
    assert await asking is False
    monkeypatch.setattr("agents.topics.present.LOOK_MS_MAX", 1.0)
    assert await store.ask() is False
    store.looks[1].set_result(None)


async def test_a_client_that_clings_to_a_wrong_name_does_not_hammer_the_store() -> None:
    store = Store()

    async def cling() -> None:
        while True:
            await store.present.see()

    clinging = asyncio.create_task(cling())
    for _ in range(200):
        await turns()
        for look in store.looks:
            if not look.done():
                look.set_result(None)
    # the clock moves only while somebody sleeps on it
    assert len(store.looks) > 3 * LOOKS_AT_ONCE
    assert store.clock.monotonic_ms() >= (len(store.looks) - LOOKS_AT_ONCE) * 1000 / LOOKS_PER_SECOND
    clinging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await clinging
