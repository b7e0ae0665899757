"""An object store in a directory: for `siltstone dev`, tests, and a file system that several processes share.

A PUT writes and fsyncs a file in `.tmp/`, **links** it under its key (link(2) fails if the name is taken, which makes
create-if-absent atomic between processes), unlinks the temporary name, then fsyncs the directories that changed. Only
then does it return, so an object survives a power cut once its PUT has returned. A crash leaves at most a file in
`.tmp/`, which `abort_multiparts` removes when it is old, or a whole object whose PUT never returned.

Directories that a delete leaves empty are removed; a PUT that loses its directory this way makes it again. All file
calls run on threads of our own; the event loop never waits for a disk. A PUT does not leave its bytes in the page
cache: agents keep the tail themselves, and a log that is written for ever would push out everything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TypeVar

from storage.keys import BadKeyError, check_key
from storage.objects import (
    BegunUpload,
    Body,
    ChecksumMismatchError,
    Deleted,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStat,
    ObjectStoreError,
    PutInDoubtError,
    StoreFullError,
    StoreMisconfiguredError,
    StoreUnavailableError,
    check_range,
)
from storage.parts import Parts, crc32c_of, stretches

T = TypeVar("T")

TEMPORARY = ".tmp"
DIRECTORY_MODE = 0o700
THREADS = 8
LIST_CHUNK = 256
"""Keys that a listing takes per turn on a thread."""
LINK_TRIES = 100
"""Tries at a link whose directory other processes empty and remove each time."""
KNOWN_DIRECTORIES_MAX = 10_000
_WRITE_BYTES_MAX = 2**30
"""The most bytes per pwritev(2), which takes at most 2 GiB less a page."""
RESERVE_BYTES_MAX = 512 << 20
"""As much as the write-ahead log of the embedded Postgres may take (its `max_wal_size`). A Postgres without space
stops, and often lies on the same file system."""
RESERVE_PARTS = 20
"""A small file system keeps one part in so many, but never less than the next bound."""
RESERVE_BYTES_MIN = 64 << 20
"""Postgres makes its write-ahead log in files of 16 MiB and dies when it cannot make the next one. It keeps four of
them (its `min_wal_size`), so while produce is refused it lives on the space for four."""
_OF_RECORDS = ("l0/", "l1/", "l2/")
"""Only these objects are refused for the reserve: the catalogue and the notes of jobs are small, and deletion, which
makes space, needs them."""
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTSUP, errno.EMLINK, errno.EXDEV, errno.ELOOP}
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


def reserve_bytes(size_bytes: int) -> int:
    """The space that is kept free on a file system of this size."""
    return max(RESERVE_BYTES_MIN, min(RESERVE_BYTES_MAX, size_bytes // RESERVE_PARTS))


class LocalStore:
    """Objects are files of mode 0600 under `root`, in directories that we make with mode 0700.

    Args:
        must_exist: for processes that only read: opening then makes no directory, and is refused if there is none.
    """

    def __init__(self, root: Path, *, must_exist: bool = False, setting: str = "object.store.url") -> None:
        """`setting`: the one that names this store, for remedies."""
        self._setting = setting
        self._root = root
        self._must_exist = must_exist
        self._temporary = root / TEMPORARY
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="local-store")
        self._durable: dict[Path, int] = {}
        """Directories whose entry in their parent was fsynced -> inode (another directory may take the name later)."""

    async def open(self) -> None:
        """Make the directory if need be, unless it must exist. Raises StoreMisconfiguredError if it is unusable."""
        await self._run(self._open)

    async def get(self, key: str) -> bytes:
        return await self._run(self._read, key, 0, None)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(start, length)
        return await self._run(self._read, key, start, length)

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        await self._run(self._put, key, body, crc32c)

    async def head(self, key: str) -> ObjectStat:
        return await self._run(self._stat, key)

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        return await self._run(self._delete, keys)

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        found = self._walk("", prefix.encode(), start_after.encode())
        while chunk := await self._run(_take, found):
            for stat in chunk:
                yield stat

    async def start_multipart(self, key: str) -> LocalMultipart:
        self._path(key)
        return LocalMultipart(self, key, await self._run(self._start_temporary))

    async def abort_multiparts(self, *, older_than_ms: int) -> int:
        """Remove also the files that crashed PUTs left. Age counts from the last write."""
        return await self._run(self._sweep_temporary, older_than_ms)

    async def begun_uploads(self) -> AsyncIterator[BegunUpload]:
        """PUTs that crashed or are at work too. The time is that of the last write."""
        for begun_ms in await self._run(self._temporary_times):
            yield BegunUpload(key="", begun_ms=begun_ms)

    async def close(self) -> None:
        self._threads.shutdown(wait=False)

    # ---- on a thread from here on

    async def _run(self, call: Callable[..., T], *arguments: object) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _translated, call, *arguments)

    def _open(self) -> None:
        if self._root.exists() and not self._root.is_dir():
            raise StoreMisconfiguredError(f"{self._root} is not a directory", remedy=f"point {self._setting} at one")
        if self._must_exist:
            if not self._root.exists():
                raise StoreMisconfiguredError(
                    f"there is no directory {self._root}",
                    remedy=f"correct {self._setting}; agents make the directory when they start",
                )
            if not os.access(self._root, os.R_OK | os.X_OK):
                raise StoreMisconfiguredError(f"no right to read {self._root}", remedy="chown or chmod it")
            return
        self._make_directories(self._temporary)
        if not os.access(self._root, os.R_OK | os.W_OK | os.X_OK):
            raise StoreMisconfiguredError(f"no right to read and write {self._root}", remedy="chown or chmod it")

    def _path(self, key: str) -> Path:
        check_key(key)
        return self._root / key

    def _read(self, key: str, start: int, length: int | None) -> bytes:
        try:
            descriptor = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
            try:
                wanted = max(0, os.fstat(descriptor).st_size - start)
                if length is not None:
                    wanted = min(wanted, length)
                return _read_fully(descriptor, start, wanted)
            finally:
                os.close(descriptor)
        except _ABSENT:
            raise ObjectNotFoundError(key) from None

    def _stat(self, key: str) -> ObjectStat:
        path = self._path(key)
        try:
            status = path.stat()
        except _ABSENT:
            raise ObjectNotFoundError(key) from None
        if path.is_dir():
            raise ObjectNotFoundError(key)
        return ObjectStat(key=key, size_bytes=status.st_size, last_modified_ms=status.st_mtime_ns // 1_000_000)

    def check_room(self, key: str, size_bytes: int) -> None:
        """Raises StoreFullError if an object of records would take the space that is kept free."""
        if not key.startswith(_OF_RECORDS):
            return
        system = os.statvfs(self._root)
        free, reserve = system.f_bavail * system.f_frsize, reserve_bytes(system.f_blocks * system.f_frsize)
        if free - size_bytes < reserve:
            raise StoreFullError(
                f"{free >> 20} MiB are free at {self._root}: {reserve >> 20} MiB are kept for Postgres and deletion",
                remedy="free or add disk space",
            )

    def _put(self, key: str, body: Body, crc32c: int) -> None:
        self._path(key)
        if crc32c_of(body) != crc32c:
            raise ChecksumMismatchError(key)
        temporary = self._start_temporary()
        try:
            self.check_room(key, len(body))
            temporary.append(body)
            self.publish(temporary, key)
        finally:
            temporary.discard()

    def _start_temporary(self) -> TemporaryFile:
        self._make_directories(self._temporary)
        # mkstemp makes files of mode 0600; a link keeps it.
        descriptor, name = tempfile.mkstemp(dir=self._temporary)
        return TemporaryFile(descriptor, Path(name))

    def publish(self, temporary: TemporaryFile, key: str) -> None:
        """Give a temporary file its key, durably. Raises ObjectExistsError, PutInDoubtError."""
        path = self._path(key)
        # The bytes are durable before the name: a power cut must never show a key with half an object.
        os.fsync(temporary.descriptor)
        # After the fsync: pages that are not written yet cannot be dropped.
        os.posix_fadvise(temporary.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        for attempt in range(LINK_TRIES):
            try:
                # Not durable yet: with the object inside, no delete can remove them before they are synced below.
                self._make_directories(path.parent, sync=False)
                os.link(temporary.path, path)
                break
            except FileExistsError:
                if path.is_dir():
                    raise BadKeyError(f"key {key!r} is a directory of other keys") from None
                raise ObjectExistsError(key) from None
            except NotADirectoryError:
                raise BadKeyError(f"key {key!r} lies below the key of another object") from None
            except FileNotFoundError:
                # A delete emptied this directory and removed it in between.
                if attempt == LINK_TRIES - 1:
                    raise
        try:
            # The link first, then the directories' own entries, upwards: the PUT returns when all of it is on disk.
            _fsync_directory(path.parent)
            self._make_directories(path.parent)
        except OSError as error:
            raise PutInDoubtError(f"object {key!r} was written but may not survive a power cut: {error}") from error

    def _make_directories(self, directory: Path, *, sync: bool = True) -> None:
        """Make `directory` and its missing parents; with `sync`, durably.

        Another process may have made one of them and not fsynced it yet, so finding it is not enough.
        """
        if not self._root.is_dir():
            self._root.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            _fsync_directory(self._root.parent)
        chain: list[Path] = []
        while directory != self._root:
            chain.append(directory)
            directory = directory.parent
        for each in reversed(chain):
            with contextlib.suppress(FileExistsError):
                # Not Path.mkdir: its exist_ok looks a second time, when the directory may be gone again.
                os.mkdir(each, DIRECTORY_MODE)  # noqa: PTH102
            if not sync:
                continue
            inode = each.stat().st_ino
            if self._durable.get(each) != inode:
                _fsync_directory(each.parent)
                # Forgetting costs an fsync for each directory, once.
                if len(self._durable) >= KNOWN_DIRECTORIES_MAX:
                    self._durable.clear()
                self._durable[each] = inode

    def _delete(self, keys: Sequence[str]) -> Deleted:
        paths = {key: self._path(key) for key in keys}
        done: list[str] = []
        failed: dict[str, str] = {}
        parents: set[Path] = set()
        for key, path in paths.items():
            try:
                path.unlink()
                parents.add(path.parent)
                done.append(key)
            # Absent counts as deleted: another janitor, or this one's earlier try, was here.
            except (FileNotFoundError, NotADirectoryError):
                done.append(key)
            except OSError as error:
                failed[key] = error.strerror or str(error)
        for parent in parents:
            self._remove_if_empty(parent)
        return Deleted(keys=tuple(done), failed=failed)

    def _remove_if_empty(self, directory: Path) -> None:
        """Remove empty directories upwards, then fsync the lowest that stays."""
        while directory != self._root:
            try:
                directory.rmdir()
            except OSError:
                break
            # A new directory of this name has an entry that was never synced.
            self._durable.pop(directory, None)
            directory = directory.parent
        try:
            _fsync_directory(directory)
        except FileNotFoundError:
            return  # another delete removed it, and fsyncs the parents

    def _walk(self, directory: str, prefix: bytes, start_after: bytes) -> Iterator[ObjectStat]:
        """Depth first in key order, one directory in memory per level. `directory` is "" or ends in a slash.

        Subdirectories sort by name and slash, as their keys do: "a.x" < "a/x" < "ab".
        """
        try:
            with os.scandir(self._root / directory) as entries:
                names = sorted(
                    os.fsencode(entry.name) + (b"/" if entry.is_dir(follow_symlinks=False) else b"")
                    for entry in entries
                    if not entry.name.startswith(".")
                )
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in names:
            path = os.fsencode(directory) + name
            if name.endswith(b"/"):
                may_match = path.startswith(prefix) or prefix.startswith(path)
                if may_match and (path > start_after or start_after.startswith(path)):
                    yield from self._walk(os.fsdecode(path), prefix, start_after)
            elif path.startswith(prefix) and path > start_after:
                try:
                    yield self._stat(os.fsdecode(path))
                except (ObjectNotFoundError, BadKeyError):
                    continue  # deleted since the scan, or not ours

    def _sweep_temporary(self, older_than_ms: int) -> int:
        removed = 0
        for path, written_ms in self._temporary_files():
            if written_ms < older_than_ms:
                with contextlib.suppress(FileNotFoundError):  # its writer has finished
                    path.unlink()
                    removed += 1
        return removed

    def _temporary_times(self) -> Sequence[int]:
        return [written_ms for _, written_ms in self._temporary_files()]

    def _temporary_files(self) -> Iterator[tuple[Path, int]]:
        """Each with the time of its last write in ms."""
        try:
            leftovers = [Path(entry.path) for entry in os.scandir(self._temporary)]
        except FileNotFoundError:
            return
        for path in leftovers:
            try:
                yield path, path.stat().st_mtime_ns // 1_000_000
            except FileNotFoundError:
                continue  # its writer has finished


class TemporaryFile:
    """A file that has no key yet."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self.descriptor = descriptor
        self.path = path
        self._open = True
        self._size_bytes = 0

    def append(self, body: Body) -> None:
        """Append `body`. A call that raised half-way may be repeated: it starts at the same place."""
        position = self._size_bytes
        for views in stretches(body, _WRITE_BYTES_MAX):
            left = Parts(views)
            while len(left):
                # At an explicit place: a repeated call overwrites what a failed one left.
                written = os.pwritev(self.descriptor, left.views, position)
                position += written
                left = Parts(left.cut(written, len(left)))
        self._size_bytes = position

    def discard(self) -> None:
        """Close the file and drop its temporary name. Repeating is harmless."""
        if self._open:
            # Set first: the descriptor's number may belong to another file as soon as it is closed.
            self._open = False
            os.close(self.descriptor)
            self.path.unlink(missing_ok=True)


