"""Orphans: objects to which no metadata refers. Pure: the janitor lists and queries, this module decides.

The janitor may delete an object only if all of these hold:

- Its key is one that Siltstone writes (`storage/keys.py`): foreign objects are never deleted.
- It is older than `orphan.age.ms` by two clocks: the store's (LastModified), and its writer's, whose time at the start
  of the upload is in the key.
- No row of the metadata expects the object.
- Its writer is not at work, or the object is older than the writer's work. A compactor's work begins with its oldest
  running merge; an agent may still commit for `HARD_BOUND_MS`. So the outputs of a merge that was lost, refused or
  given back are deleted although its compactor lives. The compactor that planned a heavy merge counts as at work while
  the job lives, because other compactors continue with its units.
- There are not too many orphans: with a wrong or old database, every object looks like an orphan.

Some orphans do not count towards that limit:

- Files of merges that were *done again* (`is_done_again`). A merge that crashes may leave all its outputs. Their
  contents came from the inputs of the job, and the attempt that committed the job read these inputs whole. So nothing
  is lost with the files. It is not enough that another attempt began later. After a restore of an older database, an
  attempt may have committed in the lost history, and its inputs may be deleted. Then nobody can do the job again, and
  these files are the last copies.
- *Copies* (`is_copy`). The inputs decide in all other cases: the job is not done, it ended in another way, or it ended
  long before the file was written. The file names its inputs by id and key, and all its contents came from them. A key
  is never used twice, in any history. The file does not count if *this* database accounts for each input: either the
  input is live and its object is there, or the input is dead, so this history merged or dropped its bytes. After a
  restore, the inputs of a merge that had committed are unknown, or live without an object; so its outputs count.

So a heavy merge that failed, ran out of time, or has tasks that outlive it may leave any number of files, and the last
copy of a record is never deleted.

Before the deletion, the janitor inserts an *aborted* row for the key: that insert and a late commit of the key cannot
both succeed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from metadata.contract.files import FileState
from metadata.contract.jobs import JobState, MergeJob
from storage.keys import BadKeyError, FileKey, parse_file_key
from storage.objects import ObjectStat

HARD_BOUND_MS = 24 * 3600 * 1000
"""The longest time from an upload to its commit: a job's limit is hours, and an agent gives up within minutes."""
CLOCK_SLACK_MS = 10_000
"""Allowed difference between a merge's age by the metadata's clock and an object's age by the store's clock, which
counts whole seconds."""
CLOCKS_APART_MS_MAX = 300_000
"""Between the object store and the metadata store. If they differ by more, no age can be trusted."""
ATTEMPT_OUTLIVES_JOB_MS = 300_000
"""The time in which an attempt may still write after its job has ended. It learns of the end with its next heart-beat,
but the process may have been frozen."""
REFUSE_PERCENT = 1
REFUSE_AT_LEAST = 20
REFUSE_AT_MOST = 1_000


class Skipped(Enum):
    """Why an object is not an orphan candidate."""

    TOO_YOUNG = "not old enough"
    FOREIGN = "not a key that Siltstone writes"


