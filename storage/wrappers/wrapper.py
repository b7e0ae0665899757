"""The base of the stores that wrap a store: it passes every call through, so a wrapper states only what it changes.

The stack, from the caller down: Metered (the callers' waits) > Retrying > Hedged, optionally > Metered, optionally
(single requests) > Faulty, in tests > the store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from storage.objects import BegunUpload, Body, Deleted, MultipartUpload, ObjectStat, ObjectStore, SupportsOpen


class WrappedStore:
    """Passes everything to `inner`, including `open` and `close`."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner

    @property
    def inner(self) -> ObjectStore:
        return self._inner

    async def open(self) -> None:
        if isinstance(self._inner, SupportsOpen):
            await self._inner.open()

    async def get(self, key: str) -> bytes:
        return await self._inner.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self._inner.get_range(key, start, length)

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        await self._inner.put_if_absent(key, body, crc32c=crc32c)

    async def head(self, key: str) -> ObjectStat:
        return await self._inner.head(key)

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        return await self._inner.delete_many(keys)

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        async for stat in self._inner.list(prefix, start_after=start_after):
            yield stat

    async def start_multipart(self, key: str) -> MultipartUpload:
        return await self._inner.start_multipart(key)

    async def abort_multiparts(self, *, older_than_ms: int) -> int:
        return await self._inner.abort_multiparts(older_than_ms=older_than_ms)

    async def begun_uploads(self) -> AsyncIterator[BegunUpload]:
        async for upload in self._inner.begun_uploads():
            yield upload

    async def close(self) -> None:
        await self._inner.close()
