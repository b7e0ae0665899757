"""The requests, stored bytes and processor time that a load causes, one formula per function. Pure; units in names.

Sizes are MiB and GiB (powers of two), rates are per second, a month is 730 hours. "Per MB" of measured processor times
is per 1,000,000 bytes, as in docs/benchmarks.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

HOURS_PER_MONTH = 730
SECONDS_PER_MONTH = HOURS_PER_MONTH * 3600
DAYS_PER_MONTH = HOURS_PER_MONTH / 24
MIB_PER_GIB = 1024
MB_PER_MIB = 1.048576

OBJECT_GIB_BILLED_MIN = 128 / 1024 / 1024
"""Standard-IA and Glacier Instant Retrieval bill a smaller object as 128 KiB."""


def l0_files_per_second(
    mib_per_s: float,
    *,
    agents: int,
    linger_ms: float,
    file_mib: float,
    early_mib: float,
    early_per_second: float,
) -> float:
    """L0 files of all agents. An agent seals a file when it is full or `linger_ms` old, or early once it holds
    `early_mib`.

    Early seals are assumed as frequent as the setting allows, of files of `early_mib` at least: one blocked producer
    with that much in flight causes that. Clients with less in flight, such as those with stock settings, can spend all
    of `early_per_second` on smaller files. Early files above `produce.early.free.bytes`, which the setting does
    not count, are left out: an agent at its limit seals up to twice as many.
    """
    of_one = mib_per_s / agents
    unhurried = max(1000 / linger_ms, of_one / file_mib)
    return agents * max(unhurried, min(unhurried + early_per_second, of_one / early_mib))


def l1_run_mib(
    mib_per_s: float, *, files_per_second: float, files_min: int, wait_s: float, wait_s_max: float, job_mib_max: float
) -> float:
    """Input of one merge of L0 files: the files of the wait, up to the largest merge."""
    waited_s = min(wait_s_max, max(wait_s, files_min / files_per_second))
    return min(job_mib_max, mib_per_s * waited_s)


def merge_outputs_mib(
    run_mib: float, *, mib_per_s: float, l1_runs: int, l2_runs: int, plain_mib_max: float, retention_s: float
) -> Sequence[float]:
    """Sizes of the runs that each byte of a plain topic is written to, one after the other, from L1 up.

    L2 runs grow tenfold until two of them are more than `plain_mib_max`; a run that collects for longer than records
    are kept is not made.
    """
    sizes = [run_mib]
    following = run_mib * l1_runs
    while following <= mib_per_s * retention_s:
        sizes.append(following)
        if following * 2 > plain_mib_max:
            break
        following = min(following * l2_runs, plain_mib_max)
    return sizes


def write_amplification(outputs_mib: Sequence[float]) -> float:
    """Bytes written to the store for a byte produced: to L0, and once by each merge."""
    return 1 + len(outputs_mib)


def merge_put_requests_per_second(mib_per_s: float, *, part_mib: float, object_mib: float) -> float:
    """PUTs when all records are merged once: one per part, and per object the start and the end of its upload."""
    if object_mib <= part_mib:
        return mib_per_s / object_mib
    return mib_per_s / part_mib + 2 * mib_per_s / object_mib


def merge_get_requests_per_second(mib_per_s: float, *, files_per_second: float, window_mib: float) -> float:
    """GETs of one pass of a merge: one per window of `window_mib`, and at least one per file."""
    return files_per_second + mib_per_s / window_mib


def reading_zones(zones: int, groups: int) -> float:
    """Average number of zones in which a partition is read: each group reads it in one zone, chosen at random."""
    return zones * (1 - (1 - 1 / zones) ** groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """The agents that serve readers of the tail, and the groups and partitions that are read."""

    agents: int
    zones: int
    groups: int
    partitions: int


def tail_get_requests_per_second(
    readers: Readers, *, files_per_second: float, file_mib: float, block_mib: float
) -> float:
    """GET requests for records that were just written, by clients that read from an agent of their own zone.

    Each other zone fetches a file from the store once for all its groups; the agent that wrote the file has it in
    memory. A file holds the partitions of the agent that wrote it. In another zone their readers are spread over the
    agents there, and each agent fetches the blocks that its partitions touch.
    """
    of_zone = max(1.0, readers.agents / readers.zones)
    in_file = max(1.0, readers.partitions / of_zone)
    blocks = max(1.0, file_mib / block_mib)
    gets_per_file = min(of_zone * blocks, in_file + file_mib / block_mib)
    elsewhere = reading_zones(readers.zones, readers.groups) * (1 - 1 / readers.zones)
    return files_per_second * elsewhere * gets_per_file


def tail_mib_from_store_per_second(mib_per_s: float, *, zones: int, groups: int) -> float:
    return mib_per_s * reading_zones(zones, groups) * (1 - 1 / zones)


def cross_zone_mib_per_second(mib_per_s: float, *, zones: int, groups: int) -> float:
    """Traffic of clients that do not name their zone: one in `zones` of them meets an agent of its own zone."""
    return mib_per_s * (1 + groups) * (1 - 1 / zones)


def stored_l0_gib(mib_per_s: float, *, waits_s: float, grace_s: float) -> float:
    """Files are live until they are merged, then dead for the grace."""
    return mib_per_s * (waits_s + grace_s) / MIB_PER_GIB


def stored_l1_gib(mib_per_s: float, *, run_mib: float, l1_runs: int, grace_s: float) -> float:
    """On average half of the runs that make a merge, and the files that are dead for the grace."""
    return (run_mib * l1_runs / 2 + mib_per_s * grace_s) / MIB_PER_GIB


def stored_l2_gib(mib_per_s: float, *, retention_s: float, rewrites: int, grace_s: float) -> float:
    """Retention deletes whole extents. One spans at most an eighth of the retention, so a sixteenth more is stored."""
    return mib_per_s * (retention_s * (1 + 1 / 16) + rewrites * grace_s) / MIB_PER_GIB


def noncurrent_gib(written_mib_per_s: float, *, noncurrent_days: float) -> float:
    """A versioned bucket keeps every deleted object for `noncurrent_days`, and every object is deleted some day."""
    return written_mib_per_s * noncurrent_days * 86_400 / MIB_PER_GIB


def billed_gib(gib: float, *, object_gib: float) -> float:
    """For classes that bill an object below 128 KiB as 128 KiB."""
    return gib * max(1.0, OBJECT_GIB_BILLED_MIN / object_gib)


def class_days(retention_days: float, *, from_day: float, least_days: float) -> tuple[float, float]:
    """Days of a record in S3 Standard, and billed days in the class that it moves to (0 if it is deleted before)."""
    if retention_days <= from_day:
        return retention_days, 0.0
    return from_day, max(retention_days - from_day, least_days)


def agent_cpu_cores(
    *,
    produced_mb_per_s: float,
    from_memory_mb_per_s: float,
    from_store_mb_per_s: float,
    produce_ms_per_mb: float,
    memory_ms_per_mb: float,
    store_ms_per_mb: float,
) -> float:
    return (
        produced_mb_per_s * produce_ms_per_mb
        + from_memory_mb_per_s * memory_ms_per_mb
        + from_store_mb_per_s * store_ms_per_mb
    ) / 1000


def compactor_cpu_cores(merged_mb_per_s: float, *, merge_ms_per_mb: float) -> float:
    return merged_mb_per_s * merge_ms_per_mb / 1000


def commit_server_ms(partitions_per_file: float, *, fixed_ms: float, partition_ms: float) -> float:
    """Processor time of Postgres for one commit."""
    return fixed_ms + partition_ms * partitions_per_file


def postgres_cpu_cores(
    *, commits_per_second: float, commit_ms: float, polls_per_second: float, poll_ms: float
) -> float:
    return (commits_per_second * commit_ms + polls_per_second * poll_ms) / 1000


def processes_needed(cpu_cores: float, *, busy_share: float, least: int) -> int:
    """Processes of one core each, with at most `busy_share` of the core in use."""
    # The small number keeps rounding errors of exact multiples from asking for one more process.
    return max(least, ceil(cpu_cores / busy_share - 1e-9))


def vcpus_of_class(cpu_cores: float, *, busy_share: float) -> int:
    """vCPUs of the smallest class of a database: 2, 4, 8, 16 ..."""
    vcpus = 2
    while vcpus * busy_share < cpu_cores:
        vcpus *= 2
    return vcpus


def spark_vcpu_seconds(
    mib: float, *, jobs: float, unit_mib: float, unit_s: float, merge_ms_per_mb: float, start_vcpu_s: float
) -> float:
    """The start of each job's session, the fixed cost of each unit, and the merging."""
    return jobs * start_vcpu_s + mib / unit_mib * unit_s + mib * MB_PER_MIB * merge_ms_per_mb / 1000


def kafka_stored_gib(mib_per_s: float, *, retention_s: float, replicas: int, full_share: float) -> float:
    """Size of the volumes, which should not be fuller than `full_share`."""
    return mib_per_s * retention_s * replicas / full_share / MIB_PER_GIB


def kafka_cross_zone_mib_per_second(
    mib_per_s: float, *, zones: int, replicas: int, groups: int, follower_fetching: bool
) -> float:
    """Producers to leaders in other zones, leaders to followers, and consumers if they read from leaders."""
    elsewhere = 1 - 1 / zones
    followers = replicas - 1 if zones > 1 else 0
    return mib_per_s * (elsewhere + followers + (0 if follower_fetching else groups * elsewhere))


def gib_per_month(mib_per_s: float) -> float:
    return mib_per_s * SECONDS_PER_MONTH / MIB_PER_GIB


def requests_usd_per_month(requests_per_second: float, *, usd_per_1000: float) -> float:
    return requests_per_second * SECONDS_PER_MONTH / 1000 * usd_per_1000
