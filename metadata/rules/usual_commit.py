"""The arguments by which `commit_l0_v4` commits a usual L0 file, and the answers that follow from its index. Pure.

A file is usual if every batch of it can be stored with the others: its partitions ascend, the batches of a partition
touch each other, none is masked or impossible, and the batches of a producer on a partition (a *run*) follow each other
in one epoch and one transaction. The function refuses the file as unusual if the database says otherwise. Any other
file goes to `commit_l0_v5`, which judges batch by batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from metadata.contract.l0_commit import (
    NO_PRODUCER,
    NOT_TRANSACTIONAL,
    PRODUCER_BATCHES_KEPT,
    BatchResult,
    CommitL0,
    L0Batch,
)
from metadata.rules.producer_state import SEQUENCES, is_possible, last_sequence

_PLACE = struct.Struct(">iiqq")
"""The end of a row of the packed index: position, length, least and greatest timestamp."""


class UsualCommit(NamedTuple):
    """The arguments of `commit_l0_v4` that depend on the batches, in its order."""

    partition_ids: list[int]
    records: list[int]
    places: bytes
    max_timestamp_ms: int
    run_partitions: list[int]
    """Per run: the number of its partition in `partition_ids`, from 1."""
    run_offsets: list[int]
    """Per run: the records of its partition that come before it in the file."""
    run_records: list[int]
    producer_ids: list[int]
    producer_epochs: list[int]
    sequences: list[int]
    txn_seqs: list[int]
    """Per run; empty when none is transactional."""
    batch_runs: list[int]
    """Per batch that its producer's state keeps: the number of its run, from 1. Empty when each run is one batch."""
    batch_offsets: list[int]
    batch_records: list[int]
    batch_sequences: list[int]
    append_times_ms: list[int]
    """Of the same batches; empty when none has one."""


class _Run(NamedTuple):
    partition: int
    batches: list[tuple[int, L0Batch]]
    """With the records of the partition that come before each."""


def usual_commit(request: CommitL0) -> UsualCommit | None:
    """None: the file is not usual."""
    partition_ids: list[int] = []
    records: list[int] = []
    places: list[bytes] = []
    max_timestamp_ms = -1
    runs: list[_Run] = []
    for partition_id, grouped in groupby(request.batches, attrgetter("partition_id")):
        batches = list(grouped)
        if (partition_ids and partition_id <= partition_ids[-1]) or not _is_block(batches):
            return None
        partition_ids.append(partition_id)
        found = _runs(len(partition_ids), batches)
        if found is None:
            return None
        runs += found
        records.append(sum(batch.record_count for batch in batches))
        latest_ms = max(batch.max_timestamp_ms for batch in batches)
        length = batches[-1].position + batches[-1].length - batches[0].position
        # A block that is too long for its field belongs to no file of ours; the other function refuses it.
        if length >= 2**31:
            return None
        earliest_ms = min(batch.min_timestamp_ms for batch in batches)
        places.append(_PLACE.pack(batches[0].position, length, earliest_ms, latest_ms))
        max_timestamp_ms = latest_ms if len(places) == 1 else max(max_timestamp_ms, latest_ms)
    if not partition_ids:
        return None
    return UsualCommit(partition_ids, records, b"".join(places), max_timestamp_ms, *_run_columns(runs))


def _is_block(batches: Sequence[L0Batch]) -> bool:
    """Whether each batch can be stored and begins where the one before it ends."""
    end = batches[0].position
    for batch in batches:
        if batch.masked_error or batch.position != end or not is_possible(batch):
            return False
        end += batch.length
    return True


def _runs(partition: int, batches: Sequence[L0Batch]) -> list[_Run] | None:
    """The runs of one partition, in the order of their first batches. None: a producer does not go on in it."""
    runs: dict[int, _Run] = {}
    offset = 0
    for batch in batches:
        if batch.producer_id != NO_PRODUCER:
            run = runs.get(batch.producer_id)
            if run is None:
                runs[batch.producer_id] = _Run(partition, [(offset, batch)])
            else:
                last = run.batches[-1][1]
                follows = (last_sequence(last.base_sequence, last.record_count) + 1) % SEQUENCES
                is_same = batch.producer_epoch == last.producer_epoch and batch.txn_seq == last.txn_seq
                if not is_same or batch.base_sequence != follows:
                    return None
                run.batches.append((offset, batch))
        offset += batch.record_count
    return list(runs.values())


def _run_columns(runs: Sequence[_Run]) -> Iterator[list[int]]:
    firsts = [run.batches[0] for run in runs]
    yield [run.partition for run in runs]
    yield [offset for offset, _ in firsts]
    yield [sum(batch.record_count for _, batch in run.batches) for run in runs]
    yield [batch.producer_id for _, batch in firsts]
    yield [batch.producer_epoch for _, batch in firsts]
    yield [batch.base_sequence for _, batch in firsts]
    txn_seqs = [batch.txn_seq for _, batch in firsts]
    yield txn_seqs if any(txn_seq != NOT_TRANSACTIONAL for txn_seq in txn_seqs) else []
    kept = [(number, *each) for number, run in enumerate(runs, 1) for each in run.batches[-PRODUCER_BATCHES_KEPT:]]
    chained = kept if any(len(run.batches) > 1 for run in runs) else []
    yield [number for number, _, _ in chained]
    yield [offset for _, offset, _ in chained]
    yield [batch.record_count for _, _, batch in chained]
    yield [batch.base_sequence for _, _, batch in chained]
    append_times_ms = [batch.log_append_time_ms for _, _, batch in kept]
    yield append_times_ms if any(time_ms != -1 for time_ms in append_times_ms) else []


def usual_results(batches: Sequence[L0Batch], bases: Sequence[int]) -> list[BatchResult] | None:
    """The answers to a usual file from the base offset of each of its partitions. None: there are not as many bases as
    partitions."""
    ends = iter(bases)
    results: list[BatchResult] = []
    partitions = 0
    partition_id: int | None = None
    offset = 0
    for batch in batches:
        if batch.partition_id != partition_id:
            partition_id = batch.partition_id
            partitions += 1
            base = next(ends, None)
            if base is None:
                return None
            offset = base
        results.append(BatchResult(0, False, offset, batch.log_append_time_ms))
        offset += batch.record_count
    return results if partitions == len(bases) else None
