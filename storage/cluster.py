"""Checks that this object store and this Postgres belong together: the cluster id is written once in each.

`cluster.json` under the prefix holds the id; Postgres holds the same id, and whether it was ever seen in a store
(`store_bound`). Every process checks before it writes. Otherwise the janitor of another cluster, or of a fresh Postgres
that knows none of the store's files, would sweep the store clean.

Order of writing: Postgres makes the id; `cluster.json` is created if absent; Postgres is marked as bound. A crash after
the second step leaves a store that carries our id and a Postgres that does not know it: the next start finds them in
agreement and binds. `cluster.json` is the first object of a prefix, so "objects but no cluster.json" is never one of
our states.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

from runtime.errors import BadInputError
from storage.keys import CLUSTER_KEY, PROBE_PREFIX
from storage.objects import ObjectExistsError, ObjectNotFoundError, ObjectStore, ObjectStoreError
from wire.crc import crc32c

FORMAT = 1
_CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


class ClusterMismatchError(ObjectStoreError, BadInputError):
    """Object store and Postgres do not belong together, or cannot be shown to. Nothing was written."""


class Action(StrEnum):
    OK = "ok"
    WRITE = "write"
    """Create `cluster.json`. If it exists by then, decide again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile:
    """The content of `cluster.json`."""

    cluster_id: str
    format: int = FORMAT
    l0_store: str = ""
    """The id of the second store, in its own file and in `second-store.json`; empty in every other."""


def encode_cluster_file(cluster: ClusterFile) -> bytes:
    fields: dict[str, object] = {"cluster_id": cluster.cluster_id, "format": cluster.format}
    if cluster.l0_store:
        fields["l0_store"] = cluster.l0_store
    return json.dumps(fields).encode() + b"\n"


def decode_cluster_file(body: bytes) -> ClusterFile:
    """Read the content, ignoring unknown fields. Raises ClusterMismatchError."""
    remedy = "restore the object from a backup; do not write a new one by hand before you know whose bucket it is"
    try:
        loaded: object = json.loads(body)
    except ValueError as error:
        raise ClusterMismatchError(f"{CLUSTER_KEY} is not JSON: {error}", remedy=remedy) from error
    fields = cast("dict[str, object]", loaded) if isinstance(loaded, dict) else {}
    cluster_id, version = fields.get("cluster_id"), fields.get("format")
    # `type`, not `isinstance`: JSON's `true` is an int to Python.
    if not isinstance(cluster_id, str) or _CLUSTER_ID.fullmatch(cluster_id) is None or type(version) is not int:
        raise ClusterMismatchError(f"{CLUSTER_KEY} lacks a cluster_id or a format", remedy=remedy)
    if version != FORMAT:
        raise ClusterMismatchError(
            f"{CLUSTER_KEY} has format {version}, but this release reads only format {FORMAT}",
            remedy="run the release that wrote it, or a later one",
        )
    l0_store = fields.get("l0_store", "")
    return ClusterFile(cluster_id=cluster_id, format=version, l0_store=l0_store if isinstance(l0_store, str) else "")


def decide(identity_id: str, store_bound: bool, stored: ClusterFile | None, prefix_is_empty: bool) -> Action:
    """Decide what to do about Postgres's `identity_id` and the store's content. Raises ClusterMismatchError.

    `prefix_is_empty` counts only when `stored` is None and Postgres is not bound.
    """
    if stored is not None:
        if stored.cluster_id == identity_id:
            return Action.OK
        which = "was bound to another object store" if store_bound else "was never bound to one"
        raise ClusterMismatchError(
            f"the object store belongs to cluster {stored.cluster_id},"
            f" but Postgres belongs to cluster {identity_id} and {which}",
            remedy="correct object.store.url or metadata.url; give a new cluster a prefix of its own",
        )
    if store_bound:
        raise ClusterMismatchError(
            f"Postgres of cluster {identity_id} was bound to an object store, but this one has no {CLUSTER_KEY}",
            remedy="correct object.store.url, or restore the bucket; a fresh bucket needs a fresh Postgres database",
        )
    # A fresh database on a bucket in use looks like this, and its janitor would delete everything.
    if not prefix_is_empty:
        raise ClusterMismatchError(
            f"the object store holds objects but no {CLUSTER_KEY}, and Postgres of cluster {identity_id} is not bound",
            remedy="choose an empty prefix in object.store.url",
        )
    return Action.WRITE


async def check_cluster(store: ObjectStore, *, cluster_id: str, store_bound: bool) -> bool:
    """Check, and mark an empty store as ours. If it returns True, the caller must now call `bind_store()` of the
    metadata.

    Raises ClusterMismatchError, and ValueError for a malformed `cluster_id`.
    """
    if _CLUSTER_ID.fullmatch(cluster_id) is None:
        raise ValueError(f"{cluster_id!r} is not a cluster id")
    # The listing comes first: everything it shows was written after cluster.json. So a process of our own cluster that
    # starts at the same moment cannot look like a stranger's objects.
    is_empty = store_bound or await _is_empty(store)
    action = decide(cluster_id, store_bound, await _read(store), is_empty)
    if action is Action.WRITE:
        body = encode_cluster_file(ClusterFile(cluster_id=cluster_id))
        try:
            await store.put_if_absent(CLUSTER_KEY, body, crc32c=crc32c(body))
        # A process of our own cluster may have been quicker: then the ids agree. Another cluster's file raises here.
        except ObjectExistsError:
            decide(cluster_id, store_bound, await _read(store), is_empty)
    # Bound last, by the caller: a Postgres that says "bound" must find the file, or it refuses to start.
    return not store_bound


async def _read(store: ObjectStore) -> ClusterFile | None:
    try:
        return decode_cluster_file(await store.get(CLUSTER_KEY))
    except ObjectNotFoundError:
        return None


async def _is_empty(store: ObjectStore) -> bool:
    """Whether the store holds no object; leftovers of a killed probe do not count."""
    async for stat in store.list():
        if not stat.key.startswith(PROBE_PREFIX):
            return False
    return True
