"""Wall time and CPU of this process and of everything below it: Spark's JVMs, its Python workers, a stack of ours."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.measures.usage import children

TICKS = os.sysconf("SC_CLK_TCK")


class Spent(NamedTuple):
    wall_s: float
    cpu_s: float


def least(several: Sequence[Spent]) -> Spent:
    """The least wall time and the least CPU of several runs."""
    return Spent(min(each.wall_s for each in several), min(each.cpu_s for each in several))


def now() -> tuple[float, float]:
    return time.perf_counter(), _cpu_s(os.getpid())


def since(started: tuple[float, float]) -> Spent:
    wall_s, cpu_s = now()
    return Spent(wall_s - started[0], cpu_s - started[1])


def _cpu_s(pid: int) -> float:
    """The CPU of a process and of all its living descendants: the higher of two readings, because a reading misses a
    process between its end and its parent's wait.
    """
    return max(_cpu_of_tree(pid), _cpu_of_tree(pid))


def _cpu_of_tree(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    spent: Sequence[str] = fields[11:15]  # utime, stime, and those of children that were waited for
    return sum(map(int, spent)) / TICKS + sum(map(_cpu_of_tree, children(pid)))
