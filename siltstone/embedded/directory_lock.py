"""One process per directory: a lock of the operating system (flock) on the file `lock` inside it.

The lock ends with the process that holds it, even if that is killed. The pid in the file is only for messages. Child
processes do not inherit the lock.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from runtime.errors import BadInputError


class DataDirectoryInUseError(BadInputError):
    """Another Siltstone process has locked the data directory."""


class DirectoryLock:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: IO[str] | None = None

    @property
    def held(self) -> bool:
        return self._file is not None

    def acquire(self) -> None:
        """Take the lock. Raises DataDirectoryInUseError, which names the holder, or BadInputError if the file cannot be
        opened."""
        path = self._directory / "lock"
        try:
            # Opened without truncating, so that a refused process can still read who holds the lock.
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="ascii", errors="replace")
        except OSError as error:
            raise BadInputError(
                f"cannot open {path}: {error.strerror}", remedy="choose a directory of your own with --data"
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = file.read().strip() or "unknown"
            file.close()
            raise DataDirectoryInUseError(
                f"{self._directory} is in use by process {holder}",
                remedy="stop that process, or choose another directory with --data",
            ) from error
        # Written only under the lock: the file may hold the pid of an earlier holder.
        file.seek(0)
        file.truncate()
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._file = file

    def release(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
