"""The duty "erase" is killed at each call, before the call acts or before its answer comes: the next duty goes on."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import pytest

from compactor.deletion.erasures import ErasureDuty
from compactor.deletion.janitor import Janitor, JanitorLimits
from metadata.contract.store import MetadataStore
from runtime.runtime import Runtime
from storage.objects import ObjectStore
from tests.fixtures.compacted_systems import System
from tests.fixtures.compactors import StartCompactor
from tests.fixtures.waiting import until
from tests.integration.compactor.test_erasures import (
    ADA,
    DAY_MS,
    SECRET,
    copied,
    erasure,
    holding,
    is_done,
    leveled,
    live_keys,
    nothing_pends,
    produce,
    request,
)

CALLS_MIN = 15
"""The end of an erasure takes more: else it would not be cut at the listing, the strays, the uploads and the report."""


class Killed(BaseException):
    """No code of ours catches it, as none survives a kill."""


class Life:
    """So many calls until the kill."""

    def __init__(self, calls: int, *, acts: bool) -> None:
        self.left, self.acts = calls, acts

    def spend(self, *, acted: bool) -> None:
        if acted == self.acts:
            self.left -= 1
            if self.left < 0:
                raise Killed


class Mortal:
    """A store, or a part of one, whose calls count."""

    def __init__(self, inner: object, life: Life) -> None:
        self._inner, self._life = inner, life

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if inspect.isasyncgenfunction(found):
            return self._listing(found)
        if inspect.iscoroutinefunction(found):
            return self._call(found)
        return found if callable(found) else Mortal(found, self._life)

    def _call(self, call: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def spent(*words: object, **more: object) -> object:
            self._life.spend(acted=False)
            answer = await call(*words, **more)
            self._life.spend(acted=True)
            return answer

        return spent

    def _listing(self, call: Callable[..., AsyncIterator[object]]) -> Callable[..., AsyncIterator[object]]:
        async def spent(*words: object, **more: object) -> AsyncIterator[object]:
            self._life.spend(acted=False)
            async for each in call(*words, **more):
                yield each
            self._life.spend(acted=True)

        return spent


def mortal_duty(system: System, life: Life) -> ErasureDuty:
    store, metadata = (
        cast("ObjectStore", Mortal(system.store, life)),
        cast("MetadataStore", Mortal(system.metadata, life)),
    )
    runtime, limits = Runtime(), JanitorLimits(grace_ms=0, orphan_age_ms=DAY_MS)
    janitor = Janitor(store=store, metadata=metadata, runtime=runtime, limits=limits)
    return ErasureDuty(store=store, metadata=metadata, runtime=runtime, janitor=janitor)


@pytest.mark.parametrize("acts", [False, True], ids=["before it acts", "after it acted"])
async def test_a_duty_that_is_killed_at_any_call_is_followed_by_one_that_ends_the_erasure(
    system: System, start_compactor: StartCompactor, acts: bool
) -> None:
    # given an erasure of which no file is left, and an object of another topic that no row names
    for topic in ("t", "other"):
        await system.client.create_topic(topic, partitions=1)
    await produce(system, "other", (ADA, b"of another topic"))
    compactor = await leveled(system, start_compactor, erase_interval_ms=DAY_MS, orphan_age_ms=DAY_MS)
    (other,) = await live_keys(system, 1)
    stray = await copied(system, other)
    await produce(system, "t", (ADA, SECRET), (b"bea", b"stays"))
    await until(lambda: is_leveled(system))
    number = await request(system, "t")
    await until(lambda: nothing_pends(system, number), timeout_s=60)
    await compactor.compactor.stop()
    # when each duty lives for a call more than the one before it
    calls = 0
    while not await is_done(system, number):
        duty = mortal_duty(system, Life(calls, acts=acts))
        try:
            assert await duty.round()
        except Killed:
            calls += 1
    # then the last one ends it, with a whole report, and all else is as it was
    assert calls >= CALLS_MIN
    listing = (await erasure(system, number)).report["listing"]
    assert listing["objects"] == len([stat async for stat in system.store.list("l")]) and listing["without_a_row"] == 1
    assert await holding(system) == [] and await system.values("t") == [b"stays"]
    assert stray in [stat.key async for stat in system.store.list("l1/")]
    assert await system.fsck() == []


async def is_leveled(system: System) -> bool:
    return await system.levels() == {1}
