"""Bucket and Postgres must belong together: every pair of states, and crashes and races in between."""

from __future__ import annotations

import asyncio

import pytest

from runtime.errors import BadInputError
from storage.cluster import (
    Action,
    ClusterFile,
    ClusterMismatchError,
    check_cluster,
    decide,
    decode_cluster_file,
    encode_cluster_file,
)
from storage.memory import MemoryStore
from storage.objects import ObjectStore
from storage.wrappers.wrapper import WrappedStore
from wire.crc import crc32c

OURS, THEIRS = ClusterFile(cluster_id="ours"), ClusterFile(cluster_id="theirs")


async def put(store: ObjectStore, key: str, body: bytes = b"x") -> None:
    await store.put_if_absent(key, body, crc32c=crc32c(body))


@pytest.mark.parametrize(
    ("bound", "stored", "empty", "expected"),
    [
        (False, None, True, Action.WRITE),  # a new cluster
        (False, OURS, False, Action.OK),  # crashed between writing cluster.json and binding
        (True, OURS, False, Action.OK),  # every other start
        (False, None, False, "holds objects but no cluster.json"),  # a fresh Postgres on another cluster's bucket
        (False, THEIRS, False, "was never bound"),  # a fresh Postgres on a bucket of ours, or a second cluster
        (True, THEIRS, False, "was bound to another"),
        (True, None, True, "has no cluster.json"),  # a wiped or wrong bucket
        (True, None, False, "has no cluster.json"),
    ],
)
def test_what_postgres_and_the_store_say_decides(
    bound: bool, stored: ClusterFile | None, empty: bool, expected: Action | str
) -> None:
    if isinstance(expected, Action):
        assert decide("ours", bound, stored, empty) is expected
        return
    with pytest.raises(ClusterMismatchError, match=expected) as caught:
        decide("ours", bound, stored, empty)
    assert isinstance(caught.value, BadInputError)
    assert "ours" in caught.value.message
    assert caught.value.remedy


async def test_the_first_start_writes_and_asks_to_bind_and_the_next_finds_it() -> None:
    store = MemoryStore()
    assert await check_cluster(store, cluster_id="ours", store_bound=False) is True
    assert decode_cluster_file(await store.get("cluster.json")) == OURS
    assert await check_cluster(store, cluster_id="ours", store_bound=True) is False


async def test_a_crash_before_binding_is_repaired_even_when_files_were_written_since() -> None:
    store = MemoryStore()
    await check_cluster(store, cluster_id="ours", store_bound=False)
    await put(store, "l0/aa/file")
    assert await check_cluster(store, cluster_id="ours", store_bound=False) is True


async def test_a_second_cluster_and_a_fresh_postgres_are_refused_and_nothing_is_written() -> None:
    store = MemoryStore()
    await check_cluster(store, cluster_id="theirs", store_bound=False)
    for bound in (False, True):
        with pytest.raises(ClusterMismatchError):
            await check_cluster(store, cluster_id="ours", store_bound=bound)
    assert [stat.key async for stat in store.list()] == ["cluster.json"]


async def test_a_store_with_objects_of_nobody_is_refused() -> None:
    store = MemoryStore()
    await put(store, "holiday.jpg")
    with pytest.raises(ClusterMismatchError, match="empty prefix") as caught:
        await check_cluster(store, cluster_id="ours", store_bound=False)
    assert "object.store.url" in caught.value.remedy


async def test_what_a_killed_probe_left_does_not_count() -> None:
    store = MemoryStore()
    await put(store, "probe/left")
    assert await check_cluster(store, cluster_id="ours", store_bound=False) is True


async def test_of_two_clusters_that_start_at_once_on_one_store_one_is_refused() -> None:
    store = MemoryStore()
    answers = await asyncio.gather(
        *(check_cluster(store, cluster_id=name, store_bound=False) for name in ("one", "two")), return_exceptions=True
    )
    assert sorted(type(answer) for answer in answers if answer is not True) == [ClusterMismatchError]


async def test_processes_of_one_cluster_that_start_at_once_agree() -> None:
    store = MemoryStore()
    answers = await asyncio.gather(*(check_cluster(store, cluster_id="ours", store_bound=False) for _ in range(5)))
    assert answers == [True] * 5


async def test_a_process_of_ours_that_overtakes_us_with_a_file_is_no_stranger() -> None:
    # Right after our first look for cluster.json the other process writes cluster.json and a file.
    class Overtaken(WrappedStore):
        async def get(self, key: str) -> bytes:
            try:
                return await super().get(key)
            finally:
                await self.overtake()

        async def overtake(self) -> None:
            if not [stat async for stat in self._inner.list()]:
                await put(self._inner, "cluster.json", encode_cluster_file(OURS))
                await put(self._inner, "l0/aa/file")

    assert await check_cluster(Overtaken(MemoryStore()), cluster_id="ours", store_bound=False) is True


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"cluster_id": 1, "format": 1}',
        b'{"cluster_id": "a b", "format": 1}',
        b'{"cluster_id": "ours"}',
        b'{"cluster_id": "ours", "format": true}',
        b'{"cluster_id": "ours", "format": 2}',
    ],
)
async def test_a_damaged_or_newer_cluster_file_is_refused(body: bytes) -> None:
    store = MemoryStore()
    await put(store, "cluster.json", body)
    with pytest.raises(ClusterMismatchError) as caught:
        await check_cluster(store, cluster_id="ours", store_bound=True)
    assert caught.value.remedy


def test_the_cluster_file_is_as_specified_and_fields_of_later_releases_are_let_be() -> None:
    assert encode_cluster_file(OURS) == b'{"cluster_id": "ours", "format": 1}\n'
    assert decode_cluster_file(b'{"cluster_id": "ours", "format": 1, "made_by": "x"}') == OURS