class OrphanCandidate(NamedTuple):
    """An old object that Siltstone wrote. Whether the metadata knows it is not checked yet."""

    key: str
    size_bytes: int
    age_ms: int
    writer_id: int
    put_ms: int = 0
    """The time of the upload by the object store's clock, converted to the metadata store's time; to the second."""
    is_merged: bool = False
    """A merge wrote the object; its footer names the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    orphans: Sequence[OrphanCandidate]
    spared: Sequence[OrphanCandidate]
    """Orphans whose writers are at work and may still commit them."""


def candidate(stat: ObjectStat, *, store_now_ms: int, now_ms: int, age_ms_min: int) -> OrphanCandidate | Skipped:
    """`store_now_ms`: the object store's clock; `now_ms`: the metadata store's. An unknown LastModified (0) counts as
    young."""
    try:
        key = parse_file_key(stat.key)
    except BadKeyError:
        return Skipped.FOREIGN
    # The younger of the two ages counts: a wrong clock on one side must not make an object look old.
    age_ms = min(store_now_ms - stat.last_modified_ms, now_ms - begun_ms(key))
    if stat.last_modified_ms <= 0 or age_ms < age_ms_min:
        return Skipped.TOO_YOUNG
    return OrphanCandidate(
        key=stat.key,
        size_bytes=stat.size_bytes,
        age_ms=age_ms,
        writer_id=key.writer_id,
        put_ms=now_ms - store_now_ms + stat.last_modified_ms,
        is_merged=key.level > 0,
    )


def old_by_its_key(stat: ObjectStat, *, now_ms: int, age_ms_min: int) -> Skipped | None:
    """None if the writer's time, which is in the key, says that the object is old; else why it is no candidate. The
    store's clock is not needed for this, and `candidate` decides later with both."""
    try:
        key = parse_file_key(stat.key)
    except BadKeyError:
        return Skipped.FOREIGN
    return None if now_ms - begun_ms(key) >= age_ms_min else Skipped.TOO_YOUNG


def writers_patience_ms(
    agents: Iterable[int], compactors: Mapping[int, int], *, bound_ms: int = HARD_BOUND_MS
) -> Mapping[int, int]:
    """Node id -> the largest age of an object that the node may still commit. `compactors`: how long each has been
    merging, in ms."""
    merging = {node_id: min(ms + CLOCK_SLACK_MS, bound_ms) for node_id, ms in compactors.items()}
    return merging | dict.fromkeys(agents, bound_ms)


def judge(unknown: Sequence[OrphanCandidate], *, patience_ms: Mapping[int, int]) -> Judged:
    """`unknown`: objects that no row expects. `patience_ms`: by writer, queried after the listing."""
    spared = [each for each in unknown if each.age_ms < patience_ms.get(each.writer_id, 0)]
    gone = {each.key for each in spared}
    return Judged(orphans=[each for each in unknown if each.key not in gone], spared=spared)


def orphans_allowed(objects: int, *, setting: int = 0) -> int:
    """The most orphans among `objects` that may be deleted. `setting` (orphan.refuse.files) wins unless it is 0."""
    if setting:
        return setting
    return min(max(objects * REFUSE_PERCENT // 100, REFUSE_AT_LEAST), REFUSE_AT_MOST)


def is_done_again(orphan: OrphanCandidate, *, epoch: int, job: MergeJob | None) -> bool:
    """Whether an attempt of a job that is done left the file. `epoch` is the attempt's, from the file.

    A restored database assigns job ids a second time. So the job must be older than the file, and the file must not be
    younger than the job's end; otherwise another job wrote it.
    """
    if job is None or job.state is not JobState.DONE or epoch > job.epoch:
        return False
    ended_ms = (job.finished_ms or 0) + ATTEMPT_OUTLIVES_JOB_MS
    return job.created_ms - CLOCK_SLACK_MS <= orphan.put_ms <= ended_ms


def is_copy(inputs: Sequence[tuple[FileState | None, bool]]) -> bool:
    """Whether the database accounts for all inputs of a merged file. For each input: the state of the row with its id
    and key (None = no such row), and whether its object is in the store."""
    return bool(inputs) and all(
        state in (FileState.DEAD, FileState.DELETED) or (state is FileState.LIVE and is_there)
        for state, is_there in inputs
    )


def clocks_agree(store_now_ms: int, now_ms: int) -> bool:
    return abs(store_now_ms - now_ms) <= CLOCKS_APART_MS_MAX


def begun_ms(key: FileKey) -> int:
    """The writer's time, by its estimate of the metadata store's clock, when it began the object."""
    return key.file_uuid.int >> 80  # RFC 9562: a version 7 uuid begins with the time in ms