class LocalMultipart:
    """A multipart upload. Parts are appended to one temporary file; `complete` links it."""

    def __init__(self, store: LocalStore, key: str, temporary: TemporaryFile) -> None:
        self._store = store
        self._key = key
        self._temporary = temporary

    async def write(self, part: Body) -> None:
        await self._store._run(self._append, part)  # pyright: ignore[reportPrivateUsage]  # same module

    async def complete(self) -> None:
        await self._store._run(self._complete)  # pyright: ignore[reportPrivateUsage]  # same module

    async def abort(self) -> None:
        await self._store._run(self._temporary.discard)  # pyright: ignore[reportPrivateUsage]  # same module

    def _append(self, part: Body) -> None:
        self._store.check_room(self._key, len(part))
        self._temporary.append(part)

    def _complete(self) -> None:
        try:
            self._store.publish(self._temporary, self._key)
        except PutInDoubtError:
            self._temporary.discard()  # the object has its key; a caller that settles the doubt does not come back here
            raise
        self._temporary.discard()


def _take(found: Iterator[ObjectStat]) -> list[ObjectStat]:
    return list(islice(found, LIST_CHUNK))


def _read_fully(descriptor: int, start: int, wanted: int) -> bytes:
    """Read exactly `wanted` bytes if they are there: pread(2) may give less (at most 2 GiB less a page at a time)."""
    first = os.pread(descriptor, wanted, start)
    if len(first) == wanted:
        return first
    parts = [first]
    got = len(first)
    while got < wanted and (part := os.pread(descriptor, wanted - got, start + got)):
        parts.append(part)
        got += len(part)
    return b"".join(parts)


def _fsync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _translated(call: Callable[..., T], *arguments: object) -> T:
    """Run a file call and translate the operating system's errors into ours."""
    try:
        return call(*arguments)
    except ObjectStoreError:
        raise
    except OSError as error:
        what = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        if error.errno in _FULL:
            raise StoreFullError(
                f"no space in the object directory ({what})", remedy="free or add disk space"
            ) from error
        if error.errno in _REFUSED or isinstance(error, NotADirectoryError):
            raise StoreMisconfiguredError(
                f"the object directory refuses us ({what})",
                remedy="check its owner, its mode and that it has hard links",
            ) from error
        raise StoreUnavailableError(f"the object directory fails ({what})") from error
