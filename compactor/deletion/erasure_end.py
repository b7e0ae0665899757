"""When an erasure may end, and its report. Pure: the duty "erase" asks and lists (`compactor/deletion/erasures.py`).

No file that is live or dead is pending any more; the moment when this was seen first is the *settled* time. Objects
that no row names may still hold records of the keys: outputs of merges that were lost, and L0 files whose commit never
came. Such a *stray* holds the erasure back unless one of these holds:

- Its writer began it after the settled time, by the time in its key: no file was left from which it could come.
- Its footer names none of the erasure's partitions.
- The job that its footer names lives. The inputs of a live job are not deleted, and deleted is the only way in which a
  pending file ceases to be pending; so none of them is.

A batch that a producer sent again lies in its L0 file though the commit knew it already and gave it no row. Such a
*refused* batch in a file that was begun before the settled time holds the erasure back until the file is merged and
deleted, if the file's footer names one of the erasure's partitions. If a producer sends one later, the erasure does not
wait for it: else a client that goes on retrying could hold it back for ever.

An upload that began before the settled time and has not ended holds the erasure back as well. The uploads of running
merges end by themselves, within the time of one output file.

A process that is frozen for longer than `gc.grace.ms` may write an object after all this, from a file that is gone. The
janitor deletes it as an orphan.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from compactor.deletion.orphans import CLOCK_SLACK_MS, begun_ms
from metadata.erasures.contract import Erasure, ErasureStage, PendingFile
from runtime.text import plural
from storage.keys import LEVEL_PREFIXES, BadKeyError, parse_file_key
from storage.objects import BegunUpload

REPORT_VERSION = 1
FILES_REPORTED_MAX = 10_000
"""Files that a report lists; the others are counted."""
NAMED_MAX = 3

TopicPartition = tuple[uuid.UUID, int]


class SeenFile(NamedTuple):
    """A pending file as the compactor saw it."""

    file_id: int
    key: str
    level: int
    size_bytes: int
    was_live: bool
    """At the request or later."""
    first_seen_ms: int
    last_seen_ms: int

    @property
    def ended(self) -> str:
        """Its object is deleted in any case: only then is it pending no more."""
        if not self.was_live:
            return "deleted"
        return "rewritten and deleted" if self.level else "merged and deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The memory of an open erasure. A compactor that takes the duty begins with an empty one, which costs no more than
    the files of the report: the settled time can only be later."""

    since_ms: int
    files: Mapping[int, SeenFile]
    settled_ms: int | None = None
    """When the last pending file was seen to be gone; None: files are pending, or a stage is still to come."""


def is_last_stage(erasure: Erasure) -> bool:
    return erasure.stage is ErasureStage.ERASING and (erasure.erases_tombstones or not erasure.tombstones)


def watch(before: Watched | None, erasure: Erasure, pending: Sequence[PendingFile], now_ms: int) -> Watched:
    """`pending` was asked before `now_ms`."""
    known = before or Watched(since_ms=now_ms, files={})
    files = dict(known.files)
    for each in pending:
        seen = files.get(each.file_id)
        # A file may have died between the request and the first look.
        was_live = each.dead_ms is None or each.dead_ms >= erasure.created_ms
        files[each.file_id] = SeenFile(
            file_id=each.file_id,
            key=each.key,
            level=each.level,
            size_bytes=each.size_bytes,
            was_live=was_live or (seen is not None and seen.was_live),
            first_seen_ms=now_ms if seen is None else seen.first_seen_ms,
            last_seen_ms=now_ms,
        )
    settled_ms = None
    if not pending and is_last_stage(erasure):
        settled_ms = now_ms if known.settled_ms is None else known.settled_ms
    return replace(known, files=files, settled_ms=settled_ms)


def is_blocked(pending: Iterable[PendingFile]) -> bool:
    """Whether a file waits for somebody's help: it cannot be read, its merge failed, or a reader pins it."""
    return any(each.flagged_reason is not None or each.trouble or each.is_pinned for each in pending)


