"""Counts requests, bytes and seconds, by operation. In the stack: above `Retrying` it shows the callers' waits, below
it the cost of single requests. It changes nothing (see `storage/wrappers/wrapper.py`).

Outcomes are `ok` or the kind of error. A listing counts once, when it ends or its reader leaves it, with the seconds it
lasted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import contextmanager

from runtime.clock import Clock
from runtime.metrics import Metrics
from storage.keys import BadKeyError
from storage.objects import (
    BegunUpload,
    Body,
    ChecksumMismatchError,
    Deleted,
    MultipartUpload,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStat,
    ObjectStore,
    PutInDoubtError,
    StoreFullError,
    StoreMisconfiguredError,
    StoreUnavailableError,
)
from storage.wrappers.wrapper import WrappedStore

_OUTCOMES: tuple[tuple[type[BaseException], str], ...] = (
    (ObjectNotFoundError, "not_found"),
    (ObjectExistsError, "exists"),
    (PutInDoubtError, "in_doubt"),
    (StoreFullError, "full"),
    (StoreUnavailableError, "unavailable"),
    (StoreMisconfiguredError, "misconfigured"),
    (ChecksumMismatchError, "checksum"),
    (BadKeyError, "bad_key"),
)


class Metered(WrappedStore):
    def __init__(self, inner: ObjectStore, metrics: Metrics, clock: Clock) -> None:
        super().__init__(inner)
        self._metrics = metrics
        self._clock = clock

    async def get(self, key: str) -> bytes:
        with self.measured("get"):
            body = await self._inner.get(key)
        self.count_bytes("get", len(body))
        return body

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        with self.measured("get_range"):
            body = await self._inner.get_range(key, start, length)
        self.count_bytes("get_range", len(body))
        return body

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        with self.measured("put"):
            await self._inner.put_if_absent(key, body, crc32c=crc32c)
        self.count_bytes("put", len(body))

    async def head(self, key: str) -> ObjectStat:
        with self.measured("head"):
            return await self._inner.head(key)

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        with self.measured("delete"):
            return await self._inner.delete_many(keys)

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        with self.measured("list"):
            async for stat in self._inner.list(prefix, start_after=start_after):
                yield stat

    async def start_multipart(self, key: str) -> MultipartUpload:
        with self.measured("multipart_start"):
            return MeteredMultipart(self, await self._inner.start_multipart(key))

    async def abort_multiparts(self, *, older_than_ms: int) -> int:
        with self.measured("multipart_sweep"):
            return await self._inner.abort_multiparts(older_than_ms=older_than_ms)

    async def begun_uploads(self) -> AsyncIterator[BegunUpload]:
        with self.measured("multipart_list"):
            async for upload in self._inner.begun_uploads():
                yield upload

    @contextmanager
    def measured(self, op: str) -> Generator[None]:
        started_ms = self._clock.monotonic_ms()
        outcome = "ok"
        try:
            yield
        # Cancellations too: a request that was given up took its time all the same.
        except BaseException as error:
            outcome = _outcome(error)
            raise
        finally:
            self._metrics.object_requests_total.labels(op=op, outcome=outcome).inc()
            self._metrics.object_request_seconds.labels(op=op).observe((self._clock.monotonic_ms() - started_ms) / 1000)

    def count_bytes(self, op: str, size_bytes: int) -> None:
        self._metrics.object_bytes_total.labels(op=op).inc(size_bytes)


class MeteredMultipart:
    def __init__(self, store: Metered, inner: MultipartUpload) -> None:
        self._store = store
        self._inner = inner

    async def write(self, part: Body) -> None:
        with self._store.measured("multipart_write"):
            await self._inner.write(part)
        self._store.count_bytes("multipart_write", len(part))

    async def complete(self) -> None:
        with self._store.measured("multipart_complete"):
            await self._inner.complete()

    async def abort(self) -> None:
        with self._store.measured("multipart_abort"):
            await self._inner.abort()


def _outcome(error: BaseException) -> str:
    if isinstance(error, GeneratorExit):
        return "ok"  # a listing that its reader left early
    for kind, name in _OUTCOMES:
        if isinstance(error, kind):
            return name
    return "error" if isinstance(error, Exception) else "cancelled"
