"""`Retrying` over a faulty memory store: the errors that it retries, those that it does not, and the end of a doubt."""

from __future__ import annotations

import pytest

from runtime.clock import ManualClock
from runtime.ids import SystemIds
from storage.memory import MemoryStore
from storage.objects import (
    Body,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStat,
    PutInDoubtError,
    StoreFullError,
    StoreMisconfiguredError,
    StoreUnavailableError,
)
from storage.wrappers.faulty import Fault, FaultPlan, FaultRule, Faulty
from storage.wrappers.retrying import Retrying
from storage.wrappers.wrapper import WrappedStore
from wire.crc import crc32c

BODY = b"the body"
FIRST = frozenset({1})


class World:
    """A retrying store over a faulty one over memory, with a clock that moves only while it sleeps."""

    def __init__(self, *rules: FaultRule, deadline_ms: float = 10_000) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(self.clock)
        self.plan = FaultPlan(rules)
        self.counting = Counting(Faulty(self.memory, self.plan, SystemIds(1), self.clock))
        self.store = Retrying(
            self.counting, self.clock, SystemIds(2), deadline_ms=deadline_ms, base_ms=100, cap_ms=1_000
        )

    async def put(self, body: bytes = BODY) -> None:
        await self.store.put_if_absent("k", body, crc32c=crc32c(body))


class Counting(WrappedStore):
    puts = 0
    heads = 0

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        self.puts += 1
        await super().put_if_absent(key, body, crc32c=crc32c)

    async def head(self, key: str) -> ObjectStat:
        self.heads += 1
        return await super().head(key)


def rule(fault: Fault, op: str = "put", calls: frozenset[int] | None = None) -> FaultRule:
    return FaultRule(fault=fault, op=op, calls=calls)


@pytest.mark.parametrize("fault", [Fault.UNREACHABLE, Fault.SLOW_DOWN, Fault.LOST_REQUEST])
async def test_a_put_that_did_not_happen_is_made_again(fault: Fault) -> None:
    world = World(rule(fault, calls=frozenset({1, 2})))
    await world.put()
    assert await world.memory.get("k") == BODY
    assert world.counting.puts == 3


async def test_a_put_whose_answer_was_lost_is_settled_by_head_and_not_made_again() -> None:
    world = World(rule(Fault.LOST_ANSWER))
    await world.put()
    assert (world.counting.puts, world.counting.heads) == (1, 1)


async def test_doubt_is_settled_by_reading_where_the_store_keeps_no_checksum() -> None:
    class NoChecksum(WrappedStore):
        async def head(self, key: str) -> ObjectStat:
            stat = await super().head(key)
            return ObjectStat(key=key, size_bytes=stat.size_bytes, last_modified_ms=stat.last_modified_ms)

    world = World(rule(Fault.LOST_ANSWER))
    store = Retrying(NoChecksum(world.counting), world.clock, SystemIds(2))
    await store.put_if_absent("k", BODY, crc32c=crc32c(BODY))
    assert world.counting.puts == 1
    # and another writer's object of the same length is not taken for ours
    await world.memory.put_if_absent("k2", BODY[::-1], crc32c=crc32c(BODY[::-1]))
    world.plan.rules = [rule(Fault.LOST_REQUEST, calls=FIRST)]
    with pytest.raises(ObjectExistsError):
        await store.put_if_absent("k2", BODY, crc32c=crc32c(BODY))


async def test_exists_on_the_first_try_is_told_even_if_the_object_is_the_same() -> None:
    world = World()
    await world.put()
    with pytest.raises(ObjectExistsError):
        await world.put()
    assert world.counting.heads == 0


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.UNREACHABLE])
async def test_exists_after_a_failed_try_is_ours_when_length_and_crc_are(fault: Fault) -> None:
    # The first request is slow, not lost: it arrives between the HEAD and the second attempt.
    world = World(rule(fault, calls=FIRST))

    class LandsLate(WrappedStore):
        async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
            if world.counting.puts == 1:
                await world.memory.put_if_absent(key, body, crc32c=crc32c)
            await super().put_if_absent(key, body, crc32c=crc32c)

    store = Retrying(LandsLate(world.counting), world.clock, SystemIds(2))
    await store.put_if_absent("k", BODY, crc32c=crc32c(BODY))
    assert world.counting.puts == 2


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.UNREACHABLE])
@pytest.mark.parametrize("other", [b"somebody", b"somebody else"])
async def test_exists_after_a_failed_try_is_another_writers_when_the_bytes_differ(fault: Fault, other: bytes) -> None:
    world = World(rule(fault, calls=FIRST))
    await world.memory.put_if_absent("k", other, crc32c=crc32c(other))
    with pytest.raises(ObjectExistsError):
        await world.put(BODY)
    assert await world.memory.get("k") == other


