"""Every reason that `siltstone topics explain` gives: one row each, with its code, its sentence and its remedy.

The rules in `reasons.py` choose rows. A sentence names the facts that it needs: attributes of the `evidence`, of the
planner's `options` and, for a partition, of its `state`, `view` and dirtiness (`dirty`); `hints` for its commands; and
what its rule gives.
"""

from __future__ import annotations

from enum import Enum, unique

from compactor.planning.notes import Blocker
from siltstone.processes.spark_note import HOW_TO_ADD_SPARK

_JOB = "job {job.job_id} ({job.kind})"
_SHOW_JOB = "`siltstone jobs show {job.job_id}{hints.places}` shows more"
_RUNNING_JOBS = "`siltstone jobs list --state running{hints.places}`"
_FAILED_JOBS = "`siltstone jobs list --state failed{hints.places}`"
_FSCK = "`siltstone fsck{hints.places}`"
_WAIT_OR_NOW = "wait, or {now}"
_PASSES = "of which at most {options.forced_jobs_max} may be passes over one partition"
_JOBS = "`siltstone jobs list{hints.places}`"
_MORE = f"wait. If jobs wait for a compactor ({_JOBS}), start more with `{{hints.compactor}}`; else raise "
_IN_FILE = "has offsets {one.base_offset} to {one.last_offset} in L{one.file.level} file {one.file.file_id}"
_TROUBLE = "({one.key}): {failed}{error:phrase}. It is tried again {retry}; until a merge can read it, {stops}."


