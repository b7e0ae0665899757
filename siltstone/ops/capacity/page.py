"""The tables of docs/operations/sizing.md about Postgres, made from the measured figures. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from siltstone.ops.capacity.figures import CEILINGS, CLASSES, MULTI_AZ_FLUSH_MS
from siltstone.ops.capacity.limits import (
    Writers,
    agents_that_fit,
    days_of,
    limits,
    rds_max_connections,
    transaction_ids_per_s,
    vcpus_of,
)

RESERVED_CONNECTIONS = 10
"""Of RDS and superusers."""
SHOWN_AGENTS = 12


def ceilings_table() -> str:
    """Measured commits a second, for all agents on the same partitions."""
    rows = sorted(CEILINGS, key=lambda row: (row.partitions, row.idempotent, row.sessions))
    return _table(
        ("partitions in a file", "producers", "agents", "commits/s", "p99, ms"),
        [
            (
                f"{row.partitions:,}",
                "idempotent" if row.idempotent else "plain",
                str(row.sessions),
                f"{row.commits_per_s:,.0f}",
                f"{row.p99_ms:,.0f}",
            )
            for row in rows
        ],
    )


def classes_table() -> str:
    """The load that each instance class carries with 12 agents and idempotent producers, flushing to a second zone."""
    return _table(
        (
            "instance class",
            "vCPUs",
            "agents by connections",
            "commits/s, 100 shared",
            "100 apart",
            "1,000 shared",
            "1,000 apart",
        ),
        [
            (
                f"`{name}`",
                str(vcpus_of(name)),
                str(agents_that_fit(rds_max_connections(name) - RESERVED_CONNECTIONS, 1)),
                *(_carried(name, partitions, shared) for partitions in (100, 1000) for shared in (True, False)),
            )
            for name in CLASSES
        ],
    )


def _carried(instance_class: str, partitions: int, shared: bool) -> str:
    first = limits(
        Writers(
            agents=SHOWN_AGENTS,
            partitions=partitions,
            shared=shared,
            idempotent=True,
            vcpus=vcpus_of(instance_class),
            flush_ms=MULTI_AZ_FLUSH_MS,
        )
    )[0]
    return f"{first.commits_per_s:,.0f} {'processor' if 'vCPUs' in first.what else 'waiting'}"


def transaction_ids_table() -> str:
    """Transaction ids a second, and how long two values of `autovacuum_freeze_max_age` last."""
    loads = ((3, 0.0, 0.0), (3, 12.0, 3.0), (12, 48.0, 100.0), (12, 288.0, 1_200.0), (64, 1_536.0, 6_400.0))
    return _table(
        ("agents", "files/s", "offset commits/s", "ids/s", "200,000,000 last", "500,000,000 last"),
        [
            (
                str(agents),
                f"{files:,.0f}",
                f"{offsets:,.0f}",
                f"{(per_s := transaction_ids_per_s(agents, files, offsets)):,.1f}",
                f"{days_of(200e6, per_s):,.1f} days",
                f"{days_of(500e6, per_s):,.1f} days",
            )
            for agents, files, offsets in loads
        ],
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["--:"] * len(head), *rows]
    return "\n".join("|" + "|".join(f" {cell} " if cell != "--:" else cell for cell in line) + "|" for line in lines)
