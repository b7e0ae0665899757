"""Which objects nothing refers to. Pure: the janitor lists and asks, this decides.

An object may go only when all of these hold:

- its key is one of ours (`storage/keys.py`): what we did not write we do not delete;
- it is older than `orphan.age.ms` twice over: by the store's clock (LastModified) and by the time in its key, which is
  its writer's clock when the upload began;
- no row of the metadata says that it should be there;
- its writer is not at work, or it is older than what the writer is at: a compactor's oldest running merge, an agent's
  patience (`HARD_BOUND_MS`). So what a merge left that was lost, refused or given back goes while its compactor lives.
  Whoever made a plan of a heavy merge counts as at work for as long as the job lives: others go on with its units;
- there are not too many like it: a wrong database, or an old one, makes everything look forgotten.

Not counted among the many are files of merges that were *done again* (`is_done_again`): one merge that crashes leaves
as many as its outputs, and these are not forgotten, their attempt is known. What such a file holds came from the inputs
of its job, and the commit that ended the job read those whole: nothing is lost with the file, whatever became of its
own attempt. That an attempt is known to be superseded is not enough. Where an older copy of the database was put back,
the attempt may have committed before that, and its inputs may have been deleted: the job, tried again, cannot be done,
and these files are the last copies. Of jobs that are not done, or that ended otherwise or long before the file was
written, a file is looked at by its inputs instead (`is_copy`), which it names by id and key; a key is never given out
twice, by whatever history. All that it holds came from them. It is not counted where each of them is accounted for by
*this* database: live, and its object there, or dead, for then its bytes were merged on or dropped under this history.
After a restore the inputs of a merge that had committed are live and their objects gone, or nobody knows them: its
outputs are counted. So a heavy merge that failed, was out of time, or whose tasks go on behind its end may leave as
much as it likes, and the last copy of anything is kept as before.

And then its key must be *aborted* first: the insert of that row and a late commit of the key cannot both win.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from metadata.contract.compaction import JobState, MergeJob
from metadata.contract.service import FileState
from storage.keys import BadKeyError, FileKey, parse_file_key
from storage.objects import ObjectStat

HARD_BOUND_MS = 24 * 3600 * 1000
"""No upload is committed so late: a job's limit is hours, an agent gives a file up within minutes."""
CLOCK_SLACK_MS = 10_000
"""Between a merge's age by the metadata's clock and an object's by the store's, whose times are whole seconds."""
CLOCKS_APART_MS_MAX = 300_000
"""Between the object store and the metadata store; with more, no age can be trusted."""
ATTEMPT_OUTLIVES_JOB_MS = 300_000
"""An attempt that was superseded hears of it with its next beat; one that was frozen may write a little more."""
REFUSE_PERCENT = 1
REFUSE_AT_LEAST = 20
REFUSE_AT_MOST = 1_000


class Not(Enum):
    """Why an object is no candidate."""

    OLD = "not old enough"
    OURS = "not a key of ours"


class Candidate(NamedTuple):
    """An old object of ours; whether anything refers to it is not known yet."""

    key: str
    size_bytes: int
    age_ms: int
    writer_id: int
    put_ms: int = 0
    """When, by the object store's clock, told in the metadata store's time; to the second."""
    is_merged: bool = False
    """A merge wrote it: it says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    orphans: Sequence[Candidate]
    spared: Sequence[Candidate]
    """Their writers are at work and may yet commit them."""


def candidate(stat: ObjectStat, *, store_now_ms: int, now_ms: int, age_ms_min: int) -> Candidate | Not:
    """`store_now_ms` is the object store's clock, `now_ms` the metadata's. A LastModified of 0 is not known: young."""
    try:
        key = parse_file_key(stat.key)
    except BadKeyError:
        return Not.OURS
    age_ms = min(store_now_ms - stat.last_modified_ms, now_ms - _begun_ms(key))
    if stat.last_modified_ms <= 0 or age_ms < age_ms_min:
        return Not.OLD
    return Candidate(
        key=stat.key,
        size_bytes=stat.size_bytes,
        age_ms=age_ms,
        writer_id=key.writer_id,
        put_ms=now_ms - store_now_ms + stat.last_modified_ms,
        is_merged=key.level > 0,
    )


def writers_patience_ms(
    agents: Iterable[int], compactors: Mapping[int, int], *, bound_ms: int = HARD_BOUND_MS
) -> Mapping[int, int]:
    """Node id -> how old an object may be that it will yet commit. `compactors`: for how long each has been merging."""
    merging = {node_id: min(ms + CLOCK_SLACK_MS, bound_ms) for node_id, ms in compactors.items()}
    return merging | dict.fromkeys(agents, bound_ms)


def judge(unknown: Sequence[Candidate], *, patience_ms: Mapping[int, int]) -> Judged:
    """`unknown`: no row says that they should be there. `patience_ms`: of writers, asked after the listing."""
    spared = [each for each in unknown if each.age_ms < patience_ms.get(each.writer_id, 0)]
    gone = {each.key for each in spared}
    return Judged(orphans=[each for each in unknown if each.key not in gone], spared=spared)


def orphans_allowed(objects: int, *, setting: int = 0) -> int:
    """With more than this of `objects` nothing is deleted. `setting` (orphan.refuse.files) wins when it is not 0."""
    if setting:
        return setting
    return min(max(objects * REFUSE_PERCENT // 100, REFUSE_AT_LEAST), REFUSE_AT_MOST)


def is_done_again(orphan: Candidate, *, epoch: int, job: MergeJob | None) -> bool:
    """Whether the file was left by an attempt of a job that is done; `epoch` is that of the attempt, by the file.

    A database that was put back gives job ids out a second time. So the job must be older than the file, and the file
    must not be younger than the job's end, or it was another job's.
    """
    if job is None or job.state is not JobState.DONE or epoch > job.epoch:
        return False
    ended_ms = (job.finished_ms or 0) + ATTEMPT_OUTLIVES_JOB_MS
    return job.created_ms - CLOCK_SLACK_MS <= orphan.put_ms <= ended_ms


def is_copy(inputs: Sequence[tuple[FileState | None, bool]]) -> bool:
    """Whether all that a merge wrote is accounted for elsewhere. Of each input that its file names: the state of the
    row of that id and key, None where there is none, and whether its object is in the store."""
    return bool(inputs) and all(
        state in (FileState.DEAD, FileState.DELETED) or (state is FileState.LIVE and is_there)
        for state, is_there in inputs
    )


def clocks_agree(store_now_ms: int, now_ms: int) -> bool:
    return abs(store_now_ms - now_ms) <= CLOCKS_APART_MS_MAX


def _begun_ms(key: FileKey) -> int:
    return key.file_uuid.int >> 80  # RFC 9562: a uuid of version 7 begins with the time in ms