@unique
class Cause(Enum):
    """`says` follows "partition N ", unless it is about the whole topic. An empty `remedy`: nothing has to be done.

    The code in JSON is the name in lower case, with spaces; a third value replaces it.
    """

    def __init__(self, says: str, remedy: str = "", code: str = "") -> None:
        self.says, self.remedy, self.code = says, remedy, code or self.name.lower().replace("_", " ")

    # ---- the whole topic
    NO_PARTITIONS = "{topic} has no partitions."
    PLAIN = (
        "{topic} is not compacted: its cleanup.policy is {policy}. Every record stays until retention deletes it.",
        "none, if that is intended. To keep only the latest record of each key, and lose the others: `siltstone topics "
        "alter {topic} --config cleanup.policy=compact{hints.agents}`",
    )
    NO_COMPACTOR = (
        "No compactor is running: nothing is merged, deduped or deleted.",
        "start one with `{hints.compactor}`; {now} runs one until the topic is compacted",
    )
    WRITE_STALL = (
        "{files:,} L0 files are live, more than l0.stall.files ({evidence.stall_files:,}): the compactors are behind "
        "with moving L0 files to L1, so agents delay the answers to producers.",
        "start more compactors with `{hints.compactor}`",
    )

    ERASURE = (
        "{topic} has an open erasure, {erasure.erasure_id}, of {erasure.keys:# key}: it is {erasure.stage.value}, and "
        "is to be done in {left_ms:age}.",
        "none, while it makes progress; `siltstone erase status {erasure.erasure_id}{hints.places}` says what it waits "
        "for",
    )
    OVERDUE_ERASURE = (
        "{topic} has an overdue erasure, {erasure.erasure_id}, of {erasure.keys:# key}: it is {erasure.stage.value}, "
        "and should have been done {late_ms:age} ago.",
        "`siltstone erase status {erasure.erasure_id}{hints.places}` says what it waits for",
    )

    # ---- jobs
    RUNNING = f"is being merged: {_JOB}, {{done}}, for {{since_ms:age}}."
    WAITING_FOR_MEMORY = (
        f"is in {_JOB}, which has waited for {{since_ms:age}} for memory that other merges of its compactor use: "
        "compactor.memory.bytes is {evidence.memory_bytes:size}.",
        "wait until the other merge ends, or raise compactor.memory.bytes of the compactors",
    )
    RESTING = (
        f"is planned: a compactor gave {_JOB} back, and it rests for {{rest_ms:age}} more: {{job.error:phrase}}.",
        f"none: a compactor tries it again by itself; {_SHOW_JOB}",
    )
    WAITING_FOR_A_COMPACTOR = f"is planned: {_JOB} waits for a compactor{{tried}}."
    FAILED = (
        f"was in {_JOB}, which failed {{since_ms:age}} ago: {{job.error:phrase}}.",
        f"none: the planner plans it again by itself; {_SHOW_JOB}",
    )

    # ---- nothing to do, or waiting
    EMPTY = "holds no records."
    CLEAN = "is compacted through offset {view.cleaned_through_offset}; there is nothing to do."
    ASKED_FOR = (
        "was asked to be compacted up to offset {view.requested_through_offset}, and is cleaned through "
        "{view.cleaned_through_offset}; the planner takes it when nothing that is named here is in its way.",
    )
    IN_L0 = (
        "has {state.l0_offsets:# offset} from {dirty.leveled_through_offset} on in L0 files, where nothing is deduped. "
        "L0 files go to L1 when there are {options.l0_files_min} and the oldest has waited {options.l0_wait_ms:age}, "
        "or when the oldest has waited {options.l0_wait_ms_max:age} (compaction.l0.wait.max.ms){lag_wait}.",
        _WAIT_OR_NOW,
        "in L0",
    )
    TOO_YOUNG = (
        "keeps its last {count:# offset}, from offset {first} on, as they are: some of them are younger than "
        "min.compaction.lag.ms ({lag_ms:age}).",
        "wait, or lower it: `siltstone topics alter {topic} --config min.compaction.lag.ms=0{hints.agents}`",
    )
    OPEN_TRANSACTION = (
        "has an open transaction from offset {view.last_stable_offset} on; no record at or above that offset is "
        "cleaned.",
        "`siltstone transactions find-hanging --longer-than 0s{hints.places}` names it; its producer must commit or "
        "abort, or its transaction.timeout.ms ends it. If the producer is gone, `siltstone transactions abort "
        "ID{hints.agents}` ends it",
    )
    DUE = "is due: {state.due}. The planner takes it within seconds."
    BELOW_THE_DIRTY_RATIO = (
        "is {dirty.ratio:.2f} dirty ({dirty.dirty_bytes:size}), not above min.cleanable.dirty.ratio "
        "({dirty.ratio_min:.2f}): superseded records stay until more is written, or until the daily merge.",
        "lower min.cleanable.dirty.ratio of {topic}, or {now}",
    )
    FORCED_LATELY = (
        "is {dirty.ratio:.2f} dirty, and had a pass of its own less than {options.forced_interval_ms:age} ago "
        "(forced.interval.ms): the next one may begin in {left_ms:age}.",
        _WAIT_OR_NOW,
    )
    FEW_DIRTY_BYTES = (
        "is {dirty.ratio:.2f} dirty, but has only {dirty.dirty_bytes:size} of dirty records. A pass of its own needs "
        "{options.forced_dirty_bytes_min:size} (forced.dirty.bytes.min), or to be dirty for "
        "{options.forced_dirty_wait_ms:age} (forced.dirty.wait.ms), which is in {left_ms:age}. Merges of whole runs "
        "dedupe it too.",
        _WAIT_OR_NOW,
    )
    IN_THE_WAY = (
        "is {dirty.ratio:.2f} dirty, but a pass from the log start cannot reach the dirty records: an L0 file, or an "
        "extent that a running merge holds, lies before them.",
        _WAIT_OR_NOW,
    )
    MAX_LAG = (
        "is compacted in {left_ms:age} at the latest, when its oldest dirty records are {dirty.lag_ms_max:age} old "
        "(max.compaction.lag.ms).",
    )
    PAST_MAX_LAG = (
        "is past its max.compaction.lag.ms ({dirty.lag_ms_max:age}): its oldest dirty record was committed "
        "{since_ms:age} ago. {then}",
        _WAIT_OR_NOW,
    )
    BUFFER_OVERFLOW = (
        "had more keys than the dedupe buffer holds, so its last pass kept one record per key for each filling of the "
        "buffer. The next pass is deep: it reads the partition {reads} times and leaves one record per key.",
        _WAIT_OR_NOW,
    )
    TOMBSTONES = (
        "still holds tombstones below offset {view.cleaned_through_offset}{first}. A tombstone stays for "
        "delete.retention.ms ({wait_ms:age} now), as it was set when a pass first kept it, then goes with the next "
        "pass from the log start{goes}.",
        "wait, or {now} when that time has passed; a shorter delete.retention.ms of {topic} holds only for tombstones "
        "that no pass has kept yet",
    )

    # ---- bytes of records that passes removed, by the files that are there
    GONE = (
        "has no old value left below offset {view.cleaned_through_offset}: {of_what} holds a record that a newer one "
        "or a tombstone there removed.",
    )
    REMAINS = (
        "has removed records in {count:# file} of the bucket still: {files}.",
        "{wait}",
    )
    MAY_REMAIN = (
        "may hold old values below offset {view.cleaned_through_offset} still, in live files too: {why}. A tombstone "
        "there has not removed every value of its key for certain.",
    )

    # ---- due, and not planned: the codes are values of the planner's `Blocker`, and `note` is its text
    NO_PLACE_FOR_JOBS = (
        f"{{subject}}: {{note}}: compactor.jobs.max is {{options.jobs_max}}, {_PASSES}.",
        f"{_MORE}compactor.jobs.max of the compactors",
    )
    NO_PLACE_FOR_HEAVY_JOBS = (
        f"{{subject}}: {{note}}: compactor.heavy.jobs.max is {{options.heavy_jobs_max}}, {_PASSES}.",
        f"{_JOBS} shows what the jobs on Spark do",
    )
    NO_PLACE_FOR_L0_JOBS = (
        "has records in L0, where {note}: compactor.l0.jobs.max is {options.l0_jobs_max}.",
        f"{_MORE}compactor.l0.jobs.max of the compactors",
        "no place for L0 jobs",
    )
    HELD_BY_PASSES = "{subject}: {note}.", f"wait until they end: {_RUNNING_JOBS}"
    HELD_BY_A_MERGE = "{subject}: {note}.", f"wait until the merge ends: {_RUNNING_JOBS} shows it"
    KEPT_FREE = (
        "{subject}: {note}: its files are kept free for a merge of whole runs, which waits for passes that hold some "
        "of them.",
        "wait",
    )
    HELD_BY_TROUBLE = "{subject}: {note}.", f"{_FAILED_JOBS} shows why, and {_FSCK} what is damaged"
    TOO_LARGE = (
        "{subject}: {note}; superseded records and tombstones stay.",
        "raise compaction.merge.bytes.max (for Spark: spark.merge.max.bytes) of the compactors, or give them Spark: "
        f"{HOW_TO_ADD_SPARK}",
    )
    BAD_CONFIG = "{note}.", "set the config again: `siltstone topics alter {topic} --config NAME=VALUE{hints.agents}`"

    # ---- records that merges cannot read
    OBJECT_LOST = (
        f"{_IN_FILE}, whose object is lost {_TROUBLE}",
        f"{_FSCK} shows what is missing (FILE-1); put the object back under its key, byte for byte (from an older "
        "version in the bucket, or a copy). If it is gone for good, so are its records: delete those below offset "
        "{first_kept} (DeleteRecords, as `kafka-delete-records.sh` sends), and those of all other partitions in that "
        "file up to their last there",
    )
    FILE_IN_TROUBLE = (
        f"{_IN_FILE}, which merges fail to read {_TROUBLE}",
        f"look at {_FAILED_JOBS}, and check the object with {_FSCK}",
    )
    MORE_IN_TROUBLE = "has records in {left:# more place} that merges fail to read, after these.", "", "file in trouble"
    FLAGGED = (
        "has {count:# extent} with bytes that are no sound batches; merges copy them as they are and dedupe nothing in "
        "them. The first: offsets {one.base_offset} to {one.last_offset} of file {one.file_id}: {one.flagged_reason}.",
        "look at it with `siltstone file inspect {one.key} --batches{hints.places}`, and write again the records that "
        "you need",
    )
    UNREADABLE_BATCHES = (
        "has {count:# batch} whose records cannot be read, the first at offset {first[first_offset]}: "
        "{first[reason]:phrase}. Those below the log start ({view.log_start_offset}) are deleted since. Known from "
        f"{_JOB}, {{since_ms:age}} ago. Merges leave them as they are; consumers get what the producer sent, and fail "
        "or skip there as they would with Kafka. They may hide an old value of any key, so tombstones from the first "
        "one on stay.",
        "look with `siltstone file inspect {key} --batches{hints.places}`, and find the producer that writes them; a "
        "consumer that fails there can seek past them. To get rid of them, copy the other records to another topic",
    )


BLOCKED = {blocker: next(each for each in Cause if each.code == blocker.value) for blocker in Blocker}
