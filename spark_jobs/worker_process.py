"""A Python worker of Spark, which runs many tasks one after another.

After each task, Spark collects garbage in its worker. That looks at every object of the process: 70 ms of processor
time with numba, numpy and pyarrow loaded, more than the rest of a small task. What a worker has loaded by the end of
its first task never becomes garbage, so it is taken out of the collector's sight.
"""

from __future__ import annotations

import functools
import gc

from compactor.merging.allocator import keep_freed_memory


@functools.cache
def prepare() -> None:
    """Call when a task begins. Does its work once a process."""
    keep_freed_memory()


@functools.cache
def settle() -> None:
    """Call when a task has ended, all its modules and kernels being loaded. Does its work once a process."""
    gc.collect()  # the garbage of the task itself must not stay for ever
    gc.freeze()
