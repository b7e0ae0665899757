"""Second requests for late GETs: how much they cut the tail, how many there are, and that none stays behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import pytest

from runtime.clock import SystemClock
from runtime.metrics import Metrics
from runtime.runtime import Runtime
from siltstone.processes.opening import layered_store
from storage.memory import MemoryStore
from storage.objects import ObjectNotFoundError, StoreUnavailableError
from storage.urls import open_store
from storage.wrappers.hedge_rule import (
    BURST,
    BYTES_MAX,
    CLASS_ENDS,
    SAMPLES,
    SAMPLES_MIN,
    SHARE,
    HedgeRule,
    LatencyEstimate,
    size_class,
)
from storage.wrappers.hedged import Hedged
from storage.wrappers.wrapper import WrappedStore
from tests.fixtures.metric_values import metric_value
from tests.simulation.loop import SimulationClock, SimulationLoop
from wire.crc import crc32c

T = TypeVar("T")

BODY = bytes(1000)
USUAL_MS = 10.0
Fate = Callable[[int], tuple[float, Exception | None]]
"""The milliseconds that the n-th request takes, and the error that it ends with."""


class Scripted(WrappedStore):
    """A store whose n-th ranged GET takes as long as `fate(n)` says. It knows what is in flight."""

    def __init__(self, clock: SimulationClock, fate: Fate) -> None:
        super().__init__(MemoryStore(clock))
        self._clock = clock
        self._fate = fate
        self.requests = 0
        self.in_flight = 0
        self.cancelled: list[int] = []

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        number = self.requests
        self.requests += 1
        self.in_flight += 1
        try:
            duration_ms, error = self._fate(number)
            await self._clock.sleep_ms(duration_ms)
            if error is not None:
                raise error
            return await super().get_range(key, start, length)
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        finally:
            self.in_flight -= 1


class World:
    def __init__(self, loop: SimulationLoop) -> None:
        self.loop = loop
        self.clock = SimulationClock(loop)
        self.metrics = Metrics()
        self.fate: Fate = lambda number: (USUAL_MS, None)
        self.inner = Scripted(self.clock, lambda number: self.fate(number))
        self.store = Hedged(self.inner, self.metrics, self.clock)

    async def put(self) -> None:
        await self.inner.put_if_absent("k", BODY, crc32c=crc32c(BODY))

    async def learn(self, calls: int = 400) -> None:
        """Put the object, and read it until the store knows how long that takes and may ask twice."""
        await self.put()
        for _ in range(calls):
            await self.store.get_range("k", 0, 10)
        assert self.inner.requests == calls
        self.inner.requests = 0

    async def times_ms(self, calls: int) -> list[float]:
        taken: list[float] = []
        for _ in range(calls):
            began_ms = self.clock.monotonic_ms()
            assert await self.store.get_range("k", 0, 10) == BODY[:10]
            taken.append(self.clock.monotonic_ms() - began_ms)
        return sorted(taken)

    def hedges(self, outcome: str) -> float:
        return metric_value(self.metrics, "object_hedges_total", {"op": "get_range", "outcome": outcome})

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run, and see that nothing is left behind."""
        done = self.loop.run_until_complete(work)
        assert self.inner.in_flight == 0
        assert asyncio.all_tasks(self.loop) == set()
        return done


@pytest.fixture
def world() -> Iterator[World]:
    loop = SimulationLoop(random.Random(1), shuffles=False)
    yield World(loop)
    loop.end()


def by_number(fates: dict[int, tuple[float, Exception | None]]) -> Fate:
    return lambda number: fates.get(number, (USUAL_MS, None))


def one_in_a_hundred_is_slow() -> Fate:
    chance = random.Random(4)

    def fate(number: int) -> tuple[float, Exception | None]:
        return chance.uniform(8, 12) * (20 if number % 100 == 37 else 1), None

    return fate


def at(share: float, ordered: list[float]) -> float:
    return ordered[int(len(ordered) * share)]


