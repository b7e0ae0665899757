"""The load that a Postgres carries, by the measured figures. Pure.

Commits of agents that write to the same partitions wait for each other, so their ceiling is that of one lock, and the
flush of each commit counts inside it. Commits that share no partition run beside each other, until the processor is
full.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, log

from runtime.errors import BadInputError
from siltstone.ops.capacity.figures import (
    AGENT_IDLE,
    AGENT_IDLE_XIDS_PER_S,
    AGENT_MAX,
    BENCH_FLUSH_MS,
    BUSY_SHARE,
    CEILINGS,
    COMMAND_MAX,
    COMMIT_FIXED_MS,
    COMMIT_PARTITION_MS,
    COMPACTOR_IDLE,
    COMPACTOR_MAX,
    GIB_PER_VCPU,
    HINTS_PER_S_MAX,
    OFFSET_COMMITS_PER_S_MAX,
    POLL_MS,
    POLLS_PER_S_MAX,
    RDS_BYTES_PER_CONNECTION,
    RDS_CONNECTIONS_MAX,
    RDS_MEMORY_SHARE,
    VCPUS_OF_SIZE,
    Ceiling,
)

SECONDS_PER_DAY = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Writers:
    """The agents that commit, and the Postgres that they commit to."""

    agents: int
    partitions: float
    """In each file."""
    shared: bool
    """Agents write to the same partitions."""
    idempotent: bool
    vcpus: int
    flush_ms: float


@dataclass(frozen=True, slots=True)
class Limit:
    """One thing that gives, and the commits a second at which it does."""

    what: str
    commits_per_s: float


def limits(writers: Writers) -> Sequence[Limit]:
    """All limits; the one that gives first comes first."""
    found = [_lock(writers), _processor(writers)]
    return sorted(found, key=lambda limit: limit.commits_per_s)


def _lock(writers: Writers) -> Limit:
    sessions = writers.agents if writers.shared else 1
    held_ms = 1000 / measured_commits_per_s(sessions, writers.partitions, idempotent=writers.idempotent)
    held_ms += max(0.0, writers.flush_ms - BENCH_FLUSH_MS)
    if writers.shared:
        return Limit("commits wait for each other, because agents write to the same partitions", 1000 / held_ms)
    return Limit("an agent commits one file after the other", max(1, writers.agents) * 1000 / held_ms)


def _processor(writers: Writers) -> Limit:
    free_ms = writers.vcpus * BUSY_SHARE * 1000
    commit_ms = COMMIT_FIXED_MS + writers.partitions * COMMIT_PARTITION_MS
    poll_ms = writers.agents * POLL_MS
    # Each commit costs a poll of every agent too, up to the commits a second that they follow one by one.
    slow = (free_ms - poll_ms) / (commit_ms + poll_ms)
    fast = (free_ms - polls_per_s(inf) * poll_ms) / commit_ms
    return Limit(f"{BUSY_SHARE:.0%} of {writers.vcpus} vCPUs are busy", max(0.0, slow, fast))


def polls_per_s(commits_per_s: float) -> float:
    """Questions of one agent for the tail: one a second at rest, and one for each commit that it hears of, up to
    POLLS_PER_S_MAX."""
    return 1 + min(commits_per_s, POLLS_PER_S_MAX)


def measured_commits_per_s(sessions: int, partitions: float, *, idempotent: bool) -> float:
    """The ceiling between the measured ones: linear in the time of a commit over partitions, in the logarithm of the
    sessions. Below the fewest partitions it is their ceiling; beyond the most sessions, that of the most."""
    rows = [row for row in CEILINGS if row.idempotent == idempotent]
    by_partitions: dict[int, list[Ceiling]] = {}
    for row in rows:
        by_partitions.setdefault(row.partitions, []).append(row)
    times_ms = {count: 1000 / _over_sessions(found, sessions) for count, found in sorted(by_partitions.items())}
    return 1000 / _over_partitions(times_ms, partitions)


def _over_sessions(rows: Sequence[Ceiling], sessions: int) -> float:
    ordered = sorted(rows)
    for low, high in pairwise(ordered):
        if low.sessions <= sessions <= high.sessions:
            share = log(sessions / low.sessions) / log(high.sessions / low.sessions)
            return low.commits_per_s + share * (high.commits_per_s - low.commits_per_s)
    return (ordered[0] if sessions < ordered[0].sessions else ordered[-1]).commits_per_s


def _over_partitions(times_ms: Mapping[int, float], partitions: float) -> float:
    fewest, most = min(times_ms), max(times_ms)
    if partitions <= fewest or fewest == most:
        return times_ms[fewest]
    counts = list(times_ms)
    # Beyond the most partitions, the last two rows give the line.
    low, high = next((pair for pair in pairwise(counts) if partitions <= pair[1]), (counts[-2], counts[-1]))
    slope = (times_ms[high] - times_ms[low]) / (high - low)
    return times_ms[low] + slope * (partitions - low)


def connections_idle(agents: int, compactors: int) -> int:
    return agents * AGENT_IDLE + compactors * COMPACTOR_IDLE


def connections_peak(agents: int, compactors: int) -> int:
    """With every pool full, and one command beside it."""
    return agents * AGENT_MAX + compactors * COMPACTOR_MAX + COMMAND_MAX


def agents_that_fit(connections: int, compactors: int) -> int:
    """Agents whose peak fits into so many connections."""
    return max(0, (connections - connections_peak(0, compactors)) // AGENT_MAX)


def transaction_ids_per_s(agents: int, files_per_s: float, offset_commits_per_s: float) -> float:
    """Each heart-beat, commit, NOTIFY and commit of offsets takes one. Rates are those of all agents together."""
    hints = min(files_per_s, agents * HINTS_PER_S_MAX)
    offsets = min(offset_commits_per_s, agents * OFFSET_COMMITS_PER_S_MAX)
    return agents * AGENT_IDLE_XIDS_PER_S + files_per_s + hints + offsets


def days_of(transactions: float, per_s: float) -> float:
    """How long they last; infinite at a rate of 0."""
    return transactions / per_s / SECONDS_PER_DAY if per_s > 0 else float("inf")


def vcpus_of(instance_class: str) -> int:
    """vCPUs of an RDS instance class. Raises BadInputError."""
    return _parts(instance_class)[1]


def rds_max_connections(instance_class: str) -> int:
    """The `max_connections` that RDS gives a class where no parameter says otherwise. Raises BadInputError."""
    family, vcpus = _parts(instance_class)
    memory = vcpus * GIB_PER_VCPU[family] * (1 << 30) * RDS_MEMORY_SHARE
    return min(RDS_CONNECTIONS_MAX, int(memory / RDS_BYTES_PER_CONNECTION))


def _parts(instance_class: str) -> tuple[str, int]:
    match = re.fullmatch(r"db\.([mrt])[0-9][a-z0-9-]*\.(?:([0-9]*)(xlarge)|(medium|large))", instance_class)
    if match is None:
        raise BadInputError(
            f"{instance_class!r} is no instance class whose vCPUs are known",
            remedy="give one of RDS's families m, r or t, such as db.m7g.large or db.r7g.2xlarge; for another"
            " machine, one with as many vCPUs",
        )
    if match[4]:
        return match[1], VCPUS_OF_SIZE[match[4]]
    return match[1], VCPUS_OF_SIZE["xlarge"] * int(match[2] or 1)
