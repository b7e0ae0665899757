"""The object store, as the rest of the tree sees it.

Objects are written once and never changed (`put_if_absent`, S3's `If-None-Match: *`), read whole or by range, listed by
prefix and deleted in batches. All stores keep this contract under one suite (`tests/contract/test_object_store.py`):
`storage/s3/store.py` and its kind with other GETs, `storage/s3/obstore_gets.py`; `storage/local.py`;
`storage/memory.py`. Wrappers add behaviour (`storage/wrappers/retrying.py`, `storage/wrappers/metered.py`,
`storage/wrappers/faulty.py`). Keys are relative to the store's prefix, use "/" and never start with it.

A PUT whose answer was lost is neither done nor not done: `PutInDoubtError`. `storage/wrappers/retrying.py` settles it
by HEAD, which is sound because keys are unique: an object with our length and CRC-32C is ours.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias, runtime_checkable

from runtime.errors import BadInputError, Outcome, SiltstoneError, UnavailableError
from storage.parts import AnyBody

Body: TypeAlias = AnyBody
"""What a PUT takes: a buffer, or several one after another."""


class ObjectStoreError(SiltstoneError):
    """Root of the errors of this room."""


class ObjectNotFoundError(ObjectStoreError):
    def __init__(self, key: str) -> None:
        super().__init__(f"object {key!r} does not exist", remedy="`siltstone files list` shows the keys there are")
        self.key = key


class ObjectExistsError(ObjectStoreError):
    """`put_if_absent` found the key taken; nothing was written."""

    def __init__(self, key: str) -> None:
        super().__init__(f"object {key!r} exists already")
        self.key = key


class PutInDoubtError(ObjectStoreError):
    """The answer to a PUT was lost (reset, time-out, 5xx after the body). Settle it by `head`."""

    outcome: ClassVar[Outcome] = Outcome.UNKNOWN
    retriable: ClassVar[bool] = True


class StoreUnavailableError(ObjectStoreError, UnavailableError):
    """Throttled (503 SlowDown), unreachable or answering 5xx. Try again with back-off."""


class StoreFullError(ObjectStoreError, UnavailableError):
    """The store has no space (ENOSPC, EDQUOT, EFBIG). Nothing was left behind under the key."""


class ChecksumMismatchError(ObjectStoreError):
    """The bytes that reached the store differ from those that `crc32c` was computed over; nothing was written."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the bytes of object {key!r} do not match their CRC-32C; the store refused them")
        self.key = key


class StoreMisconfiguredError(ObjectStoreError, BadInputError):
    """Bad URL, missing bucket, refused credentials: trying again cannot help."""


def check_range(start: int, length: int) -> None:
    """The rule of `get_range`, for every store. Raises ValueError."""
    if start < 0 or length < 1:
        raise ValueError(
            f"a range starts at 0 or above and has at least one byte; this one starts at {start} and has {length}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStat:
    key: str
    size_bytes: int
    last_modified_ms: int
    """By the store's clock."""
    crc32c: int | None = None
    """The CRC-32C of the whole object if the store keeps it (`head` on S3). If None, read the object to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """The result of a delete. A key that was absent counts as deleted. Some keys may fail while others are gone."""

    keys: Sequence[str]
    failed: Mapping[str, str]
    """Key -> the store's reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunUpload:
    """A large object on its way, or one whose writer never ended it: it has bytes in the store, which no listing of
    objects shows."""

    key: str
    """"" if the store does not know it."""
    begun_ms: int
    """By the store's clock."""


class MultipartUpload(Protocol):
    """A large object in parts (at least 5 MiB each but the last). Invisible until `complete`."""

    async def write(self, part: Body) -> None:
        """Write the next part; one at a time. A part that raised counts as not written, so it may be written again."""
        ...

    async def complete(self) -> None:
        """Publish under the key if it is free. Raises ObjectExistsError, PutInDoubtError."""
        ...

    async def abort(self) -> None: ...


class ObjectStore(Protocol):
    """The methods of every store. All may raise StoreUnavailableError and StoreMisconfiguredError, and BadKeyError
    (`storage/keys.py`).
    """

    async def get(self, key: str) -> bytes:
        """Raises ObjectNotFoundError."""
        ...

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Exactly `length` bytes from `start`; fewer when the object ends sooner, b"" at or past its end.

        Raises ObjectNotFoundError, ValueError for a negative start or a length below 1.
        """
        ...

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        """Write the whole object durably, or raise ObjectExistsError and leave the present one unchanged.

        `crc32c` is that of `body`; stores that can check it do. Raises PutInDoubtError, StoreFullError,
        ChecksumMismatchError.
        """
        ...

    async def head(self, key: str) -> ObjectStat:
        """Raises ObjectNotFoundError."""
        ...

    async def delete_many(self, keys: Sequence[str]) -> Deleted: ...

    def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        """The objects in key order (UTF-8 bytes). Every object that existed throughout the listing appears once."""
        ...

    async def start_multipart(self, key: str) -> MultipartUpload: ...

    async def abort_multiparts(self, *, older_than_ms: int) -> int:
        """Abort uploads under our prefix that began before `older_than_ms` (wall clock); returns their number."""
        ...

    def begun_uploads(self) -> AsyncIterator[BegunUpload]:
        """The uploads that `abort_multiparts` would look at, in no order."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class SupportsOpen(Protocol):
    """Stores that must connect before use (S3)."""

    async def open(self) -> None: ...
