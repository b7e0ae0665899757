"""Checks that the store of the L0 files belongs to this cluster, and that nobody works without it.

The second store holds a `cluster.json` of its own with an id of the store; the first store holds `second-store.json`
with the same id. So a second store that is foreign, empty, swapped with the first or simply another one is refused,
and so is a process whose `produce.store.url` is empty: it would not find the L0 files.

Order of writing: `cluster.json` of the second store, then `second-store.json` of the first. A crash in between leaves a
second store of our cluster that the first does not name; the next start names it. No L0 file is written before that.
A person takes the second store away, by deleting `second-store.json` when no L0 file is left there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from runtime.clock import Clock
from runtime.ids import IdSource
from storage.by_level import by_level
from storage.cluster import ClusterFile, ClusterMismatchError, decode_cluster_file, encode_cluster_file
from storage.keys import CLUSTER_KEY, PROBE_PREFIX, SECOND_KEY
from storage.objects import ObjectExistsError, ObjectNotFoundError, ObjectStore
from storage.wrappers.retrying import Retrying
from wire.crc import crc32c


class Step(StrEnum):
    DONE = "done"
    MARK = "mark"
    """Create `cluster.json` in the second store, then look again."""
    NAME = "name"
    """Create `second-store.json` in the first store, then look again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondFacts:
    """The state of both stores."""

    cluster_id: str
    first: ClusterFile | None
    named: ClusterFile | None
    """The content of `second-store.json`."""
    configured: bool
    second: ClusterFile | None = None
    second_is_empty: bool = True


def decide_second(facts: SecondFacts) -> Step:
    """The next step. Raises ClusterMismatchError."""
    named, second = facts.named, facts.second
    if facts.first is not None and facts.first.l0_store:
        raise ClusterMismatchError(
            f"object.store.url names the store of L0 files of cluster {facts.first.cluster_id}",
            remedy="exchange object.store.url and produce.store.url",
        )
    if named is not None and named.cluster_id != facts.cluster_id:
        raise ClusterMismatchError(
            f"{SECOND_KEY} belongs to cluster {named.cluster_id}, not to {facts.cluster_id}",
            remedy="correct object.store.url",
        )
    if not facts.configured:
        if named is None:
            return Step.DONE
        raise ClusterMismatchError(
            f"cluster {facts.cluster_id} keeps L0 files in a second store, and produce.store.url is empty",
            remedy="set produce.store.url; to give the second store up, see docs/operations/second-store.md",
        )
    if second is None:
        if named is None and facts.second_is_empty:
            return Step.MARK
        what = "holds objects of somebody else" if named is None else "is not the one with the L0 files"
        raise ClusterMismatchError(
            f"the store of produce.store.url has no {CLUSTER_KEY} and {what}",
            remedy="correct produce.store.url; a new second store needs an empty prefix",
        )
    if second.cluster_id != facts.cluster_id or not second.l0_store:
        what = "the L0 files" if second.l0_store else "all files"
        raise ClusterMismatchError(
            f"the store of produce.store.url holds {what} of cluster {second.cluster_id}; this is {facts.cluster_id}",
            remedy="correct produce.store.url; a new second store needs an empty prefix",
        )
    if named is None:
        return Step.NAME
    if named.l0_store != second.l0_store:
        raise ClusterMismatchError(
            f"the store of produce.store.url is another than the one that holds the L0 files of {facts.cluster_id}",
            remedy="set produce.store.url to the store that was used before",
        )
    return Step.DONE


async def check_second(store: ObjectStore, *, cluster_id: str, ids: IdSource, clock: Clock) -> None:
    """Check the second store, and mark an empty one as ours. Raises ClusterMismatchError."""
    step = await look(store, cluster_id=cluster_id, ids=ids, clock=clock)
    while step is not Step.DONE:
        second = second_of(store, clock, ids)
        if second is None:
            return
        if step is Step.MARK:
            file = ClusterFile(cluster_id=cluster_id, l0_store=str(ids.uuid7(clock.wall_ms())))
            await _create(second, CLUSTER_KEY, file)
        else:
            file = decode_cluster_file(await second.get(CLUSTER_KEY))
            await _create(store, SECOND_KEY, file)
        step = await look(store, cluster_id=cluster_id, ids=ids, clock=clock)


async def look(store: ObjectStore, *, cluster_id: str, ids: IdSource, clock: Clock) -> Step:
    """What a starting process would do now. Writes nothing. Raises ClusterMismatchError."""
    # Read before the second store: what the first names was marked before, even if another process does both now.
    first, named = await _read(store, CLUSTER_KEY), await _named(store)
    second = second_of(store, clock, ids)
    marked = None if second is None else await _read(second, CLUSTER_KEY)
    is_empty = True
    if second is not None and marked is None:
        is_empty = await _is_empty(second)
        # Read after the listing, because what that shows was written after `cluster.json`.
        marked = await _read(second, CLUSTER_KEY)
    return decide_second(
        SecondFacts(
            cluster_id=cluster_id,
            first=first,
            named=named,
            configured=second is not None,
            second=marked,
            second_is_empty=is_empty,
        )
    )


def second_of(store: ObjectStore, clock: Clock, ids: IdSource) -> ObjectStore | None:
    """The second store alone, with retries; None where there is one store."""
    both = by_level(store)
    return None if both is None else Retrying(both.second, clock, ids)


async def _create(store: ObjectStore, key: str, file: ClusterFile) -> None:
    body = encode_cluster_file(file)
    try:
        await store.put_if_absent(key, body, crc32c=crc32c(body))
    except ObjectExistsError:
        return  # another process was quicker; the next look judges its file


async def _named(store: ObjectStore) -> ClusterFile | None:
    """The content of `second-store.json`, None without one.

    It is looked for by a listing. Roles made for one store may list the bucket, but may not get this key.
    """
    async for stat in store.list(SECOND_KEY):
        if stat.key == SECOND_KEY:
            return await _read(store, SECOND_KEY)
    return None


async def _read(store: ObjectStore, key: str) -> ClusterFile | None:
    try:
        return decode_cluster_file(await store.get(key))
    except ObjectNotFoundError:
        return None


async def _is_empty(store: ObjectStore) -> bool:
    async for stat in store.list():
        if not stat.key.startswith(PROBE_PREFIX):
            return False
    return True