async def test_a_put_that_was_ever_in_doubt_ends_in_doubt_at_the_deadline() -> None:
    world = World(rule(Fault.LOST_REQUEST, calls=FIRST), rule(Fault.UNREACHABLE), deadline_ms=3_000)
    with pytest.raises(PutInDoubtError):
        await world.put()
    assert world.clock.monotonic_ms() <= 3_000


async def test_a_put_that_certainly_never_happened_is_unavailable_at_the_deadline() -> None:
    world = World(rule(Fault.UNREACHABLE), deadline_ms=3_000)
    with pytest.raises(StoreUnavailableError):
        await world.put()
    assert 2_000 < world.clock.monotonic_ms() <= 3_000


async def test_doubt_stays_when_head_does_not_answer_and_the_deadline_is_shared() -> None:
    world = World(rule(Fault.LOST_ANSWER), rule(Fault.UNREACHABLE, "head"), deadline_ms=3_000)
    with pytest.raises(PutInDoubtError):
        await world.put()
    assert world.clock.monotonic_ms() <= 3_000
    assert world.counting.puts == 1


async def test_doubt_is_settled_once_head_answers() -> None:
    world = World(rule(Fault.LOST_ANSWER), rule(Fault.SLOW_DOWN, "head", frozenset({1, 2, 3})))
    await world.put()
    assert (world.counting.puts, world.counting.heads) == (1, 4)


async def test_a_full_store_is_told_at_once() -> None:
    world = World(rule(Fault.FULL))
    with pytest.raises(StoreFullError):
        await world.put()
    assert world.counting.puts == 1


async def test_a_misconfigured_store_is_told_at_once() -> None:
    class Refusing(WrappedStore):
        async def get(self, key: str) -> bytes:
            raise StoreMisconfiguredError("no such bucket")

    world = World()
    with pytest.raises(StoreMisconfiguredError):
        await Retrying(Refusing(world.memory), world.clock, SystemIds(2)).get("k")
    assert world.clock.monotonic_ms() == 0


async def test_an_absent_object_is_told_at_once() -> None:
    world = World()
    with pytest.raises(ObjectNotFoundError):
        await world.store.get("k")
    assert world.clock.monotonic_ms() == 0


@pytest.mark.parametrize("op", ["get", "get_range", "head", "delete", "multipart_start", "list"])
async def test_every_read_and_delete_is_tried_again(op: str) -> None:
    world = World()
    await world.put()
    world.plan.rules = [rule(Fault.SLOW_DOWN, op, frozenset({1, 2}))]
    assert await world.store.get("k") == BODY
    assert await world.store.get_range("k", 4, 4) == b"body"
    assert (await world.store.head("k")).size_bytes == len(BODY)
    assert [stat.key async for stat in world.store.list()] == ["k"]
    await (await world.store.start_multipart("m")).abort()
    assert list((await world.store.delete_many(["k"])).keys) == ["k"]
    assert world.clock.monotonic_ms() > 0


async def test_waits_double_up_to_the_cap_and_are_jittered() -> None:
    waits: list[float] = []

    class Recording(ManualClock):
        async def sleep_ms(self, duration_ms: float) -> None:
            waits.append(duration_ms)
            await super().sleep_ms(duration_ms)

    class Always:
        def __getattr__(self, name: str) -> object:
            return getattr(SystemIds(3), name)

        def jitter(self) -> float:
            return 0.5

    world, clock = World(rule(Fault.UNREACHABLE, "head")), Recording()
    store = Retrying(world.counting, clock, Always(), deadline_ms=4_000, base_ms=100, cap_ms=1_000)
    with pytest.raises(StoreUnavailableError):
        await store.head("k")
    assert waits[:6] == [50, 100, 200, 400, 500, 500]
    assert sum(waits) <= 4_000


async def test_a_listing_that_breaks_off_goes_on_after_the_last_key() -> None:
    world = World(rule(Fault.LOST_ANSWER, "list", frozenset({1, 2})))
    for name in "abcd":
        await world.memory.put_if_absent(name, b"", crc32c=0)
    assert [stat.key async for stat in world.store.list()] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.LOST_REQUEST, Fault.SLOW_DOWN])
async def test_completing_an_upload_is_settled_like_a_put(fault: Fault) -> None:
    world = World(rule(fault, "multipart_complete", FIRST), rule(Fault.SLOW_DOWN, "multipart_write", FIRST))
    upload = await world.store.start_multipart("k")
    await upload.write(b"one ")
    await upload.write(b"two")
    await upload.complete()
    assert await world.memory.get("k") == b"one two"
