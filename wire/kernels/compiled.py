"""The one place that makes kernels: numba's decorators, with types, and `warm`.

A kernel is a Python function over numbers and arrays. Numba compiles it to machine code for this processor at its first
call and keeps the code (`wire/kernels/code_cache.py`). All kernels together take some seconds to compile and a fraction
of one to load.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba  # pyright: ignore[reportMissingTypeStubs] -- ships no types; `Any` stands in
import numpy as np
from numpy.typing import NDArray

from wire.kernels.code_cache import KernelCache

_numba = cast(Any, numba)
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Number = TypeVar("_Number", bound=np.generic)
_Warm = TypeVar("_Warm", bound=Callable[[], None])
_warm: list[Callable[[], None]] = []


def compiled(function: _Function) -> _Function:
    """Compile `function` at its first call. It runs without the interpreter's lock.

    It checks no index and notices no overflow: a kernel itself compares everything it reads with the bytes at hand.
    Arguments must always have the same types, or numba compiles it once more for the others: make arrays contiguous and
    writable, or pass their addresses, and wrap numbers that may pass 2^63-1 (`numpy.uint64`).
    """
    dispatcher = _numba.njit(nogil=True, boundscheck=False, error_model="numpy")(function)
    # In place of numba's own cache, whose faults are in docs/decisions/0010-numba-kernels.md.
    dispatcher._cache = KernelCache(function)
    return cast(_Function, dispatcher)


def inlined(function: _Function) -> _Function:
    """`compiled`, and inlined wherever another kernel calls it. For functions of a few ns, where a call is half the
    cost.
    """
    dispatcher = _numba.njit(nogil=True, boundscheck=False, error_model="numpy", forceinline=True)(function)
    dispatcher._cache = KernelCache(function)
    return cast(_Function, dispatcher)


def intrinsic(looks_like: _Function) -> Callable[[Callable[..., Any]], _Function]:
    """Make a function for kernels out of one that emits LLVM code; only kernels can call it.

    `looks_like` gives the signature for its callers; its body is not used.
    """

    def decorate(emit: Callable[..., Any]) -> _Function:
        return cast(_Function, _numba.core.extending.intrinsic(emit))

    return decorate


def cpu_features() -> frozenset[str]:
    """The processor features that kernels are compiled for, by LLVM's names (`avx2`, `sse4.2`); `NUMBA_CPU_NAME` and
    `NUMBA_CPU_FEATURES` change them.

    Never emit an instruction of a feature that is not among them: LLVM would end the process.
    """
    _, _, features = _numba.core.registry.cpu_target.target_context.codegen().magic_tuple()
    return frozenset(name[1:] for name in str(features).split(",") if name.startswith("+"))


def address_of(array: NDArray[Any]) -> int:
    """The address of the array's first byte. A caller that passes it to a kernel keeps the array until the kernel
    returns.
    """
    return array.ctypes.data


def contiguous(array: NDArray[Any], dtype: type[_Number]) -> NDArray[_Number]:
    """The array as kernels take it: of this type, in one piece, writable. It is copied only if need be.

    Does the same as `numpy.require` at a tenth of its cost: a merge needs it some twenty times for every window.
    """
    flags = array.flags
    if array.dtype == dtype and flags.c_contiguous and flags.writeable:
        return array
    return np.require(array, dtype, ("C", "W"))


def register_warm(call: _Warm) -> _Warm:
    """Register a call that runs a module's kernels once, over next to nothing."""
    _warm.append(call)
    return call


def warm() -> None:
    """Compile every kernel of the modules imported so far, or load it from the cache."""
    for call in _warm:
        call()
