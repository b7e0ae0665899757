"""What stands against adopting the metadata after a restore or failover, and what becomes of what it does not know.

While the metadata's history is not adopted (`metadata/rules/history.py`) the janitor deletes nothing. The person who
adopts it lets the janitor go on, by rows that may be older than the objects. So:

- with any invariant broken but FILE-2 nothing is adopted: an object that a row needs is missing or wrong, and another
  that nothing names may hold the last copy of its records;
- FILE-2 is what a halted janitor leaves behind (dead files past their grace, orphans past their age) and what a restore
  makes (objects newer than the metadata). It stands against nothing, but it is told: the janitor will delete them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metadata.contract.store import MetadataStore
from metadata.rules.history import History
from metadata.rules.invariants_leveled import Allowances
from runtime.settings.table import Settings
from siltstone.ops.fsck import Finding, all_files
from storage.keys import LEVEL_PREFIXES, BadKeyError, parse_file_key
from storage.objects import ObjectStat, ObjectStore

NO_OBSTACLE = frozenset({"FILE-2"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Objects with keys of ours that no row names, of any age."""

    listed: int
    """Objects in all."""
    objects: Sequence[ObjectStat]
    """By time of writing."""

    @property
    def size_bytes(self) -> int:
        return sum(stat.size_bytes for stat in self.objects)

    @property
    def l0_objects(self) -> int:
        return sum(stat.key.startswith(LEVEL_PREFIXES[0]) for stat in self.objects)


async def unknown_objects(metadata: MetadataStore, store: ObjectStore) -> Unknown:
    """Objects are listed first, then the rows are read: an object whose commit was under way has its row by then."""
    listed = [stat for level in LEVEL_PREFIXES async for stat in store.list(level)]
    known = {file.key for file in await all_files(metadata)}
    unknown = [stat for stat in listed if stat.key not in known and _is_ours(stat.key)]
    return Unknown(listed=len(listed), objects=sorted(unknown, key=lambda stat: (stat.last_modified_ms, stat.key)))


def obstacles(findings: Sequence[Finding]) -> Sequence[str]:
    """Ids of the invariants that must be mended before anything may be deleted."""
    return [finding.id for finding in findings if finding.violations and finding.id not in NO_OBSTACLE]


def adopted_changes(history: History) -> str:
    """What differs between the adopted and the present server, both values of each."""
    old, new = history.adopted, history.present
    pairs = (
        ("system identifier", old.system_identifier, new.system_identifier),
        ("timeline", old.timeline, new.timeline),
        ("database oid", old.database_oid, new.database_oid),
    )
    return ", ".join(
        f"{name} {before} became {now}" if before != now else f"{name} {now} as before" for name, before, now in pairs
    )


def allowances(settings: Settings) -> Allowances:
    """How long this system's janitor may leave an object lying: until it may go, and until the janitor comes round."""
    late_ms = Allowances().late_ms  # longer than two of the janitor's rounds (`compactor/intervals.py`)
    return Allowances(grace_ms=settings.gc_grace_ms, late_ms=late_ms, orphan_ms=settings.orphan_age_ms + late_ms)


def _is_ours(key: str) -> bool:
    try:
        parse_file_key(key)
    except BadKeyError:
        return False
    return True