def test_of_a_store_with_one_slow_get_in_a_hundred_the_99th_percentile_is_at_most_twice_the_median(
    world: World,
) -> None:
    calls = 6_000

    async def bare_times_ms() -> list[float]:
        world.store = world.inner  # type: ignore[assignment]
        return await world.times_ms(calls)

    world.fate = one_in_a_hundred_is_slow()
    world.run(world.put())
    with_hedges = world.run(world.times_ms(calls))
    sent = world.inner.requests
    world.inner.requests = 0
    world.fate = one_in_a_hundred_is_slow()
    without = world.run(bare_times_ms())
    assert at(0.99, without) > 10 * at(0.5, without)
    assert at(0.99, with_hedges) <= 2 * at(0.5, with_hedges)
    assert at(0.995, with_hedges) <= 2.5 * at(0.5, with_hedges)
    assert 0 < sent - calls <= SHARE * calls
    assert world.hedges("won") + world.hedges("lost") == sent - calls
    assert world.hedges("failed") == 0


def test_when_every_get_becomes_slow_second_requests_stay_a_twentieth(world: World) -> None:
    async def work() -> None:
        await world.learn()
        world.fate = lambda number: (USUAL_MS * (20 if number % 2 else 3), None)
        await asyncio.gather(*(world.times_ms(50) for _ in range(40)))

    world.run(work())
    calls = 40 * 50
    assert world.inner.requests - calls <= SHARE * (calls + 400)
    assert world.hedges("refused") > 0


def test_the_first_good_answer_wins_and_the_other_request_is_cancelled(world: World) -> None:
    async def work() -> float:
        await world.learn()
        world.fate = by_number({0: (500, None)})
        [took_ms] = await world.times_ms(1)
        return took_ms

    assert 2 * USUAL_MS <= world.run(work()) < 3 * USUAL_MS
    assert world.inner.cancelled == [0]
    assert (world.hedges("won"), world.hedges("lost")) == (1, 0)


def test_a_first_request_that_is_only_a_little_late_still_wins(world: World) -> None:
    async def work() -> float:
        await world.learn()
        world.fate = by_number({0: (15, None)})
        [took_ms] = await world.times_ms(1)
        return took_ms

    assert 15 <= world.run(work()) < 16
    assert world.inner.cancelled == [1]
    assert (world.hedges("won"), world.hedges("lost")) == (0, 1)


@pytest.mark.parametrize(
    ("fates", "outcome"),
    [
        ({0: (20, StoreUnavailableError("first")), 1: (30, None)}, "won"),
        ({0: (50, None), 1: (5, StoreUnavailableError("second"))}, "lost"),
        ({0: (50, None), 1: (5, ObjectNotFoundError("k"))}, "lost"),
    ],
)
def test_an_error_of_one_request_does_not_fail_the_call_while_the_other_runs(
    world: World, fates: dict[int, tuple[float, Exception | None]], outcome: str
) -> None:
    async def work() -> None:
        await world.learn()
        world.fate = by_number(fates)
        assert await world.store.get_range("k", 0, 10) == BODY[:10]

    world.run(work())
    assert world.inner.requests == 2
    assert world.hedges(outcome) == 1


def test_when_both_fail_the_error_is_that_of_the_first(world: World) -> None:
    async def work() -> None:
        await world.learn()
        world.fate = by_number({0: (50, StoreUnavailableError("first")), 1: (5, StoreUnavailableError("second"))})
        with pytest.raises(StoreUnavailableError, match="first"):
            await world.store.get_range("k", 0, 10)

    world.run(work())
    assert world.hedges("failed") == 1


def test_an_early_error_is_told_at_once_without_a_second_request(world: World) -> None:
    async def work() -> None:
        await world.learn()
        world.fate = by_number({0: (1, StoreUnavailableError("early"))})
        with pytest.raises(StoreUnavailableError, match="early"):
            await world.store.get_range("k", 0, 10)

    world.run(work())
    assert world.inner.requests == 1


@pytest.mark.parametrize("after_ms", [5, 100])
def test_a_caller_that_gives_up_cancels_all_its_requests(world: World, after_ms: float) -> None:
    async def work() -> None:
        await world.learn()
        world.fate = lambda number: (1000, None)
        call = asyncio.create_task(world.store.get_range("k", 0, 10))
        await world.clock.sleep_ms(after_ms)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    world.run(work())
    assert sorted(world.inner.cancelled) == ([0] if after_ms < USUAL_MS else [0, 1])


