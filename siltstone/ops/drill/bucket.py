"""The bucket as a drill sees it: it reads the real one, and keeps in memory what a rebuild writes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from runtime.errors import BugError
from storage.memory import MemoryStore
from storage.objects import BegunUpload, Body, Deleted, MultipartUpload, ObjectStat, ObjectStore
from storage.wrappers.wrapper import WrappedStore


class UnchangedBucket(WrappedStore):
    """Nothing is written to the real store or deleted from it. What was written is read from memory, but not listed."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._written = MemoryStore()
        self._keys: set[str] = set()

    async def get(self, key: str) -> bytes:
        return await self._holding(key).get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self._holding(key).get_range(key, start, length)

    async def head(self, key: str) -> ObjectStat:
        return await self._holding(key).head(key)

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        await self._written.put_if_absent(key, body, crc32c=crc32c)
        self._keys.add(key)

    async def start_multipart(self, key: str) -> MultipartUpload:
        self._keys.add(key)
        return await self._written.start_multipart(key)

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        raise BugError(f"a drill must delete nothing, and was about to delete {len(keys)} objects")

    async def abort_multiparts(self, *, older_than_ms: int) -> int:
        raise BugError("a drill must end no upload")

    async def begun_uploads(self) -> AsyncIterator[BegunUpload]:
        async for upload in self._written.begun_uploads():
            yield upload

    def _holding(self, key: str) -> ObjectStore:
        return self._written if key in self._keys else self._inner


class ListedSizes(WrappedStore):
    """Answers `head` from a listing, but for the keys of a sample: a request for each object of a bucket takes long."""

    def __init__(self, inner: ObjectStore, sizes: dict[str, int], sample: frozenset[str]) -> None:
        super().__init__(inner)
        self._sizes, self._sample = sizes, sample

    async def head(self, key: str) -> ObjectStat:
        if key in self._sizes and key not in self._sample:
            return ObjectStat(key=key, size_bytes=self._sizes[key], last_modified_ms=0)
        return await self._inner.head(key)
