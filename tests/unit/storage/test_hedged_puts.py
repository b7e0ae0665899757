"""Second requests for late PUTs: one object, no error that is not true, and a bounded number of requests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from runtime.ids import SystemIds
from runtime.metrics import Metrics
from storage.memory import MemoryStore
from storage.objects import Body, ObjectExistsError, ObjectStat, PutInDoubtError, StoreUnavailableError
from storage.wrappers.hedge_rule import SHARE
from storage.wrappers.hedged import Hedged
from storage.wrappers.retrying import Retrying
from storage.wrappers.wrapper import WrappedStore
from tests.fixtures.metric_values import metric_value
from tests.simulation.loop import SimulationClock, SimulationLoop
from wire.crc import crc32c

T = TypeVar("T")

BODY = b"records of this agent"
USUAL_MS = 10.0


@dataclass(frozen=True, slots=True)
class Fate:
    """A PUT reaches the store after `arrives_ms`, and its sender hears of it at `answers_ms`."""

    arrives_ms: float = USUAL_MS / 2
    answers_ms: float = USUAL_MS
    error: Exception | None = None
    """Raised in place of the answer."""
    is_written: bool = True


class Scripted(WrappedStore):
    """A store whose n-th PUT goes as `fates` says. A PUT that is given up still arrives, as over a network."""

    def __init__(self, clock: SimulationClock) -> None:
        super().__init__(MemoryStore(clock))
        self._clock = clock
        self.fates: dict[int, Fate] = {}
        self.puts = self.heads = self.given_up = 0
        self.arriving: set[asyncio.Task[None]] = set()

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        fate = self.fates.get(self.puts, Fate())
        self.puts += 1
        arrival = asyncio.create_task(self._arrive(fate, key, body, crc32c))
        self.arriving.add(arrival)
        try:
            await self._clock.sleep_ms(fate.answers_ms)
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        if fate.error is not None:
            raise fate.error
        await arrival

    async def _arrive(self, fate: Fate, key: str, body: Body, crc32c: int) -> None:
        await self._clock.sleep_ms(fate.arrives_ms)
        if fate.is_written:
            await super().put_if_absent(key, body, crc32c=crc32c)

    async def head(self, key: str) -> ObjectStat:
        self.heads += 1
        return await super().head(key)


class World:
    def __init__(self, loop: SimulationLoop) -> None:
        self.loop = loop
        self.clock = SimulationClock(loop)
        self.metrics = Metrics()
        self.scripted = Scripted(self.clock)
        self.hedged = Hedged(self.scripted, self.metrics, self.clock)
        self.store = Retrying(self.hedged, self.clock, SystemIds(1))

    async def learn(self, calls: int = 400) -> None:
        for number in range(calls):
            await self.store.put_if_absent(f"learn-{number}", BODY, crc32c=crc32c(BODY))
        assert self.scripted.puts == calls
        self.scripted.puts = 0

    async def put(self, key: str = "k") -> float:
        began_ms = self.clock.monotonic_ms()
        await self.store.put_if_absent(key, BODY, crc32c=crc32c(BODY))
        return self.clock.monotonic_ms() - began_ms

    def hedges(self, outcome: str) -> float:
        return metric_value(self.metrics, "object_hedges_total", {"op": "put", "outcome": outcome})

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        async def and_what_arrives_late() -> T:
            done = await work
            await asyncio.gather(*self.scripted.arriving, return_exceptions=True)
            return done

        return self.loop.run_until_complete(and_what_arrives_late())


@pytest.fixture
def world() -> Iterator[World]:
    loop = SimulationLoop(random.Random(1), shuffles=False)
    yield World(loop)
    loop.end()


def test_a_late_put_is_sent_again_and_the_first_answer_wins(world: World) -> None:
    async def work() -> float:
        await world.learn()
        world.scripted.fates = {0: Fate(arrives_ms=400, answers_ms=500)}
        return await world.put()

    assert 2 * USUAL_MS <= world.run(work()) < 3 * USUAL_MS
    assert (world.scripted.puts, world.scripted.heads, world.scripted.given_up) == (2, 0, 1)
    assert (world.hedges("won"), world.hedges("lost")) == (1, 0)
    # The loser arrived after all, and the store refused it.
    assert [type(each.exception()) for each in world.scripted.arriving if each.exception()] == [ObjectExistsError]


def test_when_only_the_answer_is_late_the_refused_second_put_is_settled_by_head(world: World) -> None:
    async def work() -> float:
        await world.learn()
        world.scripted.fates = {0: Fate(arrives_ms=1, answers_ms=5_000)}
        return await world.put()

    assert world.run(work()) < 5 * USUAL_MS
    assert (world.scripted.puts, world.scripted.heads) == (2, 1)


def test_a_key_that_another_holds_is_told_even_after_a_second_put(world: World) -> None:
    async def work() -> None:
        await world.learn()
        await world.scripted.inner.put_if_absent("k", b"of another", crc32c=crc32c(b"of another"))
        world.scripted.fates = {0: Fate(answers_ms=500)}
        with pytest.raises(ObjectExistsError):
            await world.put()
        assert await world.store.get("k") == b"of another"

    world.run(work())


@pytest.mark.parametrize("first_in_doubt", [True, False])
def test_if_either_of_two_failed_puts_may_have_been_written_the_call_is_in_doubt(
    world: World, first_in_doubt: bool
) -> None:
    async def work() -> None:
        await world.learn()
        doubt, no = PutInDoubtError("no answer"), StoreUnavailableError("slow down")
        world.scripted.fates = {
            0: Fate(answers_ms=60, error=doubt if first_in_doubt else no, is_written=False),
            1: Fate(error=no if first_in_doubt else doubt, is_written=False),
        }
        with pytest.raises(PutInDoubtError):
            await world.hedged.put_if_absent("k", BODY, crc32c=crc32c(BODY))

    world.run(work())
    assert world.hedges("failed") == 1


def test_two_puts_that_the_store_refused_leave_no_doubt(world: World) -> None:
    async def work() -> None:
        await world.learn()
        world.scripted.fates = {
            0: Fate(answers_ms=60, error=StoreUnavailableError("first"), is_written=False),
            1: Fate(error=StoreUnavailableError("second"), is_written=False),
        }
        with pytest.raises(StoreUnavailableError, match="first"):
            await world.hedged.put_if_absent("k", BODY, crc32c=crc32c(BODY))

    world.run(work())


def test_of_puts_of_which_one_in_a_hundred_is_slow_the_99th_percentile_is_at_most_twice_the_median(
    world: World,
) -> None:
    calls, chance = 6_000, random.Random(4)

    def fate(number: int) -> Fate:
        answers_ms = chance.uniform(8, 12) * (20 if number % 100 == 37 else 1)
        return Fate(arrives_ms=answers_ms * chance.random(), answers_ms=answers_ms)

    async def work() -> list[float]:
        world.scripted.fates = {number: fate(number) for number in range(2 * calls)}
        return sorted([await world.put(f"k{number}") for number in range(calls)])

    taken = world.run(work())
    assert taken[int(calls * 0.99)] <= 2 * taken[calls // 2] < 2.2 * USUAL_MS
    assert 0 < world.scripted.puts - calls <= SHARE * calls
