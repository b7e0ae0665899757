"""Settings of the C library that keep freed buffers in the process, for the next window of a merge.

A merge frees and allocates buffers of megabytes for every window. By default the C library returns such memory to the
operating system at once, and each page of the next buffer costs a page fault; together these faults cost about as much
as all compiled kernels. By default threads also have heaps of their own, so one thread cannot use a buffer that another
one freed.

The settings are process-wide, so only the entry point of a process may call this. They do not bound the memory in use;
up to `KEPT_FREE_BYTES` stay with the process after a merge has ended.
"""

from __future__ import annotations

import ctypes

from compactor.planning.spec import MIB

KEPT_FREE_BYTES = 256 * MIB
"""More than a merge has free at any time before its end. With half of that, passes over 1 KiB values sometimes returned
their buffers and faulted them in again, which cost 40 %."""
HEAP_BYTES_MAX = 32 * MIB
"""Larger buffers are mapped one by one, and unmapped when freed. glibc accepts no larger value."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Parameters of mallopt(3)."""


def keep_freed_memory() -> bool:
    """Call once, before threads are started. False when the C library has no such settings (it is not glibc)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    mallopt.restype = ctypes.c_int
    # One arena for all threads, so that a buffer freed by one thread serves the next one.
    wanted = ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, HEAP_BYTES_MAX), (_TRIM_THRESHOLD, KEPT_FREE_BYTES))
    accepted = [mallopt(parameter, value) for parameter, value in wanted]
    return accepted == [1, 1, 1]
