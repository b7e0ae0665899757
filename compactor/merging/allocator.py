"""How the C library keeps the memory of merges: freed windows are used again, not given back and asked for anew.

A merge frees and allocates buffers of megabytes for every window. By default the C library returns such memory to the
kernel at once, and each page of the next buffer costs a fault: in all about as much as every kernel together. Threads
also get heaps of their own, so that a buffer freed by one is not found by another.

Process-wide, so it is for whoever owns the process. It says nothing about how much is used at most; up to
`KEPT_FREE_BYTES` stay with the process when a merge has ended.
"""

from __future__ import annotations

import ctypes

from compactor.planning.spec import MIB

KEPT_FREE_BYTES = 256 * MIB
"""More than a merge has free at any time but its end: with half of that, whether each pass over 1 KiB values gave its
buffers back and faulted them in again was a matter of luck, and cost 40 % when it happened."""
HEAP_BYTES_MAX = 32 * MIB
"""What is larger is mapped for itself, and unmapped when it is freed. The most that glibc accepts."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Parameters of mallopt(3)."""


def keep_freed_memory() -> bool:
    """To be called once, before threads are started. False where the C library has no such settings (not glibc)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    mallopt.restype = ctypes.c_int
    wanted = ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, HEAP_BYTES_MAX), (_TRIM_THRESHOLD, KEPT_FREE_BYTES))
    accepted = [mallopt(parameter, value) for parameter, value in wanted]
    return accepted == [1, 1, 1]
