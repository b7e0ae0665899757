"""Tries again, and settles PUTs whose answer was lost. In the stack: right below the callers, above everything that
talks to a store once (see `storage/wrappers/wrapper.py`).

Between tries it waits a random part of a time that doubles (full jitter), from `base_ms` up to `cap_ms`, until
`deadline_ms` after the call began. It does not try again after an error that is not retriable, nor when the store is
full, because time heals that but a loop does not.

HEAD settles a PUT in doubt. Keys are unique and objects written once, so an object of our length and our CRC-32C is
ours; one that differs is somebody else's. Absence proves nothing (the request may still be on its way), so the PUT is
made again, which If-None-Match keeps safe. "Exists" on the first try goes straight to the caller. On a later try the
object may come from our own earlier one, so it is settled too. A PUT that was ever in doubt ends in doubt at the
deadline.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from runtime.clock import Clock
from runtime.ids import IdSource
from runtime.logging import get_logger
from storage.objects import (
    BegunUpload,
    Body,
    Deleted,
    MultipartUpload,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStat,
    ObjectStore,
    ObjectStoreError,
    PutInDoubtError,
    StoreFullError,
)
from storage.parts import crc32c_of
from storage.wrappers.wrapper import WrappedStore
from wire.crc import crc32c as compute_crc32c

_log = get_logger(__name__)

T = TypeVar("T")

SETTLE_READ_BYTES = 8 * 1024 * 1024


class Retrying(WrappedStore):
    """A store with retries. `deadline_ms`, counted from the call, bounds when its last try may begin."""

    def __init__(
        self,
        inner: ObjectStore,
        clock: Clock,
        ids: IdSource,
        *,
        deadline_ms: float = 20_000,
        base_ms: float = 50,
        cap_ms: float = 5_000,
    ) -> None:
        super().__init__(inner)
        self._clock = clock
        self._ids = ids
        self._deadline_ms = deadline_ms
        self._base_ms = base_ms
        self._cap_ms = cap_ms

    async def get(self, key: str) -> bytes:
        return await self.retry(lambda: self._inner.get(key))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self.retry(lambda: self._inner.get_range(key, start, length))

    async def head(self, key: str) -> ObjectStat:
        return await self.retry(lambda: self._inner.head(key))

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        await self.publish(
            lambda: self._inner.put_if_absent(key, body, crc32c=crc32c), key, size_bytes=len(body), crc32c=crc32c
        )

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        """A request that failed as a whole is made again; keys that failed alone are left to the caller."""
        return await self.retry(lambda: self._inner.delete_many(keys))

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        """After a failure the listing goes on behind the last key seen. Each stretch without a failure has the whole
        deadline for the next.
        """
        tries = self._tries()
        while True:
            try:
                async for stat in self._inner.list(prefix, start_after=start_after):
                    # Before the yield: should the next page fail, the caller has had this key.
                    start_after = stat.key
                    tries = self._tries()
                    yield stat
                return
            except ObjectStoreError as error:
                await tries.wait_or_raise(error)

    async def start_multipart(self, key: str) -> MultipartUpload:
        return RetryingMultipart(self, key, await self.retry(lambda: self._inner.start_multipart(key)))

    async def abort_multiparts(self, *, older_than_ms: int) -> int:
        return await self.retry(lambda: self._inner.abort_multiparts(older_than_ms=older_than_ms))

    async def begun_uploads(self) -> AsyncIterator[BegunUpload]:
        for upload in await self.retry(self._all_uploads):
            yield upload

    async def _all_uploads(self) -> Sequence[BegunUpload]:
        return [upload async for upload in self._inner.begun_uploads()]

    async def retry(self, call: Callable[[], Awaitable[T]], tries: _Tries | None = None) -> T:
        """Retry a call that may be repeated unchanged."""
        tries = tries or self._tries()
        while True:
            try:
                return await call()
            except ObjectStoreError as error:
                await tries.wait_or_raise(error)

    async def publish(self, call: Callable[[], Awaitable[None]], key: str, *, size_bytes: int, crc32c: int) -> None:
        """Retry a call that creates an object if it is absent. Raises ObjectExistsError, PutInDoubtError."""
        tries = self._tries()
        doubt: PutInDoubtError | None = None
        is_first = True
        while True:
            try:
                return await call()
            except (ObjectExistsError, PutInDoubtError) as error:
                if isinstance(error, PutInDoubtError):
                    doubt = error
                    _log.debug("put in doubt, settling it", key=key, error=str(error))
                # No earlier try of ours can have made it: it is another's.
                elif is_first:
                    raise
                # HEAD shares the call's deadline: settling must not outlast the time in which a try may begin.
                if await self._settle(key, size_bytes, crc32c, doubt or error, tries):
                    return None
                await tries.wait_or_raise(doubt or error)
            except ObjectStoreError as error:
                if not tries.may_go_on(error):
                    # A PUT that was in doubt once stays so: "unavailable" would claim that nothing was written.
                    raise doubt or error  # noqa: B904  # the context is the error
                await tries.wait_or_raise(error)
            is_first = False

    async def _settle(self, key: str, size_bytes: int, crc32c: int, unsettled: ObjectStoreError, tries: _Tries) -> bool:
        """Whether the object is there and ours; False when it is absent.

        Raises ObjectExistsError for another's object, and `unsettled` when HEAD does not answer in the rest of the
        time.
        """
        try:
            stat = await self.retry(lambda: self._inner.head(key), tries)
            stored_crc32c = stat.crc32c
            # An object of another length cannot be ours, so it is not read.
            if stored_crc32c is None and stat.size_bytes == size_bytes:
                stored_crc32c = await self._stored_crc32c(key, size_bytes, tries)
        except ObjectNotFoundError:
            return False
        except ObjectStoreError as error:
            raise unsettled from error
        if (stat.size_bytes, stored_crc32c) == (size_bytes, crc32c):
            return True
        raise ObjectExistsError(key) from unsettled

    async def _stored_crc32c(self, key: str, size_bytes: int, tries: _Tries) -> int:
        """The object's CRC-32C, read in stretches: a merged file may be larger than memory."""
        crc = 0
        for start in range(0, size_bytes, SETTLE_READ_BYTES):
            # the default binds this turn's start
            part = await self.retry(lambda at=start: self._inner.get_range(key, at, SETTLE_READ_BYTES), tries)
            crc = compute_crc32c(part, crc)
        return crc

    def _tries(self) -> _Tries:
        return _Tries(self._clock, self._ids, self._deadline_ms, self._base_ms, self._cap_ms)


