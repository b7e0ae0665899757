"""Two stores as one: L0 files in a second, quicker store, everything else in the first. Pure routing.

Reads of an L0 file ask the second store, then the first: the file may be older than the second store, or the second may
be on its way out (`writes` false). So no switch makes a file unfindable. A file lies in one store only, because its key
is unique and is written once. Deletes of L0 files go to both, which costs one more DELETE and asks nothing.

Of the second store only `l0/` is shown. Its `cluster.json` (`storage/second_store.py`) and its probes are its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from storage.keys import L0_PREFIX
from storage.objects import (
    BegunUpload,
    Body,
    Deleted,
    MultipartUpload,
    ObjectNotFoundError,
    ObjectStat,
    ObjectStore,
    SupportsOpen,
)
from storage.wrappers.wrapper import WrappedStore


class ByLevel:
    """`first` holds everything but L0, `second` holds L0. `writes`: new L0 files go to `second`, else to `first`."""

    def __init__(self, first: ObjectStore, second: ObjectStore, *, writes: bool = True) -> None:
        self.first = first
        self.second = second
        self._writes = writes

    async def open(self) -> None:
        for store in (self.first, self.second):
            if isinstance(store, SupportsOpen):
                await store.open()

    async def close(self) -> None:
        try:
            await self.second.close()
        finally:
            await self.first.close()

    async def get(self, key: str) -> bytes:
        if not is_l0(key):
            return await self.first.get(key)
        try:
            return await self.second.get(key)
        except ObjectNotFoundError:
            return await self.first.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        if not is_l0(key):
            return await self.first.get_range(key, start, length)
        try:
            return await self.second.get_range(key, start, length)
        except ObjectNotFoundError:
            return await self.first.get_range(key, start, length)

    async def head(self, key: str) -> ObjectStat:
        if not is_l0(key):
            return await self.first.head(key)
        try:
            return await self.second.head(key)
        except ObjectNotFoundError:
            return await self.first.head(key)

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        await self._to_write(key).put_if_absent(key, body, crc32c=crc32c)

    async def start_multipart(self, key: str) -> MultipartUpload:
        return await self._to_write(key).start_multipart(key)

    async def abort_multiparts(self, *, older_than_ms: int) -> int:
        aborted = await self.second.abort_multiparts(older_than_ms=older_than_ms)
        return aborted + await self.first.abort_multiparts(older_than_ms=older_than_ms)

    async def begun_uploads(self) -> AsyncIterator[BegunUpload]:
        for store in (self.second, self.first):
            async for upload in store.begun_uploads():
                yield upload

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        """A key counts as deleted when every store that may hold it says so."""
        first = await self.first.delete_many(keys)
        l0 = [key for key in keys if is_l0(key)]
        if not l0:
            return first
        second = await self.second.delete_many(l0)
        failed = {**first.failed, **second.failed}
        return Deleted(keys=tuple(key for key in first.keys if key not in failed), failed=failed)

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        first = self.first.list(prefix, start_after=start_after)
        if not may_hold_l0(prefix):
            async for stat in first:
                yield stat
            return
        # Both listings come in key order, so one object of each is held.
        second = self.second.list(max(prefix, L0_PREFIX, key=len), start_after=start_after)
        async for stat in _merged(first, second):
            yield stat

    def _to_write(self, key: str) -> ObjectStore:
        return self.second if self._writes and is_l0(key) else self.first


async def _merged(first: AsyncIterator[ObjectStat], second: AsyncIterator[ObjectStat]) -> AsyncIterator[ObjectStat]:
    """Two listings in key order as one. A key in both is shown once: it is one object to every reader."""
    ours, theirs = await anext(first, None), await anext(second, None)
    while ours is not None and theirs is not None:
        if ours.key.encode() < theirs.key.encode():
            yield ours
            ours = await anext(first, None)
            continue
        if ours.key == theirs.key:
            ours = await anext(first, None)
        yield theirs
        theirs = await anext(second, None)
    for stat, rest in ((ours, first), (theirs, second)):
        if stat is not None:
            yield stat
            async for later in rest:
                yield later


def is_l0(key: str) -> bool:
    """Whether the object belongs in the second store."""
    return key.startswith(L0_PREFIX)


def may_hold_l0(prefix: str) -> bool:
    """Whether a listing of `prefix` may show L0 files."""
    return prefix.startswith(L0_PREFIX) or L0_PREFIX.startswith(prefix)


def by_level(store: ObjectStore) -> ByLevel | None:
    """The two stores below the wrappers; None where there is one store."""
    while isinstance(store, WrappedStore):
        store = store.inner
    return store if isinstance(store, ByLevel) else None
