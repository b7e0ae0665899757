"""An object store in memory: for tests, the simulation and `memory://`. Its objects end with the process.

Every method yields to the event loop once before it acts, so that callers interleave as they would over a network.
Everything after the yield is atomic.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import AsyncIterator, Sequence

from runtime.clock import Clock, SystemClock
from storage.keys import check_key
from storage.objects import (
    BegunUpload,
    Body,
    ChecksumMismatchError,
    Deleted,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStat,
    check_range,
)
from wire.crc import crc32c as compute_crc32c


class MemoryStore:
    """Objects in a dict, their keys in a sorted list of UTF-8 bytes."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._objects: dict[str, tuple[bytes, ObjectStat]] = {}
        self._sorted_keys: list[bytes] = []
        self._uploads: dict[MemoryMultipart, int] = {}

    async def get(self, key: str) -> bytes:
        return (await self._find(key))[0]

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(start, length)
        return (await self._find(key))[0][start : start + length]

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        check_key(key)
        await asyncio.sleep(0)
        # A copy: the caller may change its buffer after the call, and objects never change.
        stored = bytes(body)
        if compute_crc32c(stored) != crc32c:
            raise ChecksumMismatchError(key)
        self.publish(key, stored, crc32c)

    def publish(self, key: str, stored: bytes, crc32c: int) -> None:
        """Raises ObjectExistsError."""
        if key in self._objects:
            raise ObjectExistsError(key)
        stat = ObjectStat(key=key, size_bytes=len(stored), last_modified_ms=self._clock.wall_ms(), crc32c=crc32c)
        self._objects[key] = (stored, stat)
        insort(self._sorted_keys, key.encode())

    async def head(self, key: str) -> ObjectStat:
        return (await self._find(key))[1]

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        for key in keys:
            check_key(key)
        await asyncio.sleep(0)
        for key in keys:
            if self._objects.pop(key, None) is not None:
                del self._sorted_keys[bisect_left(self._sorted_keys, key.encode())]
        return Deleted(keys=tuple(keys), failed={})

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        wanted, last = prefix.encode(), start_after.encode()
        while True:
            await asyncio.sleep(0)
            # Looked up again each time: the list may have changed while the caller had control.
            position = bisect_left(self._sorted_keys, max(wanted, last))
            if position < len(self._sorted_keys) and self._sorted_keys[position] == last:
                position += 1
            if position == len(self._sorted_keys) or not self._sorted_keys[position].startswith(wanted):
                return
            last = self._sorted_keys[position]
            yield self._objects[last.decode()][1]

    async def start_multipart(self, key: str) -> MemoryMultipart:
        check_key(key)
        await asyncio.sleep(0)
        upload = MemoryMultipart(self, key)
        self._uploads[upload] = self._clock.wall_ms()
        return upload

    async def abort_multiparts(self, *, older_than_ms: int) -> int:
        stale = [upload for upload, begun_ms in self._uploads.items() if begun_ms < older_than_ms]
        for upload in stale:
            await upload.abort()
        return len(stale)

    async def begun_uploads(self) -> AsyncIterator[BegunUpload]:
        for upload, begun_ms in list(self._uploads.items()):
            await asyncio.sleep(0)
            yield BegunUpload(key=upload.key, begun_ms=begun_ms)

    async def close(self) -> None:
        """Objects stay: a test may look at what a stopped process left."""

    async def _find(self, key: str) -> tuple[bytes, ObjectStat]:
        check_key(key)
        await asyncio.sleep(0)
        try:
            return self._objects[key]
        except KeyError:
            raise ObjectNotFoundError(key) from None

    def forget_upload(self, upload: MemoryMultipart) -> None:
        self._uploads.pop(upload, None)


class MemoryMultipart:
    def __init__(self, store: MemoryStore, key: str) -> None:
        self._store = store
        self.key = key
        self._parts: list[bytes] = []

    async def write(self, part: Body) -> None:
        await asyncio.sleep(0)
        self._parts.append(bytes(part))

    async def complete(self) -> None:
        body = b"".join(self._parts)
        await asyncio.sleep(0)
        self._store.publish(self.key, body, compute_crc32c(body))
        self._store.forget_upload(self)

    async def abort(self) -> None:
        self._parts.clear()
        self._store.forget_upload(self)
