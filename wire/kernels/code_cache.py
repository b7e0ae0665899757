"""The cache of compiled kernels: one file for each function and signature, which many processes may share.

A file's name covers everything that its machine code depends on: the sources of all kernels here and of the function's
own module; the bytecode and the constants of every kernel it calls, wherever they were imported from (numba's own cache
sees neither); the versions of Python, numba and LLVM; the processor and its features; the argument types. So an
existing file stays right for ever, and processes that compile at the same time write equal files. Each process writes
under another name and then renames, so no reader sees half a file. A file that is torn all the same (after a crash of
the machine) or cannot be read is compiled again, and so is one that somebody else may have written: a file is trusted
if it belongs to us, to root or to the owner of the sources, and nobody else may write to it.

Files are looked for in `NUMBA_CACHE_DIR` if it is set, else beside the sources (`__pycache__`) and in the user's cache
directory. They are written to the first of these that can be written. An image sets `NUMBA_CACHE_DIR` to a directory of
its own and calls `wire.kernels.warm()` while it is built; afterwards the directory need only be readable. If none can
be written, each process compiles for itself, and `cache_directory()` returns None.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import llvmlite  # pyright: ignore[reportMissingTypeStubs] -- neither ships types; `Any` stands in
import numba  # pyright: ignore[reportMissingTypeStubs]
import numpy as np
from numpy.typing import NDArray

_numba = cast(Any, numba)
_KERNELS = Path(__file__).parent
_CHECKSUM_BYTES = 32
_PLAIN = (int, float, str, bytes, tuple)
"""The types of constants whose repr is their value."""
_VERSIONS_KEPT = 8
"""The files of one function that stay when another is written: those of other processors and of older sources."""


class KernelCache:
    """The cache that a numba dispatcher loads machine code from and saves it to: the calls of
    `numba.core.caching._Cache`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._is_alone = function.__closure__ is None
        """Whether the function has no closure. A file's name does not cover the values in a closure, so each process
        compiles such a function itself."""
        self._name = f"kernel-{function.__module__}.{function.__qualname__}".replace("<", "").replace(">", "")

    @property
    def cache_path(self) -> str | None:
        place = cache_directory()
        return None if place is None else str(place)

    def load_overload(self, sig: object, target_context: Any) -> Any:
        """The compiled function, or None if it has to be compiled."""
        # As numba's own cache does: in a fresh process the context is not initialised yet.
        target_context.refresh()
        if not self._is_alone:
            return None
        name = self._file_name(sig, target_context.codegen())
        for place in _places():
            stored = _read(place / name)
            if stored is not None:
                reduced = pickle.loads(stored)  # noqa: S301 - `_read` says whose file it is
                return _numba.core.compiler.CompileResult._rebuild(target_context, *reduced)
        return None

    def save_overload(self, sig: object, data: Any) -> None:
        if data.library.has_dynamic_globals or any(not each.can_cache for each in data.lifted):
            return  # the code holds addresses of this process
        place = cache_directory()
        if place is None or not self._is_alone:
            return
        payload = _numba.core.serialize.dumps(data._reduce())
        with contextlib.suppress(OSError):  # a full disk costs the next start some seconds, but must not stop this one
            _write(place / self._file_name(sig, data.codegen), payload)
            _prune(place, self._name)

    def enable(self) -> None: ...

    def disable(self) -> None: ...

    def flush(self) -> None: ...

    def _file_name(self, signature: object, codegen: Any) -> str:
        argument_types, _ = _numba.core.sigutils.normalize_signature(signature)
        depends_on = (
            _sources_digest(Path(self._function.__code__.co_filename)),
            self._function.__code__.co_firstlineno,
            list(_what_it_uses(self._function, set())),
            sys.version,
            str(_numba.__version__),
            str(cast(Any, llvmlite).__version__),
            tuple(codegen.magic_tuple()),
            str(argument_types),
        )
        return f"{self._name}-{hashlib.sha256(repr(depends_on).encode()).hexdigest()[:24]}.nbc"


def cache_directory() -> Path | None:
    """The directory for newly compiled kernels; None if no place can be written."""
    return next((place for place in _places() if _can_write(place)), None)


def _places() -> Iterator[Path]:
    named = _numba.config.CACHE_DIR
    if named:
        yield Path(named)
        return
    yield _KERNELS / "__pycache__"
    yield Path(_numba.misc.appdirs.AppDirs(appname="siltstone", appauthor=False).user_cache_dir)


def _can_write(place: Path) -> bool:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(place, os.W_OK | os.X_OK)


@cache
def _sources_digest(also: Path) -> str:
    """A digest of the sources of all kernels and of `also`, which may lie in another room."""
    digest = hashlib.sha256()
    for path in sorted({*_KERNELS.glob("*.py"), also}):
        source = path.read_bytes()
        digest.update(b"%d " % len(source) + source)
    return digest.hexdigest()


def _what_it_uses(function: Callable[..., Any], seen: set[int]) -> Iterator[tuple[object, ...]]:
    """The bytecode of a function and the values of its constants, and the same of each kernel that it calls."""
    # A kernel may be called by several others, or call itself.
    seen.add(id(function))
    code = function.__code__
    yield function.__qualname__, code.co_code, [each for each in code.co_consts if isinstance(each, _PLAIN)]
    for name in code.co_names:
        value = function.__globals__.get(name)
        called = getattr(value, "py_func", None)
        if called is not None and id(called) not in seen:
            yield from _what_it_uses(called, seen)
        elif isinstance(value, np.ndarray):
            array = cast(NDArray[Any], value)
            yield name, str(array.dtype), array.shape, hashlib.sha256(array.tobytes()).digest()
        # A constant that is named through its module: `batch.CRC_POSITION`, say.
        elif isinstance(value, ModuleType):
            constants = ((each, getattr(value, each, None)) for each in code.co_names)
            yield from ((name, each, one) for each, one in constants if isinstance(one, _PLAIN))
        elif isinstance(value, _PLAIN):
            yield name, value


def _read(path: Path) -> bytes | None:
    """The file's content; None when it is absent, unreadable, damaged, or may be somebody else's work."""
    try:
        with path.open("rb") as file:
            if not _is_trusted(os.fstat(file.fileno())):
                return None
            stored = file.read()
    except OSError:
        return None
    checksum, payload = stored[:_CHECKSUM_BYTES], stored[_CHECKSUM_BYTES:]
    return payload if hashlib.sha256(payload).digest() == checksum else None


def _is_trusted(found: os.stat_result) -> bool:
    """Only those could write the file whose code runs here anyway: a pickle is code."""
    owners = {os.getuid(), 0, _KERNELS.stat().st_uid}
    return found.st_uid in owners and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _write(path: Path, payload: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=".kernel-", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(payload).digest() + payload)
        temporary.chmod(0o644)  # one user builds an image and another runs it
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _prune(place: Path, name: str) -> None:
    """Remove the oldest files of a function. A process that misses one compiles it again."""

    def written(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except FileNotFoundError:
            return 0.0

    for path in sorted(place.glob(f"{name}-*.nbc"), key=written, reverse=True)[_VERSIONS_KEPT:]:
        path.unlink(missing_ok=True)
