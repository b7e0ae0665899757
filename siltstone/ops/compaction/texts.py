"""Every sentence of `siltstone topics explain`: one row per situation, with its code and its remedy.

The rules (`reasons.py`, `damage.py`) decide which row applies and give its fields. Each row may also use `topic`,
`places` and `agents` (options that a printed command repeats), `compactor` (the command that starts one), `now` (the
command that compacts at once) and `options` (the planner's numbers).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from compactor.planning.notes import Blocker
from siltstone.processes.spark_note import HOW_TO_ADD_SPARK

_FAILED_JOBS = "`siltstone jobs list --state failed{places}`"
_FSCK = "`siltstone fsck{places}`"
_SHOW_JOB = "`siltstone jobs show {job_id}{places}`"


class Text(NamedTuple):
    code: str
    """In JSON."""
    says: str
    """Follows "partition N ", unless it is about the whole topic."""
    remedy: str = ""
    """Empty: nothing has to be done."""
    brief: bool = False
    """Whether `topics describe` and `compact` may print it below their table, as the line of its partition."""


# ---- the whole topic
NO_PARTITIONS = Text("no partitions", "{topic} has no partitions.")
PLAIN = Text(
    "plain",
    "{topic} is not compacted: its cleanup.policy is {policy}. Every record stays until retention deletes it.",
    "none, if that is intended. To keep only the latest record of each key, and lose the others: `siltstone topics "
    "alter {topic} --config cleanup.policy=compact{agents}`",
)
NO_COMPACTOR = Text(
    "no compactor",
    "No compactor is running: nothing is merged, deduped or deleted.",
    "start one with `{compactor}`; {now} runs one until the topic is compacted",
)
WRITE_STALL = Text(
    "write stall",
    "{files:,} L0 files are live, more than l0.stall.files ({limit:,}): the compactors are behind with moving L0 "
    "files to L1, so agents delay the answers to producers.",
    "start more compactors with `{compactor}`",
)

# ---- jobs
RUNNING = Text("running", "is being merged: {job}.")
WAITING_FOR_MEMORY = Text(
    "waiting for memory",
    "is in job {job_id} ({kind}), which has waited{since} for memory that other merges of its compactor use: "
    "compactor.memory.bytes is {memory}.",
    "wait until the other merge ends, or raise compactor.memory.bytes of the compactors",
)
RESTING = Text(
    "resting",
    "is planned: a compactor gave job {job_id} ({kind}) back, and it rests for {rest} more: {error}.",
    f"none: a compactor tries it again by itself; {_SHOW_JOB} shows more",
)
WAITING_FOR_COMPACTOR = Text(
    "waiting for a compactor",
    "is planned: job {job_id} ({kind}) waits for a compactor{tried}.",
)
WAITING_AND_NONE_RUNS = WAITING_FOR_COMPACTOR._replace(remedy="start one with `{compactor}`")
FAILED = Text(
    "failed",
    "was in job {job_id} ({kind}), which failed{ago}: {error}.",
    f"none: the planner plans it again by itself; {_SHOW_JOB} shows more",
)

# ---- waiting
EMPTY = Text("empty", "holds no records.")
CLEAN = Text("clean", "is compacted through offset {cleaned_through}; there is nothing to do.")
ASKED_FOR = Text(
    "asked for",
    "was asked to be compacted up to offset {target}, and is cleaned through {cleaned_through}; {then}.",
)
IN_L0 = Text(
    "in L0",
    "has {count} from {first} on in L0 files, where nothing is deduped. L0 files go to L1 when there are "
    "{options.l0_files_min} and the oldest has waited {wait}, or when the oldest has waited {wait_max} "
    "(compaction.l0.wait.max.ms).",
    "wait, or {now}",
    brief=True,
)
IN_L0_AND_YOUNG = IN_L0._replace(remedy="wait; records that are too young (below) go to L1, but are not deduped yet")
TOO_YOUNG = Text(
    "too young",
    "keeps its last {count}, from offset {first} on, as they are: some of them are younger than "
    "min.compaction.lag.ms ({lag}).",
    "wait, or lower it: `siltstone topics alter {topic} --config min.compaction.lag.ms=0{agents}`",
    brief=True,
)
OPEN_TRANSACTION = Text(
    "open transaction",
    "has an open transaction from offset {first} on; no record at or above that offset is cleaned.",
    "find its producer: it must commit or abort, or its transaction.timeout.ms ends the transaction",
    brief=True,
)
DUE = Text("due", "is due: {due}. The planner takes it within seconds.", brief=True)
BELOW_RATIO = Text(
    "below the dirty ratio",
    "is {ratio:.2f} dirty ({dirty}), not above min.cleanable.dirty.ratio ({ratio_min:.2f}): superseded records stay "
    "until more is written, or until the daily merge.",
    "lower min.cleanable.dirty.ratio of {topic}, or {now}",
    brief=True,
)
FORCED_LATELY = Text(
    "forced lately",
    "is {ratio:.2f} dirty, and had a pass of its own less than {interval} ago (forced.interval.ms): the next one may "
    "begin in {left}.",
    "wait, or {now}, which does not wait for it",
    brief=True,
)
FEW_DIRTY_BYTES = Text(
    "few dirty bytes",
    "is {ratio:.2f} dirty, but has only {dirty} of dirty records. A pass of its own needs {dirty_min} "
    "(forced.dirty.bytes.min), or {wait} since the last pass (forced.dirty.wait.ms), which is in {left}. Merges of "
    "whole runs dedupe it too.",
    "wait, or {now}",
    brief=True,
)
IN_THE_WAY = Text(
    "in the way",
    "is {ratio:.2f} dirty, but a pass from the log start cannot reach the dirty records: an L0 file, or an extent "
    "that a running merge holds, lies before them.",
    "wait, or {now}",
    brief=True,
)
MAX_LAG = Text(
    "max lag",
    "is compacted in {left} at the latest, when its oldest dirty records are {lag} old (max.compaction.lag.ms).",
)
BUFFER_OVERFLOW = Text(
    "buffer overflow",
    "had more keys than the dedupe buffer holds, so its last pass kept one record per key for each filling of the "
    "buffer. The next pass is deep: it reads the partition {reads} times and leaves one record per key.",
    "wait, or {now}",
)
TOMBSTONES = Text(
    "tombstones",
    "still holds tombstones below offset {cleaned_through}. A tombstone stays for delete.retention.ms ({wait}) after "
    "the pass that first kept it, then goes with the next pass from the log start. The values that it deleted are "
    "gone already.",
    "wait, or lower delete.retention.ms of {topic} if none of its readers is ever away that long",
)

# ---- due, and not planned. `subject` begins with the planner's words

_PASSES = "of which at most {options.forced_jobs_max} may be passes over one partition"
_MORE = "wait. If jobs wait for a compactor (`siltstone jobs list{places}`), start more with `{compactor}`; else raise "
BLOCKED: Mapping[Blocker, Text] = {
    Blocker.JOBS: Text(
        "no place for jobs",
        f"{{subject}}: compactor.jobs.max is {{options.jobs_max}}, {_PASSES}.",
        f"{_MORE}compactor.jobs.max of the compactors",
        brief=True,
    ),
    Blocker.HEAVY_JOBS: Text(
        "no place for heavy jobs",
        f"{{subject}}: compactor.heavy.jobs.max is {{options.heavy_jobs_max}}, {_PASSES}.",
        "`siltstone jobs list{places}` shows what the jobs on Spark do",
        brief=True,
    ),
    Blocker.L0_JOBS: Text(
        "no place for L0 jobs",
        "{subject}: compactor.l0.jobs.max is {options.l0_jobs_max}.",
        f"{_MORE}compactor.l0.jobs.max of the compactors",
        brief=True,
    ),
    Blocker.FORCED_PASSES: Text(
        "held by passes", "{subject}.", "wait until they end: `siltstone jobs list --state running{places}`", brief=True
    ),
    Blocker.MERGE: Text(
        "held by a merge",
        "{subject}.",
        "wait until the merge ends: `siltstone jobs list --state running{places}` shows it",
        brief=True,
    ),
    Blocker.RESERVED: Text(
        "kept free",
        "{subject}: its files are kept free for a merge of whole runs, which waits for passes that hold some of them.",
        "wait",
        brief=True,
    ),
    Blocker.TROUBLE: Text(
        "held by trouble", "{subject}.", f"{_FAILED_JOBS} shows why, and {_FSCK} what is damaged", brief=True
    ),
    Blocker.SIZE: Text(
        "too large",
        "{subject}: compaction.merge.bytes.max is {limit}; superseded records and tombstones stay.",
        f"raise compaction.merge.bytes.max of the compactors, or give them Spark: {HOW_TO_ADD_SPARK}",
        brief=True,
    ),
    Blocker.CONFIG: Text(
        "bad config",
        "{subject}.",
        "set the config again: `siltstone topics alter {topic} --config NAME=VALUE{agents}`",
        brief=True,
    ),
}

# ---- records that merges cannot read
OBJECT_LOST = Text(
    "object lost",
    "has {one.offsets} in {one.file_text} ({one.key}): {said}{error}. It {retry}; until a merge can read it, {stops}.",
    f"{_FSCK} shows what is missing (FILE-1); put the object back under its key, byte for byte (from an older "
    "version in the bucket, or a copy). If it is gone for good, so are its records: delete those below offset "
    "{first_kept} (DeleteRecords, as `kafka-delete-records.sh` sends){others}",
)
FILE_IN_TROUBLE = Text(
    "file in trouble",
    OBJECT_LOST.says,
    f"look at {_FAILED_JOBS}, and check the object with {_FSCK}",
)
MORE_IN_TROUBLE = Text("file in trouble", "has records in {left} that merges fail to read, after these.")
FLAGGED = Text(
    "flagged",
    "has {count} with bytes that are no sound batches; merges copy them as they are and dedupe nothing in them. The "
    "first: offsets {one.base_offset} to {one.last_offset} of file {one.file_id}: {one.flagged_reason}.",
    "look at it with `siltstone file inspect {one.key} --batches{places}`, and write again the records that you need",
)
UNREADABLE = Text(
    "unreadable batches",
    "has {count} whose records cannot be read, the first at offset {first}: {error}. Those below the log start "
    "({log_start}) are deleted since. Known since job {job_id} ({kind}){ago}. Merges leave "
    "them as they are; consumers get what the producer sent, and fail or skip there as they would with Kafka. They "
    "may hide an old value of any key, so tombstones from the first one on stay.",
    "look with `siltstone file inspect {key} --batches{places}`, and find the producer that writes them; a consumer "
    "that fails there can seek past them. To get rid of them, copy the other records to another topic",
)
