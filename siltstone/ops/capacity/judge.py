"""The doctor's judgement of what Postgres carries: connections, parameters, transaction ids, commits. Pure.

The load is that of the moment. So a verdict is about now, and each detail names the room that is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf

from metadata.postgres.probes.facts import PostgresFacts
from metadata.postgres.probes.load import PostgresLoad
from runtime.text import plural
from siltstone.ops.capacity.limits import (
    Writers,
    agents_that_fit,
    connections_idle,
    connections_peak,
    days_of,
    limits,
    vcpus_of,
)
from siltstone.ops.doctor import Check, failure, passed, warning

FREEZE_MAX_AGE = 500_000_000
"""The value that Terraform sets. It leaves vacuum as many transactions again before the alert at a billion."""
FREEZE_MAX_AGE_MAX = 1_000_000_000
FREEZE_DAYS_MIN = 3
UNFROZEN_FAIL = 1_500_000_000
CHECKPOINT_S_MIN = 600
WAL_SHARE = 1 / 1.9
"""Of max_wal_size, between two checkpoints: Postgres counts the one before and `checkpoint_completion_target` (0.9)."""
USED_WARN = 0.6
PARTITIONS_ASSUMED = 100
AGENTS_ASSUMED = 3
"""The load that is reckoned with where there is none."""


def judge_capacity(facts: PostgresFacts, load: PostgresLoad, instance_class: str) -> Sequence[Check]:
    """Raises BadInputError for an instance class whose vCPUs are unknown."""
    return [
        _connections(facts, load),
        _parameters(facts, load),
        _transaction_ids(facts, load),
        _commits(load, instance_class),
    ]


def _connections(facts: PostgresFacts, load: PostgresLoad) -> Check:
    ours = facts.connections_max - facts.connections_of_others
    peak = connections_peak(load.agents, load.compactors)
    room = agents_that_fit(ours, load.compactors) - load.agents
    detail = (
        f"{plural(load.agents, 'agent')} and {plural(load.compactors, 'compactor')} take"
        f" {connections_idle(load.agents, load.compactors)} at the start and {peak} at most, of {ours} that"
        f" max_connections leaves them"
    )
    if room < 0:
        return warning(
            "postgres connections",
            f"{detail}: when all are taken, processes that start or lost a connection cannot connect",
            f"set max_connections to {facts.connections_max + peak - ours} or more (needs a restart), or stop"
            f" {plural(-room, 'agent')}",
        )
    return passed("postgres connections", f"{detail}; room for {plural(room, 'agent')} more")


def _parameters(facts: PostgresFacts, load: PostgresLoad) -> Check:
    name = "postgres parameters"
    faults = [fault for fault in (_checkpoints(facts), _wal_size(facts, load), _wal_compression(facts)) if fault]
    if faults:
        detail, remedy = ("; ".join(texts) for texts in zip(*faults, strict=True))
        return warning(name, detail, f"set {remedy} (no restart needed)")
    size = f"max_wal_size {facts.wal_bytes_max >> 20:,} MiB"
    written = f"{load.wal_bytes_per_s / 1e6:.1f} MB/s are written"
    return passed(name, f"checkpoint_timeout {facts.checkpoint_s} s, {size}, wal_compression on; {written}")


def _checkpoints(facts: PostgresFacts) -> tuple[str, str] | None:
    if facts.checkpoint_s >= CHECKPOINT_S_MIN:
        return None
    why = "and after each checkpoint the first change of a page writes the whole page"
    return f"checkpoint_timeout is {facts.checkpoint_s} s, {why}", "checkpoint_timeout = '15min'"


def _wal_size(facts: PostgresFacts, load: PostgresLoad) -> tuple[str, str] | None:
    lasts_s = facts.wal_bytes_max * WAL_SHARE / load.wal_bytes_per_s if load.wal_bytes_per_s > 0 else inf
    if lasts_s >= facts.checkpoint_s:
        return None
    needed_gib = ceil(load.wal_bytes_per_s * max(facts.checkpoint_s, CHECKPOINT_S_MIN) / WAL_SHARE / (1 << 30))
    detail = (
        f"max_wal_size ({facts.wal_bytes_max >> 20:,} MiB) asks for a checkpoint every {lasts_s:.0f} s, at the"
        f" {load.wal_bytes_per_s / 1e6:.1f} MB/s written now, before checkpoint_timeout does"
    )
    return detail, f"max_wal_size = '{needed_gib}GB'"


def _wal_compression(facts: PostgresFacts) -> tuple[str, str] | None:
    if facts.compresses_wal:
        return None
    return "wal_compression is off, so whole pages are written uncompressed", "wal_compression = on"


def _transaction_ids(facts: PostgresFacts, load: PostgresLoad) -> Check:
    name = "postgres transaction ids"
    days = days_of(facts.freeze_max_age, load.transactions_per_s)
    detail = (
        f"{load.transactions_per_s:.1f} a second; autovacuum_freeze_max_age ({facts.freeze_max_age:,}) lasts"
        f" {_days(days)}; the oldest is {facts.transactions_unfrozen:,} old"
    )
    set_it = f"set autovacuum_freeze_max_age = {FREEZE_MAX_AGE} (needs a restart)"
    if facts.transactions_unfrozen > UNFROZEN_FAIL:
        return failure(
            name,
            f"{detail}, and at 2.1 billion Postgres refuses all writes",
            "end what holds vacuum back (old transactions, slots, prepared transactions), then run VACUUM (FREEZE,"
            " VERBOSE) on the oldest tables",
        )
    if facts.transactions_unfrozen > 2 * facts.freeze_max_age:
        return warning(
            name,
            f"{detail}: vacuum does not keep up",
            "end what holds it back (old transactions, slots, prepared transactions), or raise"
            " autovacuum_vacuum_cost_limit",
        )
    if facts.freeze_max_age > FREEZE_MAX_AGE_MAX:
        return warning(name, f"{detail}: freezing begins too late to end in time", set_it)
    if days < FREEZE_DAYS_MIN and facts.freeze_max_age < FREEZE_MAX_AGE:
        return warning(name, f"{detail}: every table is read and frozen that often", set_it)
    return passed(name, detail)


def _commits(load: PostgresLoad, instance_class: str) -> Check:
    name = "postgres commits"
    writers = Writers(
        agents=load.agents or AGENTS_ASSUMED,
        partitions=load.partitions_per_file or PARTITIONS_ASSUMED,
        # Without files nobody knows; the worse case is assumed.
        shared=load.shared or not load.partitions_per_file,
        idempotent=True,
        vcpus=vcpus_of(instance_class),
        flush_ms=load.flush_ms,
    )
    first, *others = limits(writers)
    used = load.files_per_s / first.commits_per_s if first.commits_per_s else inf
    assumed = "" if load.partitions_per_file and load.agents else " (assumed: there is no load)"
    detail = (
        f"{load.files_per_s:.1f}/s of about {first.commits_per_s:,.0f}/s on {instance_class}, with"
        f" {plural(writers.agents, 'agent')}, {plural(round(writers.partitions), 'partition')} in a file"
        f"{assumed} and this server's flush of {load.flush_ms:.1f} ms. First gives: {first.what}. Then, at"
        f" {others[0].commits_per_s:,.0f}/s: {others[0].what}"
    )
    if used > USED_WARN:
        return warning(
            name,
            detail,
            "make files fewer (produce.early.per.second, longer produce.linger.ms) or their partitions fewer (clients"
            " that name their zone); a larger instance class helps if its vCPUs give first",
        )
    return passed(name, detail)


def _days(days: float) -> str:
    return "for ever" if days == inf else f"{days:,.1f} days" if days < 100 else f"{days:,.0f} days"