class RetryingMultipart:
    """An upload with retries. Parts are retried unchanged; `complete` is a PUT that may fall in doubt, and is settled
    like one.
    """

    def __init__(self, store: Retrying, key: str, inner: MultipartUpload) -> None:
        self._store = store
        self._key = key
        self._inner = inner
        self._size_bytes = 0
        self._crc32c = 0

    async def write(self, part: Body) -> None:
        await self._store.retry(lambda: self._inner.write(part))
        self._size_bytes += len(part)
        self._crc32c = crc32c_of(part, self._crc32c)

    async def complete(self) -> None:
        await self._store.publish(self._inner.complete, self._key, size_bytes=self._size_bytes, crc32c=self._crc32c)

    async def abort(self) -> None:
        await self._store.retry(self._inner.abort)


class _Tries:
    """The tries of one call."""

    def __init__(self, clock: Clock, ids: IdSource, deadline_ms: float, base_ms: float, cap_ms: float) -> None:
        self._clock = clock
        self._ids = ids
        self._ends_ms = clock.monotonic_ms() + deadline_ms
        self._ceiling_ms = base_ms
        self._cap_ms = cap_ms

    def may_go_on(self, error: ObjectStoreError) -> bool:
        return error.retriable and not isinstance(error, StoreFullError) and self._clock.monotonic_ms() < self._ends_ms

    async def wait_or_raise(self, error: ObjectStoreError) -> None:
        """Back off before the next try, or raise `error` when no try is left."""
        if not self.may_go_on(error):
            raise error
        left_ms = self._ends_ms - self._clock.monotonic_ms()
        # Full jitter spreads the clients of a store that comes back. The last try begins at the deadline at the latest.
        await self._clock.sleep_ms(min(self._ids.jitter() * self._ceiling_ms, left_ms))
        self._ceiling_ms = min(self._ceiling_ms * 2, self._cap_ms)
