"""Obstacles to adopting the metadata after a restore or failover, and the objects that the metadata does not know.

Until the metadata's history is adopted (`metadata/rules/history.py`), the janitor deletes nothing. The person who
adopts it lets the janitor go on, by rows that may be older than the objects. So:

- if any invariant but FILE-2 is broken, nothing is adopted: an object that a row needs is missing or wrong, and an
  object without a row may hold the last copy of its records;
- FILE-2 is no obstacle. A halted janitor leaves such objects (dead files past their grace, orphans past their age), and
  so does a restore (objects newer than the metadata). They are reported, because the janitor will delete them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from metadata.contract.store import MetadataStore
from metadata.rules.history import History
from metadata.rules.invariants.leveled import Allowances
from runtime.settings.table import Settings
from siltstone.ops.fsck import Finding, all_files
from storage.keys import LEVEL_PREFIXES, BadKeyError, parse_file_key
from storage.objects import ObjectStat, ObjectStore

NO_OBSTACLE = frozenset({"FILE-2"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Objects of any age with keys of Siltstone that no row names."""

    listed: int
    """All objects that were listed."""
    objects: Sequence[ObjectStat]
    """Ordered by time of writing."""

    @property
    def size_bytes(self) -> int:
        return sum(stat.size_bytes for stat in self.objects)

    @property
    def l0_objects(self) -> int:
        return sum(stat.key.startswith(LEVEL_PREFIXES[0]) for stat in self.objects)


async def unknown_objects(metadata: MetadataStore, store: ObjectStore) -> Unknown:
    """Lists the objects first and reads the rows after, so that an object whose commit was under way has its row."""
    listed = [stat for level in LEVEL_PREFIXES async for stat in store.list(level)]
    known = {file.key for file in await all_files(metadata)}
    unknown = [stat for stat in listed if stat.key not in known and _is_ours(stat.key)]
    return Unknown(listed=len(listed), objects=sorted(unknown, key=lambda stat: (stat.last_modified_ms, stat.key)))


def obstacles(findings: Sequence[Finding]) -> Sequence[str]:
    """Ids of the invariants that must hold before the janitor may delete anything."""
    return [finding.id for finding in findings if finding.violations and finding.id not in NO_OBSTACLE]


def adopted_changes(history: History) -> str:
    """The properties of the adopted and of the present server, with both values of those that differ."""
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
    """How old an object may be before FILE-2 calls it superfluous: the janitor's own waits, and time for its rounds."""
    # both longer than two of the rounds they wait for (`compactor/intervals.py`)
    usual = Allowances()
    return replace(usual, grace_ms=settings.gc_grace_ms, orphan_ms=settings.orphan_age_ms + usual.listed_late_ms)


def _is_ours(key: str) -> bool:
    try:
        parse_file_key(key)
    except BadKeyError:
        return False
    return True
