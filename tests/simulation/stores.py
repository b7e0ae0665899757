"""The object stores of a run: one, or a second one for L0 files; and what a process sees of them.

Agents are told of the second store one after the other, in the order of `docs/operations/second-store.md`. Each store
fails on its own. The checks read both stores directly, and not through `storage/by_level.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from storage.by_level import ByLevel
from storage.memory import MemoryStore
from storage.objects import ObjectExistsError, ObjectNotFoundError, ObjectStat, ObjectStore
from tests.simulation.faults import FIRST_STORE, SECOND_STORE, Path
from tests.simulation.loop import Process, SimulationClock
from tests.simulation.services import SimulatedStore, finish

if TYPE_CHECKING:
    from tests.simulation.world import World


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
