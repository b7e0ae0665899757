"""The plan of a heavy merge, in a task or a driver; and the kind of a plan that may be another.

A process opens one store for a plan and keeps it, with the head of the plan that it read last: making an S3 client
takes some tenths of a second, and a worker runs many units. The inputs of a unit are read for each task.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import TypeVar, cast

from compactor.heavy.plan.frames import FramesError, load_json
from compactor.heavy.plan.units import HeavyPlan
from compactor.heavy.stored import Frames, StoredPlan
from spark_jobs.scan.blocking import BlockingStore
from storage.objects import ObjectNotFoundError, ObjectStore
from storage.urls import split_object_url

T = TypeVar("T")
EXPORT = "export"
_kept: dict[tuple[int, str], OpenPlan] = {}
"""The plan that this process read last, by process id and URL: a forked child has no threads of its parent."""


def kind_of(plan_url: str) -> str:
    """EXPORT for the plan of an export to a table, else "": a merge's plan names no kind, and its reader tells what is
    wrong with an object that is no plan. Raises BadKeyError, StoreMisconfiguredError, and the store's errors."""
    url, key = split_object_url(plan_url)
    try:
        frames = BlockingStore.at(url).call(lambda store: Frames.read(store, key))
        head = load_json(frames.directory.head.body(frames.head))
    except (ObjectNotFoundError, FramesError, ValueError):
        return ""
    return str(cast("dict[str, object]", head).get("kind", "")) if isinstance(head, dict) else ""


class OpenPlan:
    """A stored plan and its store, for code without an event loop."""

    def __init__(self, store: BlockingStore, stored: StoredPlan) -> None:
        self._store, self._stored = store, stored

    @staticmethod
    def at(plan_url: str) -> OpenPlan:
        """This process's one. Raises BadKeyError, PlanError, StoreMisconfiguredError, and the store's errors."""
        place = (os.getpid(), plan_url)
        if place not in _kept:
            url, key = split_object_url(plan_url)
            store = BlockingStore.at(url)
            opened = OpenPlan(store, store.call(lambda inner: StoredPlan.opened(inner, key)))
            _kept.clear()
            _kept[place] = opened
        return _kept[place]

    @property
    def head(self) -> HeavyPlan:
        """The plan without inputs."""
        return self._stored.head

    def with_unit(self, number: int) -> HeavyPlan:
        """The plan with the inputs of one unit. Raises PlanError and the store's errors."""
        return self.call(lambda _: self._stored.with_unit(number))

    def call(self, work: Callable[[ObjectStore], Awaitable[T]]) -> T:
        """Run work with the store. Raises its errors."""
        return self._store.call(work)

    def iterate(self, make: Callable[[ObjectStore], AsyncGenerator[T]]) -> Iterator[T]:
        """The items of an asynchronous generator, each made when it is asked for. Ending early closes it."""
        return self._store.iterate(make)
