"""`Metered` counts and `Faulty` injects faults, by operation. Both leave everything else unchanged."""

from __future__ import annotations

import pytest

from runtime.clock import ManualClock
from runtime.ids import SystemIds
from runtime.metrics import Metrics
from storage.memory import MemoryStore
from storage.objects import (
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStore,
    PutInDoubtError,
    StoreFullError,
    StoreUnavailableError,
    SupportsOpen,
)
from storage.wrappers.faulty import Fault, FaultPlan, FaultRule, Faulty
from storage.wrappers.metered import Metered
from storage.wrappers.retrying import Retrying
from wire.crc import crc32c

BODY = b"0123456789"


def faulty(*rules: FaultRule, clock: ManualClock | None = None) -> tuple[MemoryStore, Faulty]:
    memory = MemoryStore(ManualClock())
    return memory, Faulty(memory, FaultPlan(rules), SystemIds(1), clock or ManualClock())


async def put(store: ObjectStore, key: str = "k") -> None:
    await store.put_if_absent(key, BODY, crc32c=crc32c(BODY))


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"siltstone_{name}", labels)


async def test_requests_bytes_and_seconds_are_counted_by_operation_and_outcome() -> None:
    metrics, clock = Metrics(), ManualClock()
    memory = MemoryStore(clock)
    slow = Faulty(memory, FaultPlan([FaultRule(fault=Fault.DELAY, op="get", delay_ms=1500)]), SystemIds(1), clock)
    store = Metered(slow, metrics, clock)
    await put(store)
    with pytest.raises(ObjectExistsError):
        await put(store)
    assert await store.get("k") == BODY
    assert await store.get_range("k", 0, 4) == BODY[:4]
    with pytest.raises(ObjectNotFoundError):
        await store.head("absent")
    assert [stat.key async for stat in store.list()] == ["k"]
    upload = await store.start_multipart("m")
    await upload.write(BODY)
    await upload.complete()
    await store.delete_many(["k"])

    def requests(op: str, outcome: str) -> float | None:
        return sample(metrics, "object_requests_total", op=op, outcome=outcome)

    assert (requests("put", "ok"), requests("put", "exists")) == (1, 1)
    assert (requests("get", "ok"), requests("get_range", "ok"), requests("head", "not_found")) == (1, 1, 1)
    assert (requests("list", "ok"), requests("delete", "ok"), requests("multipart_complete", "ok")) == (1, 1, 1)
    assert sample(metrics, "object_bytes_total", op="put") == 10
    assert sample(metrics, "object_bytes_total", op="get_range") == 4
    assert sample(metrics, "object_bytes_total", op="multipart_write") == 10
    assert sample(metrics, "object_request_seconds_sum", op="get") == 1.5


async def test_a_listing_that_its_reader_leaves_counts_as_ok() -> None:
    metrics = Metrics()
    store = Metered(MemoryStore(), metrics, ManualClock())
    await put(store)
    listing = store.list()
    assert (await anext(listing)).key == "k"
    await listing.aclose()  # type: ignore[attr-defined]
    assert sample(metrics, "object_requests_total", op="list", outcome="ok") == 1


@pytest.mark.parametrize(
    ("fault", "error", "outcome"),
    [
        (Fault.UNREACHABLE, StoreUnavailableError, "unavailable"),
        (Fault.FULL, StoreFullError, "full"),
        (Fault.LOST_REQUEST, PutInDoubtError, "in_doubt"),
    ],
)
async def test_the_kind_of_error_is_the_outcome(fault: Fault, error: type[Exception], outcome: str) -> None:
    memory, inner = faulty(FaultRule(fault=fault))
    metrics = Metrics()
    with pytest.raises(error):
        await put(Metered(inner, metrics, ManualClock()))
    assert sample(metrics, "object_requests_total", op="put", outcome=outcome) == 1
    with pytest.raises(ObjectNotFoundError):
        await memory.get("k")


async def test_a_lost_answer_comes_after_the_deed() -> None:
    memory, store = faulty(FaultRule(fault=Fault.LOST_ANSWER))
    with pytest.raises(PutInDoubtError):
        await put(store)
    assert await memory.get("k") == BODY
    with pytest.raises(StoreUnavailableError):
        await store.delete_many(["k"])
    with pytest.raises(ObjectNotFoundError):
        await memory.get("k")


async def test_a_rule_strikes_by_operation_key_and_number_of_the_call() -> None:
    memory, store = faulty(FaultRule(fault=Fault.SLOW_DOWN, op="get", key="^l1/", calls=frozenset({2})))
    for key in ("l0/a", "l1/a"):
        await put(memory, key)
    await store.get("l0/a")
    await store.get("l1/a")
    await store.get("l0/a")
    with pytest.raises(StoreUnavailableError, match="slow down"):
        await store.get("l1/a")
    await store.get("l1/a")
    await store.head("l1/a")


async def test_a_rule_with_a_probability_strikes_about_so_often_and_the_same_by_the_same_seed() -> None:
    async def struck() -> list[int]:
        memory, store = faulty(FaultRule(fault=Fault.UNREACHABLE, op="get", probability=0.3))
        await put(memory)
        calls: list[int] = []
        for call in range(200):
            try:
                await store.get("k")
            except StoreUnavailableError:
                calls.append(call)
        return calls

    first = await struck()
    assert 30 < len(first) < 90
    assert await struck() == first


async def test_an_empty_plan_changes_nothing() -> None:
    _, store = faulty()
    await put(store)
    assert await store.get("k") == BODY


async def test_wrappers_pass_open_and_close_on() -> None:
    calls: list[str] = []

    class Opening(MemoryStore):
        async def open(self) -> None:
            calls.append("open")

        async def close(self) -> None:
            calls.append("close")

    store = Metered(Retrying(Opening(), ManualClock(), SystemIds(1)), Metrics(), ManualClock())
    assert isinstance(store, SupportsOpen)
    await store.open()
    await store.close()
    assert calls == ["open", "close"]
