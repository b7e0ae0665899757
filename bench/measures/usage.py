"""The resources that a process has used so far, from /proc: CPU time of all its threads, peak memory, context switches.

Counters only grow, so a measurement is the difference of two readings. CPU time has the kernel's tick of 10 ms: measure
for a second or more. A process that has ended has no reading; Postgres's backends end with their connections, so read
before they are closed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    user_s: float = 0.0
    system_s: float = 0.0
    peak_memory_bytes: int = 0
    """VmHWM. A difference has the later reading's."""
    voluntary_switches: int = 0
    involuntary_switches: int = 0

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.system_s

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(
            self.user_s - earlier.user_s,
            self.system_s - earlier.system_s,
            self.peak_memory_bytes,
            self.voluntary_switches - earlier.voluntary_switches,
            self.involuntary_switches - earlier.involuntary_switches,
        )

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.user_s + other.user_s,
            self.system_s + other.system_s,
            self.peak_memory_bytes + other.peak_memory_bytes,
            self.voluntary_switches + other.voluntary_switches,
            self.involuntary_switches + other.involuntary_switches,
        )


def usage(pid: int) -> Usage:
    """The usage of one process and all its threads, ended ones included, without its children.

    Context switches are those of the living threads. Raises FileNotFoundError or ProcessLookupError when the process is
    gone.
    """
    folder = Path("/proc") / str(pid)
    user_s, system_s = parse_stat((folder / "stat").read_text(encoding="utf-8", errors="replace"))
    status = parse_status((folder / "status").read_text(encoding="utf-8", errors="replace"))
    voluntary = involuntary = 0
    for text in _thread_statuses(folder):
        of_thread = parse_status(text)
        voluntary += of_thread.get("voluntary_ctxt_switches", 0)
        involuntary += of_thread.get("nonvoluntary_ctxt_switches", 0)
    return Usage(user_s, system_s, status.get("VmHWM", 0) * 1024, voluntary, involuntary)


def resident_bytes(pid: int) -> int:
    """The memory that a process holds now."""
    return parse_status(Path(f"/proc/{pid}/status").read_text())["VmRSS"] * 1024


def usage_of_all(pids: Iterable[int]) -> Usage:
    """The sum over processes; one that has ended between listing and reading counts nothing."""
    total = Usage()
    for pid in pids:
        try:
            total += usage(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


def postgres_usage(postmaster_pid: int) -> Usage:
    """The usage of a whole Postgres: the postmaster and its present processes."""
    return usage_of_all([postmaster_pid, *children(postmaster_pid)])


def cpu_with_ended_children_s(postmaster_pid: int) -> float:
    """User and system time of a whole Postgres, of the backends that have ended too."""
    while True:
        before_s = _ended_children_s(postmaster_pid)
        living_s = postgres_usage(postmaster_pid).cpu_s
        # A backend that ended between the two readings would be counted twice, or not at all.
        if _ended_children_s(postmaster_pid) == before_s:
            return living_s + before_s


def _ended_children_s(pid: int) -> float:
    fields = _after_name(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace"))
    return (int(fields[13]) + int(fields[14])) / _TICKS_PER_SECOND


def children(pid: int) -> list[int]:
    """Pids of the processes whose parent is `pid` now."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parse_parent(text) == pid:
            found.append(int(entry.name))
    return sorted(found)


def parse_stat(text: str) -> tuple[float, float]:
    """User and system seconds from /proc/PID/stat. Fields are counted from after the name, which may hold anything."""
    fields = _after_name(text)
    return int(fields[11]) / _TICKS_PER_SECOND, int(fields[12]) / _TICKS_PER_SECOND


def parse_parent(text: str) -> int:
    """The parent's pid from /proc/PID/stat."""
    return int(_after_name(text)[1])


def parse_status(text: str) -> dict[str, int]:
    """The numbers of /proc/PID/status by name; sizes are in kB, as they stand there."""
    numbers: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            numbers[name] = int(words[0])
    return numbers


def _after_name(text: str) -> list[str]:
    """Fields from the 3rd on (state): the 2nd, the name in brackets, may itself hold blanks and brackets."""
    return text[text.rindex(")") + 1 :].split()


def _thread_statuses(folder: Path) -> Iterator[str]:
    for thread in (folder / "task").iterdir():
        try:
            yield (thread / "status").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
