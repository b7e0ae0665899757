"""The object stores of a run: one, or a second one for L0 files; and what a process sees of them.

Agents are told of the second store one after the other, in the order of `docs/operations/second-store.md`. Each store
fails on its own. The checks read both stores directly, and not through `storage/by_level.py`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from storage.by_level import ByLevel
from storage.memory import MemoryStore
from storage.objects import (
    BegunUpload,
    Body,
    Deleted,
    MultipartUpload,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStat,
    ObjectStore,
    PutInDoubtError,
    StoreUnavailableError,
)
from tests.simulation.faults import FIRST_STORE, SECOND_STORE, Fault, Faults, Path, StoreFaults
from tests.simulation.loop import Process, SimulationClock, SimulationLoop
from tests.simulation.services import FarSide, finish

if TYPE_CHECKING:
    from tests.simulation.world import World


T = TypeVar("T")


class Stage(StrEnum):
    """The settings of one agent."""

    ALONE = "one store"
    READS = "two stores, writes to the first"
    WRITES = "two stores, writes to the second"


PLANS: Sequence[Sequence[Stage]] = (
    (Stage.WRITES,),
    (Stage.ALONE, Stage.READS, Stage.WRITES),
    (Stage.ALONE, Stage.READS, Stage.WRITES),
    (Stage.WRITES, Stage.READS),
    (Stage.WRITES, Stage.READS, Stage.WRITES),
)
"""The stages of a run that has a second store; all agents begin with the first of them."""


class SimulatedStore(FarSide):
    """`storage.objects.ObjectStore` as one agent has it; `on_put` is called in the world's process when a PUT is
    answered, `on_put_begun` by the agent before it sends one, `on_delete` before a key goes."""

    def __init__(
        self,
        loop: SimulationLoop,
        process: Process,
        faults: Faults,
        inner: MemoryStore,
        kinds: StoreFaults,
        *,
        on_put: Callable[[Process], None],
        on_put_begun: Callable[[str], None],
        on_delete: Callable[[str], None],
    ) -> None:
        super().__init__(loop, process, faults)
        self._inner = inner
        self._kinds = kinds
        self._on_put_begun = on_put_begun
        self._on_put = on_put
        self._on_delete = on_delete
        self._doubtful: dict[str, None] = {}

    async def get(self, key: str) -> bytes:
        return await self._read(lambda: self._inner.get(key), self._kinds.get_failed)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        slow = self.faults.strikes(Fault.GET_SLOW)
        body = await self._read(lambda: self._inner.get_range(key, start, length), self._kinds.get_failed, slow=slow)
        self.faults.count(Path.READ_FROM_STORE)
        return body

    async def head(self, key: str) -> ObjectStat:
        async def act() -> ObjectStat:
            try:
                stat = await self._inner.head(key)
            except ObjectNotFoundError:
                self._settled(key, Path.PUT_WAS_ABSENT)
                raise
            self._settled(key, Path.PUT_WAS_STORED)
            return stat

        return await self._read(act, Fault.HEAD_FAILED)

    def _settled(self, key: str, path: Path) -> None:
        if key in self._doubtful:
            self.faults.count(path)

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        faults = self.faults
        self._on_put_begun(key)
        away = faults.is_away(self._kinds.down, self.loop.now_ms)
        if away or faults.strikes(self._kinds.put_refused):
            await asyncio.sleep(faults.between(0.1, 5) / 1000)
            raise StoreUnavailableError("503 Slow Down")
        call_lost = faults.strikes(Fault.PUT_CALL_LOST)
        late = not call_lost and faults.strikes(Fault.PUT_LATE)
        answer_lost = not call_lost and not late and faults.strikes(Fault.PUT_ANSWER_LOST)
        slow = faults.strikes(Fault.PUT_SLOW)
        fate = self.fate(call_lost=call_lost, late=late, answer_lost=answer_lost, slow=slow)
        stored = bytes(body)

        async def act() -> None:
            await self._inner.put_if_absent(key, stored, crc32c=crc32c)
            self._on_put(self.process)

        try:
            await self.call(fate, act, lambda: PutInDoubtError("the answer was lost"))
        except PutInDoubtError:
            self._doubtful[key] = None
            raise

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        async def act() -> Deleted:
            for key in keys:
                self._on_delete(key)
            return await self._inner.delete_many(keys)

        return await self._read(act, self._kinds.get_failed)

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        async def act() -> list[ObjectStat]:
            return [stat async for stat in self._inner.list(prefix, start_after=start_after)]

        for stat in await self._read(act, self._kinds.get_failed):
            yield stat

    async def start_multipart(self, key: str) -> MultipartUpload:
        raise AssertionError("agents do not use multipart uploads")

    async def abort_multiparts(self, *, older_than_ms: int) -> int:
        return await self._read(
            lambda: self._inner.abort_multiparts(older_than_ms=older_than_ms), self._kinds.get_failed
        )

    def begun_uploads(self) -> AsyncIterator[BegunUpload]:
        raise AssertionError("agents do not use multipart uploads")

    async def close(self) -> None:
        return None

    async def _read(self, act: Callable[[], Coroutine[Any, Any, T]], fault: Fault, *, slow: bool = False) -> T:
        away = self.faults.is_away(self._kinds.down, self.loop.now_ms)
        failed = away or self.faults.strikes(fault)
        fate = self.fate(call_lost=failed, answer_lost=False, late=False, slow=slow)
        return await self.call(fate, act, lambda: StoreUnavailableError("no answer"))


class SecondStore(SimulatedStore):
    """As `ByLevel` has it: the books tell when a file was not there."""

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        try:
            return await super().get_range(key, start, length)
        except ObjectNotFoundError:
            self.faults.count(Path.LOOKED_IN_FIRST)
            raise


class Stores:
    def __init__(self, world: World, rng: random.Random, clock: SimulationClock) -> None:
        self._world = world
        self.plan: Sequence[Stage] = rng.choice(PLANS) if rng.random() < 0.4 else (Stage.ALONE,)
        self.first = MemoryStore(clock)
        self.second = MemoryStore(clock)

    @property
    def has_second(self) -> bool:
        return self.plan != (Stage.ALONE,)

    # ---- for processes

    def seen_by(
        self,
        process: Process,
        stage: Stage,
        *,
        on_put: Callable[[Process], None] = lambda _: None,
        on_put_begun: Callable[[str], None] = lambda _: None,
    ) -> ObjectStore:
        """The bare stores as this process reaches them, with the faults of both."""
        world = self._world

        def put_in_second(by: Process) -> None:
            world.faults.count(Path.PUT_IN_SECOND)
            on_put(by)

        first = SimulatedStore(
            world.loop,
            process,
            world.faults,
            self.first,
            FIRST_STORE,
            on_put=on_put,
            on_put_begun=on_put_begun,
            on_delete=world.deleting,
        )
        if stage is Stage.ALONE:
            return first
        second = SecondStore(
            world.loop,
            process,
            world.faults,
            self.second,
            SECOND_STORE,
            on_put=put_in_second,
            on_put_begun=on_put_begun,
            on_delete=world.deleting,
        )
        return ByLevel(first, second, writes=stage is Stage.WRITES)

    # ---- for checks

    async def get(self, key: str) -> bytes:
        return await self._holder(key).get(key)

    async def head(self, key: str) -> ObjectStat:
        return await self._holder(key).head(key)

    def stored_before(self, key: str, wall_ms: int) -> bool:
        """Whether a store holds an object under this key that was stored before that time."""
        return any(stat.last_modified_ms < wall_ms for stat in self._stats(key))

    def is_in_second(self, key: str) -> bool:
        return bool(_stat(self.second, key))

    def _holder(self, key: str) -> MemoryStore:
        """Raises ObjectExistsError for an object that lies in both."""
        if not self.has_second or not _stat(self.second, key):
            return self.first
        if _stat(self.first, key):
            raise ObjectExistsError(f"{key} lies in both stores")
        return self.second

    def _stats(self, key: str) -> list[ObjectStat]:
        return [stat for store in (self.first, self.second) for stat in _stat(store, key)]


def _stat(store: MemoryStore, key: str) -> list[ObjectStat]:
    try:
        return [finish(store.head(key))]
    except ObjectNotFoundError:
        return []
