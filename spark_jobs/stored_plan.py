"""The plan of a heavy merge, in a task or a driver: its store, and the plan itself, read once in each process."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from compactor.heavy.stored import load_plan
from compactor.heavy.units import HeavyPlan
from runtime.clock import SystemClock
from runtime.ids import SystemIds
from storage.objects import ObjectStore
from storage.urls import open_store, split_object_url
from storage.wrappers.retrying import Retrying

_plans: dict[str, HeavyPlan] = {}
"""The plan that this process read last, by its URL. A worker runs many tasks of one plan, and plans never change."""


@asynccontextmanager
async def plan_store(plan_url: str) -> AsyncGenerator[ObjectStore]:
    """The object store that holds the plan, with retries, open while the block runs."""
    store = Retrying(open_store(split_object_url(plan_url)[0]), SystemClock(), SystemIds())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def cached_plan(store: ObjectStore, plan_url: str) -> HeavyPlan:
    """The plan at this URL, read from `store` unless it is the one that this process read last."""
    if plan_url not in _plans:
        plan = await load_plan(store, split_object_url(plan_url)[1])
        _plans.clear()  # plans are large: only one is kept
        _plans[plan_url] = plan
    return _plans[plan_url]
