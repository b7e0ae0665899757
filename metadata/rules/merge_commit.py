"""The decisions of the commit of a merge, as pure functions: both metadata stores call them inside their transaction.

`decide_commit` gets the *present* state of the inputs, read under locks. It refuses a commit that no correct merge can
make, and decides which outputs are stored dead. The rules, per partition:

- an input that is dead although its last offset is at or above the log start was replaced by another merge: refused;
- an input that lies below the log start, or whose partition is gone, was deleted: the merge may have skipped it, and
  its output is *trimmed* (stored dead);
- the merge has read every live input, and nothing but inputs;
- the outputs hold exactly the offsets that were read, each of them once. So an output cannot reach over a gap in its
  inputs, where it would hide other records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, NamedTuple

from metadata.contract.jobs import CleanedPartition, CommitMerge, MergeRefusedError
from metadata.rules.object_keys import key_hour, key_too_old

FORCED_KIND = "forced"
"""The kind of the planner's jobs that hold one partition alone."""
DEDUPED_TOLD_MAX = 1_000
"""Deduped partitions in one MERGED change; if there are more, the change names none of them."""

Range = tuple[int, int]
"""(base offset, last offset), both inclusive."""


class InputRange(NamedTuple):
    """Offsets of one partition in one input: a row of an L0 file's index, or an L1+ extent."""

    partition_id: int
    base_offset: int
    last_offset: int
    is_live: bool
    """For L0 the state of the file, above L0 the state of the extent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeDecision:
    """The decisions of a commit that its request does not contain."""

    trimmed: Sequence[Sequence[bool]]
    """Per output file and extent: whether the extent is stored dead."""

    def live_extents(self, output: int) -> int:
        """How many extents of the output file with this number are stored live."""
        return sum(not is_trimmed for is_trimmed in self.trimmed[output])

    @property
    def trimmed_extents(self) -> int:
        return sum(map(sum, self.trimmed))


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedState:
    """The cleaning state of a partition, as `log_starts` holds it."""

    cleaned_through_offset: int = 0
    last_cleaned_ms: int | None = None
    passes_needed: int = 1
    requested_through_offset: int | None = None
    last_pass_took_ms: int | None = None


def decide_commit(commit: CommitMerge, inputs: Iterable[InputRange], log_starts: Mapping[int, int]) -> MergeDecision:
    """`inputs`: all inputs of the job, dead ones too. `log_starts`: the log starts of the existing partitions, by id.

    Raises MergeRefusedError.
    """
    held: dict[int, list[Range]] = defaultdict(list)
    alive: dict[int, list[Range]] = defaultdict(list)
    for partition_id, base_offset, last_offset, is_live in inputs:
        held[partition_id].append((base_offset, last_offset))
        if is_deleted(partition_id, last_offset, log_starts):
            continue
        if not is_live:
            raise MergeRefusedError(
                f"input [{base_offset}, {last_offset}] of partition {partition_id} was replaced by another merge"
            )
        alive[partition_id].append((base_offset, last_offset))
    written: dict[int, list[Range]] = defaultdict(list)
    for extent in chain.from_iterable(output.extents for output in commit.outputs):
        if not 0 <= extent.base_offset <= extent.last_offset:
            raise MergeRefusedError(f"an output covers [{extent.base_offset}, {extent.last_offset}], an invalid range")
        written[extent.partition_id].append((extent.base_offset, extent.last_offset))
    # All three: a partition may be missing in any of them, and each absence is a different fault.
    for partition_id in {*held, *written, *commit.covered}:
        read = joined(partition_id, commit.covered.get(partition_id, ()))
        if not _within(joined(partition_id, alive[partition_id]), read):
            raise MergeRefusedError(f"the merge did not read every live input of partition {partition_id}")
        if not _within(read, joined(partition_id, held[partition_id])):
            raise MergeRefusedError(f"the merge read offsets of partition {partition_id} that no input holds")
        if joined(partition_id, written[partition_id]) != read:
            raise MergeRefusedError(
                f"the outputs hold {_shown(joined(partition_id, written[partition_id]))} of partition {partition_id},"
                f" the inputs {_shown(read)}"
            )
    return MergeDecision(
        trimmed=[
            [is_deleted(extent.partition_id, extent.last_offset, log_starts) for extent in output.extents]
            for output in commit.outputs
        ]
    )


def is_deleted(partition_id: int, last_offset: int, log_starts: Mapping[int, int]) -> bool:
    """Whether retention, DeleteRecords or the deletion of the topic deleted all of an extent that ends at
    `last_offset`."""
    # A partition without a log start is gone.
    return last_offset < log_starts.get(partition_id, last_offset + 1)


def joined(partition_id: int, ranges: Iterable[Range]) -> list[Range]:
    """The ranges in order, with touching ranges joined. Raises MergeRefusedError when two overlap."""
    whole: list[Range] = []
    for base_offset, last_offset in sorted(ranges):
        if whole and base_offset <= whole[-1][1]:
            raise MergeRefusedError(f"two ranges of partition {partition_id} hold offset {base_offset}")
        if whole and base_offset == whole[-1][1] + 1:
            whole[-1] = (whole[-1][0], last_offset)
        else:
            whole.append((base_offset, last_offset))
    return whole


def merged_detail(commit: CommitMerge, l0_file_ids: Sequence[int]) -> Mapping[str, Any] | None:
    """The detail of the MERGED change for the agents; None when it would be empty.

    Agents must drop the replaced L0 files from their index. The deduped partitions only help: the extents that agents
    looked up before stay readable for the grace period, but with this news they serve the compacted records at once.
    So if there are too many deduped partitions for one change, they are left out.
    """
    deduped = sorted(each.partition_id for each in commit.cleaned)
    # Every agent reads every change: it must stay small.
    if len(deduped) > DEDUPED_TOLD_MAX:
        deduped = []
    if not l0_file_ids and not deduped:
        return None
    return {"job_id": commit.job_id, "l0_files": list(l0_file_ids), "deduped": deduped}


def check_output_keys(keys: Sequence[str], *, known: Iterable[str], forgotten_key_hour: int) -> None:
    """Raises MergeRefusedError for a key that was used or aborted before, or is as old as forgotten rows."""
    if len(set(keys)) != len(keys):
        raise MergeRefusedError("two outputs have the same key")
    used = sorted(set(keys) & set(known))
    if used:
        raise MergeRefusedError(f"output key {used[0]!r} was aborted or used before")
    for key in keys:
        hour = key_hour(key)
        if hour is not None and hour <= forgotten_key_hour:
            raise MergeRefusedError(key_too_old(key))


def cleaned(before: CleanedState, pass_: CleanedPartition, *, now_ms: int, took_ms: int | None = None) -> CleanedState:
    """The cleaning state after a dedupe pass. Only a pass from the log start counts as a cleaning and moves
    `cleaned_through_offset`, which never goes back.

    A partial pass sees only some of the keys, so it may raise `passes_needed` but not lower it. `took_ms`: how long the
    pass took, if it was over this partition alone; a merge of whole runs tells nothing about one partition.
    """
    took_ms = before.last_pass_took_ms if took_ms is None else took_ms
    if pass_.cleaned_through_offset is None:
        return CleanedState(
            cleaned_through_offset=before.cleaned_through_offset,
            last_cleaned_ms=before.last_cleaned_ms,
            passes_needed=max(before.passes_needed, pass_.passes_needed),
            requested_through_offset=before.requested_through_offset,
            last_pass_took_ms=took_ms,
        )
    through = max(before.cleaned_through_offset, pass_.cleaned_through_offset)
    requested = before.requested_through_offset
    return CleanedState(
        cleaned_through_offset=through,
        last_cleaned_ms=now_ms,
        passes_needed=pass_.passes_needed,
        # Compare with this pass and not with `through`: the partition may have been cleaned through the requested
        # offset before, and the request wants another pass that reaches it.
        requested_through_offset=None if requested is None or requested <= pass_.cleaned_through_offset else requested,
        last_pass_took_ms=took_ms,
    )


def pass_took_ms(kind: str, started_ms: int | None, now_ms: int) -> int | None:
    """How long a pass over one partition took, by the kind of its job; None for merges of whole runs."""
    if kind != FORCED_KIND or started_ms is None:
        return None
    return max(now_ms - started_ms, 0)  # the store's clock may have gone back


def _within(inner: Sequence[Range], outer: Sequence[Range]) -> bool:
    """Whether every range of `inner` lies in a range of `outer`. Both are joined and in order."""
    outer_left = iter(outer)
    base_offset, last_offset = 0, -1
    for wanted_base, wanted_last in inner:
        while last_offset < wanted_last:
            found = next(outer_left, None)
            if found is None:
                return False
            base_offset, last_offset = found
        if wanted_base < base_offset:
            return False
    return True


def _shown(ranges: Sequence[Range]) -> str:
    """The ranges as a short text for a message: the whole span and the first three gaps."""
    gaps = [f"({before[1] + 1} to {after[0] - 1} missing)" for before, after in pairwise(ranges)]
    if not ranges:
        return "nothing"
    return " ".join([f"[{ranges[0][0]}, {ranges[-1][1]}]", *gaps[:3]])