def may_be_older(key: str, settled_ms: int) -> bool:
    """Whether the object of the key may have been begun before the settled time. Siltstone wrote no foreign object."""
    try:
        return begun_ms(parse_file_key(key)) < settled_ms + CLOCK_SLACK_MS
    except BadKeyError:
        return False


def holding_uploads(uploads: Iterable[BegunUpload], settled_ms: int) -> Sequence[BegunUpload]:
    return [each for each in uploads if _may_hold(each, settled_ms)]


def _may_hold(upload: BegunUpload, settled_ms: int) -> bool:
    if upload.key and not upload.key.startswith(LEVEL_PREFIXES):
        return False  # of the metadata backup, which has no record
    return upload.begun_ms < settled_ms + CLOCK_SLACK_MS or may_be_older(upload.key, settled_ms)


def abort_before_ms(*, settled_ms: int, now_ms: int, at_work_ms: Iterable[int], age_ms: int) -> int:
    """Uploads that began earlier belong to no process that works. `at_work_ms`: how long each writer has been merging;
    `age_ms`: no PUT takes longer."""
    return min(settled_ms, now_ms - age_ms, *(now_ms - each - CLOCK_SLACK_MS for each in at_work_ms))


def partitions_of(erasure: Erasure) -> Collection[TopicPartition]:
    return {(erasure.topic_id, number) for number in erasure.partitions}


def why_held(strays: Sequence[str], uploads: int, refused: Sequence[str] = ()) -> str:
    """Why the erasure may not end; "" = it may."""
    said: list[str] = []
    if strays:
        objects = f"{plural(len(strays), 'object')} without a row"
        said.append(f"{objects} may hold records of its partitions: {_some(strays)}")
    if refused:
        said.append(f"{plural(len(refused), 'L0 file')} with a batch that was sent again: {_some(refused)}")
    if uploads:
        said.append(f"{plural(uploads, 'upload')} began before and did not end")
    return "; ".join(said)


def _some(keys: Sequence[str]) -> str:
    return ", ".join(keys[:NAMED_MAX]) + (" and others" if len(keys) > NAMED_MAX else "")


class ListingDigest:
    """SHA-256 over one line for each object, in the order of their keys: key, tab, size in bytes, line feed."""

    def __init__(self) -> None:
        self.objects = 0
        self.size_bytes = 0
        self._hash = hashlib.sha256()

    def add(self, key: str, size_bytes: int) -> None:
        self.objects += 1
        self.size_bytes += size_bytes
        self._hash.update(f"{key}\t{size_bytes}\n".encode())

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """All objects of files at the end."""

    began_ms: int
    ended_ms: int
    objects: int
    size_bytes: int
    sha256: str
    strays: Sequence[str]
    """Keys that no live or dead row names."""


def report_of(erasure: Erasure, watched: Watched, listing: Listing, *, now_ms: int) -> dict[str, Any]:
    """The marks are not in it: they stay with the erasure. `now_ms`: when the erasure ends."""
    files = sorted(watched.files.values())
    return {
        "version": REPORT_VERSION,
        "erasure": erasure.erasure_id,
        "topic": erasure.topic_name,
        "topic_id": str(erasure.topic_id),
        "partitions": sorted(erasure.partitions),
        "marks": erasure.keys,
        "tombstones": erasure.tombstones,
        "stamp": erasure.stamp,
        "created_ms": erasure.created_ms,
        "begin_ms": erasure.begin_ms,
        "deadline_ms": erasure.deadline_ms,
        "settled_ms": watched.settled_ms,
        "finished_ms": now_ms,
        "files_seen_since_ms": watched.since_ms,
        "files_seen": len(files),
        "files": [{**each._asdict(), "ended": each.ended} for each in files[:FILES_REPORTED_MAX]],
        "listing": {
            "began_ms": listing.began_ms,
            "ended_ms": listing.ended_ms,
            "objects": listing.objects,
            "size_bytes": listing.size_bytes,
            "sha256": listing.sha256,
            "without_a_row": len(listing.strays),
        },
    }