def test_a_range_that_makes_no_sense_is_refused_before_it_counts(world: World) -> None:
    with pytest.raises(ValueError, match="range"):
        world.run(world.store.get_range("k", -1, 10))
    assert world.inner.requests == 0


async def close_all(writers: Sequence[asyncio.StreamWriter]) -> None:
    """obstore closes its connections some time after its store: end them here, before the loop does."""
    for writer in writers:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


@pytest.mark.usefixtures("aws_environment")
async def test_over_http_the_loser_gives_its_connection_up() -> None:
    stalls, gone = False, asyncio.Event()
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal stalls
        writers.append(writer)
        with suppress(asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                if stalls:
                    stalls = False
                    await reader.read()
                    gone.set()
                    break
                writer.write(b"HTTP/1.1 206 X\r\nContent-Length: 4\r\nContent-Range: bytes 0-3/9\r\n\r\nbody")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    for client in ("aioboto3", "obstore"):
        metrics, clock = Metrics(), SystemClock()
        store = Hedged(open_store(f"s3://bucket?endpoint={endpoint}&client={client}"), metrics, clock)
        await store.open()
        gone.clear()
        try:
            while metric_value(metrics, "object_hedges_total", {"op": "get_range", "outcome": "won"}) == 0:
                # A usual GET may be late too, on a busy machine, and leave no second request for this one.
                for _ in range(100):
                    assert await store.get_range("k", 0, 4) == b"body"
                stalls = True
                call = asyncio.create_task(store.get_range("k", 0, 4))
                await asyncio.wait((call,), timeout=1)
                call.cancel()
                await asyncio.wait((call,))
            await asyncio.wait_for(gone.wait(), 20)
        finally:
            await store.close()
    server.close()
    await server.wait_closed()
    await close_all(writers)


# ---- the rule


def test_a_get_is_late_past_the_95th_percentile_of_its_own_size() -> None:
    rule = HedgeRule()
    small, large = rule.begin(1000), rule.begin(8 << 20)
    assert small is rule.begin(64 << 10)
    assert small is not large
    for number in range(SAMPLES_MIN - 1):
        small.add(number)
    assert small.late_ms is None
    for number in range(SAMPLES_MIN - 1, 4 * SAMPLES):
        small.add(number % SAMPLES)
    assert small.late_ms == 245  # of 256; the 95th percentile is 243
    assert large.late_ms is None


def test_the_estimate_follows_a_store_that_changes() -> None:
    estimate = LatencyEstimate()
    for latency_ms in (10.0, 300.0, 20.0):
        for _ in range(SAMPLES):
            estimate.add(latency_ms)
        assert estimate.late_ms == latency_ms


def test_second_requests_are_saved_up_only_so_far() -> None:
    rule = HedgeRule()
    assert not rule.take(1)
    for _ in range(10_000):
        rule.begin(1)
    assert sum(rule.take(1) for _ in range(100)) == BURST


def test_the_bytes_of_second_requests_in_flight_are_bounded() -> None:
    rule = HedgeRule()
    for _ in range(1000):
        rule.begin(1)
    assert rule.take(BYTES_MAX - 1)
    assert not rule.take(2)
    rule.give_back(BYTES_MAX - 1)
    assert rule.take(2)


def test_every_size_has_a_class() -> None:
    assert [size_class(size) for size in (1, CLASS_ENDS[0], CLASS_ENDS[0] + 1, 16 << 20, 1 << 40)] == [0, 0, 1, 4, 5]


# ---- in the stack of a process


@pytest.mark.usefixtures("aws_environment")
def test_only_a_store_over_a_network_has_second_requests(tmp_path_factory: pytest.TempPathFactory) -> None:
    local = tmp_path_factory.mktemp("store").as_uri()
    for url, hedges, expected in (("s3://logs", True, True), ("s3://logs", False, False), (local, True, False)):
        store = layered_store(url, Runtime(), hedges=hedges)
        assert isinstance(store._inner, Hedged) is expected, url
