"""The probe passes honest stores, refuses the two known kinds of dishonest ones, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from runtime.clock import ManualClock, SystemClock
from runtime.ids import SystemIds
from storage.memory import MemoryStore
from storage.objects import (
    Body,
    Deleted,
    ObjectExistsError,
    ObjectStore,
    StoreMisconfiguredError,
    StoreUnavailableError,
    SupportsOpen,
)
from storage.probe import ProbeResult, probe_conditional_create
from storage.urls import open_store
from storage.wrappers.faulty import Fault, FaultPlan, FaultRule, Faulty
from storage.wrappers.wrapper import WrappedStore
from wire.crc import crc32c as compute_crc32c


class Ignoring(WrappedStore):
    """A store that ignores If-None-Match: the last PUT wins."""

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        await overwrite(self._inner, key, body, crc32c)


class Racy(WrappedStore):
    """A store that checks first and writes later: correct for one writer, wrong for several."""

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        if key in [stat.key async for stat in self._inner.list(key)]:
            await self._inner.put_if_absent(key, body, crc32c=crc32c)
            return
        await asyncio.sleep(0.005)
        await overwrite(self._inner, key, body, crc32c)


async def overwrite(store: ObjectStore, key: str, body: Body, crc32c: int) -> None:
    while True:
        await store.delete_many([key])
        try:
            return await store.put_if_absent(key, body, crc32c=crc32c)
        except ObjectExistsError:
            continue


async def probe(store: ObjectStore) -> ProbeResult:
    return await probe_conditional_create(store, SystemIds(), SystemClock())


async def keys_of(store: ObjectStore) -> list[str]:
    return [stat.key async for stat in store.list()]


@pytest.mark.parametrize("kind", ["memory", "local", "moto"])
async def test_an_honest_store_passes_and_nothing_is_left(kind: str, request: pytest.FixtureRequest) -> None:
    match kind:
        case "memory":
            store = open_store("memory://")
        case "local":
            store = open_store(request.getfixturevalue("tmp_path").as_uri())
        case _:
            store = open_store(request.getfixturevalue("s3_url")())
    if isinstance(store, SupportsOpen):
        await store.open()
    result = await probe(store)
    result.check()
    assert result.honours_if_none_match
    assert abs(result.store_clock_ms - result.clock_ms) < 5_000
    assert await keys_of(store) == []
    await store.close()


@pytest.mark.parametrize(
    ("liar", "said"), [(Ignoring, "second PUT of a key was accepted"), (Racy, "concurrent PUTs of a key were accepted")]
)
async def test_a_lying_store_is_refused_with_a_remedy_and_nothing_is_left(
    liar: Callable[[ObjectStore], ObjectStore], said: str
) -> None:
    memory = MemoryStore()
    result = await probe(liar(memory))
    assert not result.honours_if_none_match
    assert said in result.detail
    with pytest.raises(StoreMisconfiguredError, match="If-None-Match") as caught:
        result.check()
    assert caught.value.remedy
    assert await keys_of(memory) == []


async def test_a_store_that_resets_losers_instead_of_refusing_them_passes() -> None:
    memory = MemoryStore()
    resets = Faulty(memory, FaultPlan(), SystemIds(1), ManualClock())

    class Resetting(WrappedStore):
        async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
            taken = key in [stat.key async for stat in self._inner.list(key)]
            resets._plan.rules = [FaultRule(fault=Fault.LOST_REQUEST, op="put")] if taken else []
            await resets.put_if_absent(key, body, crc32c=crc32c)

    assert (await probe(Resetting(memory))).honours_if_none_match
    assert await keys_of(memory) == []


async def test_a_probe_that_fails_half_way_cleans_up_and_tells_why() -> None:
    memory = MemoryStore()
    rule = FaultRule(fault=Fault.UNREACHABLE, op="put", calls=frozenset({7}))
    with pytest.raises(StoreUnavailableError):
        await probe(Faulty(memory, FaultPlan([rule]), SystemIds(1), ManualClock()))
    assert await keys_of(memory) == []


async def test_leftovers_of_a_killed_probe_go_once_they_are_old_and_other_keys_stay() -> None:
    clock = ManualClock()
    memory = MemoryStore(clock)
    for key in ("probe/old", "l0/file"):
        await memory.put_if_absent(key, b"", crc32c=compute_crc32c(b""))
    clock.advance_ms(599_000)
    await memory.put_if_absent("probe/running", b"", crc32c=compute_crc32c(b""))
    clock.advance_ms(2_000)
    await probe_conditional_create(memory, SystemIds(), clock)
    assert await keys_of(memory) == ["l0/file", "probe/running"]


async def test_a_store_that_does_not_delete_is_refused() -> None:
    class Keeping(WrappedStore):
        async def delete_many(self, keys: Sequence[str]) -> Deleted:
            return Deleted(keys=(), failed=dict.fromkeys(keys, "AccessDenied"))

    with pytest.raises(StoreMisconfiguredError, match="AccessDenied"):
        await probe(Keeping(MemoryStore()))
