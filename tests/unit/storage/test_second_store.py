"""The second store must be the one that holds this cluster's L0 files, and nobody may work without it."""

from __future__ import annotations

import asyncio

import pytest

from runtime.clock import SystemClock
from runtime.ids import SystemIds
from storage.by_level import ByLevel
from storage.cluster import ClusterFile, ClusterMismatchError, check_cluster, decode_cluster_file
from storage.memory import MemoryStore
from storage.objects import Body, ObjectStore, StoreUnavailableError
from storage.second_store import SecondFacts, Step, check_second, decide_second, look
from wire.crc import crc32c

IDS, CLOCK = SystemIds(), SystemClock()
FIRST = ClusterFile(cluster_id="ours")
SECOND = ClusterFile(cluster_id="ours", l0_store="a")


def facts(**changed: object) -> SecondFacts:
    usual: dict[str, object] = {"cluster_id": "ours", "first": FIRST, "named": SECOND, "configured": True}
    return SecondFacts(**{**usual, "second": SECOND, "second_is_empty": False, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, Step.DONE),
        ({"named": None}, Step.NAME),  # crashed after the second store's file
        ({"named": None, "second": None, "second_is_empty": True}, Step.MARK),  # a new second store
        ({"named": None, "configured": False}, Step.DONE),  # no second store at all
        ({"configured": False}, "produce.store.url is empty"),
        ({"second": None, "second_is_empty": True}, "is not the one with the L0 files"),
        ({"second": None, "named": None}, "holds objects of somebody else"),
        ({"second": ClusterFile(cluster_id="theirs", l0_store="b")}, "the L0 files of cluster theirs"),
        ({"second": ClusterFile(cluster_id="theirs"), "named": None}, "all files of cluster theirs"),
        ({"second": FIRST, "named": None}, "all files of cluster ours"),  # both URLs lead to one store
        ({"second": ClusterFile(cluster_id="ours", l0_store="b")}, "another than the one"),
        ({"first": SECOND, "second": FIRST, "named": None}, "object.store.url names the store of L0 files"),
        ({"named": ClusterFile(cluster_id="theirs", l0_store="a")}, "belongs to cluster theirs"),
    ],
)
def test_what_both_stores_say_decides(changed: dict[str, object], expected: Step | str) -> None:
    if isinstance(expected, Step):
        assert decide_second(facts(**changed)) is expected
        return
    with pytest.raises(ClusterMismatchError) as refused:
        decide_second(facts(**changed))
    assert expected in refused.value.message
    assert "store.url" in f"{refused.value.message} {refused.value.remedy}"


async def start(store: ObjectStore, *, bound: bool = True) -> None:
    await check_cluster(store, cluster_id="ours", store_bound=bound)
    await check_second(store, cluster_id="ours", ids=IDS, clock=CLOCK)


async def put(store: ObjectStore, key: str) -> None:
    await store.put_if_absent(key, b"x", crc32c=crc32c(b"x"))


async def test_starts_at_once_agree_on_one_second_store_and_later_ones_write_nothing() -> None:
    first, second = MemoryStore(), MemoryStore()
    await asyncio.gather(*(start(ByLevel(first, second), bound=False) for _ in range(5)))
    marked = await second.get("cluster.json")
    assert await first.get("second-store.json") == marked
    assert decode_cluster_file(marked).l0_store
    await start(ByLevel(first, second, writes=False))
    assert [stat.key async for stat in first.list()] == ["cluster.json", "second-store.json"]
    assert [stat.key async for stat in second.list()] == ["cluster.json"]


async def test_after_the_first_start_no_other_second_store_is_taken_and_none_at_all_neither() -> None:
    first, second, stranger, used = MemoryStore(), MemoryStore(), MemoryStore(), MemoryStore()
    await start(ByLevel(first, second), bound=False)
    await check_cluster(stranger, cluster_id="theirs", store_bound=False)
    await put(used, "l0/x")
    for wrong in (first, ByLevel(first, MemoryStore()), ByLevel(first, stranger), ByLevel(first, used)):
        for asked in (start(wrong), look(wrong, cluster_id="ours", ids=IDS, clock=CLOCK)):
            with pytest.raises(ClusterMismatchError, match=r"produce\.store\.url"):
                await asked
    for swapped in (ByLevel(second, first), second):
        with pytest.raises(ClusterMismatchError, match=r"object\.store\.url"):
            await start(swapped)
    assert [stat.key async for stat in stranger.list()] == ["cluster.json"]
    assert [stat.key async for stat in used.list()] == ["l0/x"]
    await start(ByLevel(first, second))


async def test_a_second_store_in_use_is_not_taken_by_a_cluster_that_has_none_yet() -> None:
    first, foreign, used = MemoryStore(), MemoryStore(), MemoryStore()
    await start(first, bound=False)
    await check_cluster(foreign, cluster_id="theirs", store_bound=False)
    await put(used, "l0/x")
    for wrong in (foreign, used):
        with pytest.raises(ClusterMismatchError, match=r"produce\.store\.url"):
            await start(ByLevel(first, wrong))
    assert [stat.key async for stat in first.list()] == ["cluster.json"]


class DiesNaming(MemoryStore):
    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        if key == "second-store.json":
            raise StoreUnavailableError("killed")
        await super().put_if_absent(key, body, crc32c=crc32c)


async def test_a_crash_between_the_two_files_is_made_good_by_the_next_start() -> None:
    first, second = DiesNaming(), MemoryStore()
    with pytest.raises(StoreUnavailableError):
        await start(ByLevel(first, second), bound=False)
    marked = await second.get("cluster.json")
    sound = MemoryStore()
    await put(sound, "x")
    await sound.put_if_absent(
        "cluster.json", await first.get("cluster.json"), crc32c=crc32c(await first.get("cluster.json"))
    )
    await start(ByLevel(sound, second))
    assert await sound.get("second-store.json") == marked


class WithOldRights(MemoryStore):
    """A role that was made for one store: it may list, and get no other key than it ever did."""

    async def get(self, key: str) -> bytes:
        assert key == "cluster.json"
        return await super().get(key)


async def test_a_cluster_with_one_store_needs_no_right_that_it_did_not_need_before() -> None:
    first = WithOldRights()
    await start(first, bound=False)
    await start(first)


async def test_when_the_name_is_taken_away_the_cluster_works_with_one_store_again() -> None:
    first, second = MemoryStore(), MemoryStore()
    await start(ByLevel(first, second), bound=False)
    await first.delete_many(["second-store.json"])
    await start(first)


async def test_a_start_is_not_refused_because_another_one_marks_the_store_meanwhile() -> None:
    first = MemoryStore()

    class Overtaken(MemoryStore):
        """After the listing of a start that found nothing, another process goes through its whole start."""

        gets = 0

        async def get(self, key: str) -> bytes:
            self.gets += 1
            try:
                return await super().get(key)
            finally:
                if self.gets == 2:
                    await start(ByLevel(first, self), bound=False)

    await start(ByLevel(first, Overtaken()), bound=False)
    assert decode_cluster_file(await first.get("second-store.json")).l0_store
