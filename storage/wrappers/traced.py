"""A span for each request to the object store that is part of traced work. In the stack it stands below `Retrying`, so
that each try has a span. It is put there only if tracing is on: see `siltstone/processes/opening.py` and
`storage/wrappers/wrapper.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from runtime.tracing import AttributeValue, Span, SpanKind, child_span
from storage.objects import Body, Deleted, MultipartUpload, ObjectStat
from storage.wrappers.wrapper import WrappedStore


class Traced(WrappedStore):
    async def get(self, key: str) -> bytes:
        with _request("get", key):
            return await self._inner.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        with _request("get_range", key, {"siltstone.object.start": start, "siltstone.object.bytes": length}):
            return await self._inner.get_range(key, start, length)

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        with _request("put", key, {"siltstone.object.bytes": len(body)}):
            await self._inner.put_if_absent(key, body, crc32c=crc32c)

    async def head(self, key: str) -> ObjectStat:
        with _request("head", key):
            return await self._inner.head(key)

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        with child_span("object_store delete", kind=SpanKind.CLIENT, attributes={"siltstone.objects": len(keys)}):
            return await self._inner.delete_many(keys)

    async def start_multipart(self, key: str) -> MultipartUpload:
        with _request("multipart_start", key):
            return TracedMultipart(key, await self._inner.start_multipart(key))


class TracedMultipart:
    def __init__(self, key: str, inner: MultipartUpload) -> None:
        self._key = key
        self._inner = inner

    async def write(self, part: Body) -> None:
        with _request("multipart_write", self._key, {"siltstone.object.bytes": len(part)}):
            await self._inner.write(part)

    async def complete(self) -> None:
        with _request("multipart_complete", self._key):
            await self._inner.complete()

    async def abort(self) -> None:
        with _request("multipart_abort", self._key):
            await self._inner.abort()


def _request(
    operation: str, key: str, more: dict[str, AttributeValue] | None = None
) -> AbstractContextManager[Span | None]:
    attributes: dict[str, AttributeValue] = {"siltstone.object.key": key, **(more or {})}
    return child_span(f"object_store {operation}", kind=SpanKind.CLIENT, attributes=attributes)
