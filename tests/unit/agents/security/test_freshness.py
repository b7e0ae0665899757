"""When requests wait because rights may have been taken away without our knowledge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from agents.request_context import ClientConnection
from agents.security.freshness import MARGIN_MS, WAIT_MS_MAX, Freshness
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.leases import LEASE_MS
from tests.unit.agents.security.test_known import StandingClock

ANN, ROOT = ClientConnection(1, "127.0.0.1:1"), ClientConnection(2, "127.0.0.1:2")
RUNS_MS = LEASE_MS - MARGIN_MS


class Store:
    """A lease, and knowledge, as membership and the follower keep them."""

    def __init__(self, clock: StandingClock) -> None:
        self.clock = clock
        self.beat_ms = self.lapsed_ms = self.heard_ms = clock.monotonic_ms()
        self.asked: list[str] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.is_away = False
        self.news = 0
        self.freshness = Freshness(
            lease=self, knowledge=self, catch_up=self.catch_up, binds=lambda client: client is ANN, clock=clock
        )
        self.freshness.on_news = self.tell

    def tell(self) -> None:
        self.news += 1

    async def beat(self) -> None:
        await self._asked("beat")
        if self.clock.monotonic_ms() - self.beat_ms > LEASE_MS:
            self.lapsed_ms = self.clock.monotonic_ms()
        self.beat_ms = self.clock.monotonic_ms()

    async def catch_up(self) -> None:
        sent_ms = self.clock.monotonic_ms()
        await self._asked("catch up")
        self.heard_ms = sent_ms

    async def _asked(self, what: str) -> None:
        self.asked.append(what)
        await self.answers.wait()
        if self.is_away:
            raise MetadataUnavailableError("away")

    def holds(self, client: ClientConnection) -> bool:
        return self.freshness.holds(client, self.clock.monotonic_ms())

    async def until(self, *, news: int) -> None:
        async with asyncio.timeout(30):
            while self.news < news:
                await asyncio.sleep(0.001)
                self.clock.advance_ms(1)


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    made = Store(StandingClock())
    yield made
    await made.freshness.close()


async def test_requests_wait_from_the_end_of_the_lease_on_until_it_runs_again_and_the_store_was_read(
    store: Store,
) -> None:
    store.clock.advance_ms(RUNS_MS)
    assert not store.holds(ANN) and not store.asked
    store.clock.advance_ms(1)
    assert store.holds(ANN)
    await store.until(news=1)
    assert store.asked == ["beat", "catch up"]
    assert not store.holds(ANN)


async def test_what_was_read_before_the_lease_ran_again_is_not_enough(store: Store) -> None:
    store.clock.advance_ms(2 * LEASE_MS)
    store.heard_ms = store.clock.monotonic_ms()  # a read got through, no beat did
    assert store.holds(ANN)
    store.clock.advance_ms(1)
    store.beat_ms = store.lapsed_ms = store.clock.monotonic_ms()  # and now a beat
    assert store.holds(ANN)
    store.heard_ms = store.clock.monotonic_ms()
    assert not store.holds(ANN)


async def test_a_lease_that_did_not_end_needs_no_other_read(store: Store) -> None:
    store.clock.advance_ms(RUNS_MS + 1)
    assert store.holds(ANN)
    store.beat_ms = store.clock.monotonic_ms()
    assert not store.holds(ANN)


async def test_while_the_store_is_away_those_wait_from_whom_it_can_take_something(store: Store) -> None:
    store.is_away = True
    store.clock.advance_ms(RUNS_MS + 1)
    assert store.holds(ANN) and store.holds(ROOT), "it was not asked yet"
    await store.until(news=1)
    for _ in range(3):
        assert store.holds(ANN) and not store.holds(ROOT)
        store.clock.advance_ms(LEASE_MS)
        await asyncio.sleep(0.001)
    store.is_away = False
    await store.until(news=2)
    assert not store.holds(ANN) and not store.holds(ROOT)
    # when it falls behind again, everybody waits until the store was asked again
    store.clock.advance_ms(LEASE_MS)
    assert store.holds(ROOT)


async def test_others_do_not_wait_for_long_if_the_store_hangs(store: Store) -> None:
    store.answers.clear()
    store.clock.advance_ms(RUNS_MS + 1)
    assert store.holds(ROOT)
    began_ms = store.clock.monotonic_ms()
    while store.holds(ROOT):
        assert store.clock.monotonic_ms() - began_ms <= WAIT_MS_MAX + 2_000
        await asyncio.sleep(0.02)
        store.clock.advance_ms(100)
    assert store.clock.monotonic_ms() - began_ms >= WAIT_MS_MAX
    assert store.holds(ANN)
    store.answers.set()
    await store.until(news=2)
    assert not store.holds(ANN)


async def test_a_lease_and_a_tail_that_get_through_by_themselves_are_noticed(store: Store) -> None:
    store.answers.clear()
    store.clock.advance_ms(RUNS_MS + 1)
    assert store.holds(ANN)
    await asyncio.sleep(0.01)
    store.beat_ms = store.heard_ms = store.clock.monotonic_ms()
    await store.until(news=1)
    assert not store.holds(ANN)


async def test_a_mistake_of_ours_on_the_way_ends_no_asking_for_ever(store: Store) -> None:
    def stumble() -> None:
        raise ValueError("a mistake")

    store.freshness.on_news = stumble
    store.is_away = True
    store.clock.advance_ms(RUNS_MS + 1)
    assert store.holds(ANN)
    failed = store.freshness._regaining
    assert failed is not None
    async with asyncio.timeout(30):
        await asyncio.wait([failed])
    assert isinstance(failed.exception(), ValueError)
    # when the next request comes, the store is asked again
    store.freshness.on_news, store.is_away = store.tell, False
    assert store.holds(ANN)
    await store.until(news=1)
    assert not store.holds(ANN)
