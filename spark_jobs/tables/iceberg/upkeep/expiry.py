"""The choice of snapshots to expire. Pure.

**An age counts from the moment when a snapshot was replaced**, not from when it was made: whoever opened the table
within the last `keep_ms` still finds all files of the snapshot that was current then, however rare commits are.
Iceberg's own expiry counts from the making, and may take the files of a reader that began a second ago.

**The properties of the table decide**, as for other engines: `history.expire.max-snapshot-age-ms`,
`history.expire.min-snapshots-to-keep`, and those of a branch. Tables made by us keep an hour. Each snapshot adds 0.8
KiB and more to the metadata file, which every commit writes again and every reader reads: an hour of rounds every 30 s
is 105 KiB, a day would be 2.2 MiB. And with `--mode latest` each snapshot is a whole copy of the table. An hour is long
enough for readers that are at it; whoever needs the past for longer tags a snapshot, or sets the property.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

HOUR_MS = 3_600_000
MANY = 32
"""So many snapshots are worth a commit of their own, as is a tenth of all."""
FOR_NEW_TABLES: Mapping[str, str] = {
    "history.expire.max-snapshot-age-ms": str(HOUR_MS),
    # Each commit leaves one metadata file. pyiceberg deletes those that fall out of the log, and so do others.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # Each commit adds a manifest, and lists all others again: without merges the lists grow for ever. Iceberg's own
    # default is to merge, pyiceberg's is not to.
    "commit.manifest-merge.enabled": "true",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One snapshot."""

    id: int
    parent: int | None
    made_ms: int
    carries_progress: bool
    """Whether a run of ours can go on from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """A branch or a tag."""

    snapshot_id: int
    is_branch: bool
    is_main: bool
    keep_ms: int | None = None
    """The branch's own values, which go before those of the table."""
    keep_last: int | None = None


def expired(
    snapshots: Collection[Taken], refs: Collection[Ref], now_ms: int, keep_ms: int, keep_last: int
) -> tuple[int, ...]:
    """The ids of the snapshots that nobody needs, in the order given.

    Kept are: tagged ones; of each branch those that were current within its time, and its last ones; of the main branch
    all down to the newest that carries progress, since a run looks for it along the parents; and those of no branch (of
    a rollback, or staged) until they are `keep_ms` old.
    """
    by_id = {each.id: each for each in snapshots}
    kept = {each.snapshot_id for each in refs}
    on_branches: set[int] = set()
    for ref in refs:
        if ref.is_branch:
            line = list(_line(by_id, ref.snapshot_id))
            on_branches.update(each.id for each in line)
            oldest_ms = now_ms - (keep_ms if ref.keep_ms is None else ref.keep_ms)
            kept.update(_needed(line, oldest_ms, ref.keep_last or keep_last, to_progress=ref.is_main))
    kept.update(each.id for each in snapshots if each.id not in on_branches and each.made_ms >= now_ms - keep_ms)
    return tuple(each.id for each in snapshots if each.id not in kept)


def enough(expired_count: int, count: int) -> bool:
    """Whether it is time to expire so many of all snapshots."""
    return expired_count > 0 and (expired_count >= MANY or expired_count * 10 >= count)


def _line(by_id: Mapping[int, Taken], head: int) -> Iterator[Taken]:
    """The snapshot and those before it, the newest first."""
    each = by_id.get(head)
    while each is not None:
        yield each
        each = None if each.parent is None else by_id.get(each.parent)


def _needed(line: list[Taken], oldest_ms: int, keep_last: int, *, to_progress: bool) -> set[int]:
    count = min(len(line), max(1, keep_last))
    while count < len(line) and line[count - 1].made_ms > oldest_ms:  # replaced since then
        count += 1
    if to_progress:
        carrying = [number for number, each in enumerate(line, 1) if each.carries_progress]
        count = max(count, carrying[0] if carrying else 0)
    return {each.id for each in line[:count]}
