"""More keys than the dedupe buffer holds, at its real size: the remaining records, and the memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.loads.merge_inputs import (
    BATCH_RECORDS,
    NOW_MS,
    PARTITION_ID,
    MergeInputFiles,
    numbered_keys,
    stamped_batches,
)
from compactor.cleaning.bounds import DEDUPE_KEYS_MAX
from compactor.planning.spec import MIB
from metadata.contract.jobs import CommitMerge
from metadata.contract.l0_commit import CommitL0, L0Batch
from metadata.contract.leases import AgentAddress
from metadata.contract.topics import Topic
from metadata.urls import open_metadata
from runtime.ids import SystemIds
from siltstone.kafka.client import connected
from storage.format.file_format import ExtentSource, build_file
from storage.keys import file_key
from storage.local import LocalStore
from tests.fixtures.compactors import CompactorProcesses
from tests.fixtures.dedupe_process import Merged, merge_in_a_process, peak_bytes
from tests.fixtures.faults import Processes, in_thread
from tests.fixtures.idempotent_load import check_fsck
from tests.fixtures.waiting import wait_until
from wire.batch import BATCH_HEADER_BYTES, iter_headers
from wire.kernels.batches import read_batches
from wire.kernels.scan import scan_records

KEYS = 4_000_000
RECORDS = 4_800_000
FILES = 8
DEDUPE_MEMORY_BYTES = 600_000_000
VALUES = np.frombuffer(b"12345678", dtype=np.uint8).reshape(1, 8)

Offsets = NDArray[np.int64]


def some_keys() -> Offsets:
    """Four million keys, each once in random order; then repeated keys that fill up the records."""
    chance = np.random.default_rng(11)
    return np.concatenate((chance.permutation(KEYS), chance.integers(0, KEYS, RECORDS - KEYS)))


def last_of_each(keys: Offsets) -> Offsets:
    """The rows of the last record of every key, in order."""
    _, from_the_end = np.unique(keys[::-1], return_index=True)
    return np.sort(len(keys) - 1 - from_the_end)


async def inputs_of(keys: Offsets, store: LocalStore) -> MergeInputFiles[LocalStore]:
    inputs = MergeInputFiles(store)
    per_file = len(keys) // FILES
    assert per_file % BATCH_RECORDS == 0
    for first in range(0, len(keys), per_file):
        names = numbered_keys(keys[first : first + per_file])
        await inputs.add_file(stamped_batches(names, VALUES, base_offset=first))
    return inputs


async def offsets_left(commit: CommitMerge, store: LocalStore) -> Offsets:
    """The offsets of all records in the outputs of one partition, in order."""
    found: list[Offsets] = []
    for output in commit.outputs:
        for extent in output.extents:
            data = await store.get_range(output.key, extent.position, extent.length)
            table = read_batches(data)
            starts, ends = table.positions + BATCH_HEADER_BYTES, table.positions + table.sizes
            columns = scan_records(np.frombuffer(data, dtype=np.uint8), starts, ends, table.record_counts)
            found.append(np.repeat(table.base_offsets, table.record_counts) + columns.offset_deltas)
    return np.concatenate(found)


def told(merged: Merged, what: str) -> None:
    records_in, records_out = (merged.commit.summary[name] for name in ("records_in", "records_out"))
    print(f"{what}: peak {merged.peak_bytes / 1e6:.0f} MB, {records_out:,} of {records_in:,} records")


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_four_million_keys_leave_one_record_a_key_and_filling_and_a_deep_pass_one_a_key(tmp_path: Path) -> None:
    # given a partition of more keys than the buffer holds at once, in eight files
    store = LocalStore(tmp_path / "objects")
    await store.open()
    keys = some_keys()
    inputs = await inputs_of(keys, store)
    # when it is deduped
    merged = merge_in_a_process(inputs.claim(), tmp_path / "objects", tmp_path)
    told(merged, "dedupe")
    # then each filling of 3,273,603 keys has left one record per key
    fillings = keys[:DEDUPE_KEYS_MAX], keys[DEDUPE_KEYS_MAX:]  # the first four million records have four million keys
    expected = np.concatenate((last_of_each(fillings[0]), DEDUPE_KEYS_MAX + last_of_each(fillings[1])))
    assert len(expected) > KEYS
    assert np.array_equal(await offsets_left(merged.commit, store), expected)
    [cleaned] = merged.commit.cleaned
    assert (cleaned.partition_id, cleaned.passes_needed) == (PARTITION_ID, 2)
    assert cleaned.cleaned_through_offset == DEDUPE_KEYS_MAX
    assert (merged.commit.summary["clears"], merged.commit.summary["passes"]) == (1, 2)
    assert merged.peak_bytes < DEDUPE_MEMORY_BYTES

    # when that is deduped deep, as it is due
    inputs.adopt(merged.commit)
    deep = merge_in_a_process(inputs.claim(passes=cleaned.passes_needed), tmp_path / "objects", tmp_path)
    told(deep, "deep dedupe")
    # then one record per key remains, the last one
    assert np.array_equal(await offsets_left(deep.commit, store), last_of_each(keys))
    assert (deep.commit.summary["records_out"], deep.commit.summary["clears"]) == (KEYS, 0)
    [cleaned] = deep.commit.cleaned
    assert (cleaned.cleaned_through_offset, cleaned.passes_needed) == (RECORDS, 2)
    assert deep.peak_bytes < DEDUPE_MEMORY_BYTES
    await store.close()


COMPACTOR_MEMORY_BYTES = 1 << 30
L0_FILE_BYTES = 8 * MIB
REAL_SIZES = {
    "dedupe_keys_max": DEDUPE_KEYS_MAX,
    "l1_runs_min": 32,
    "output_bytes": 1 << 30,
    "mostly_dead_bytes_min": 1 << 40,
    "forced_dirty_bytes_min": 1 << 40,
    "forced_dirty_wait_ms": 3_600_000,
    "job_limit_base_ms": 300_000,
}
"""Production values for the options that tests scale down. Nothing is forced unless asked for."""


async def topic_of(bootstrap: str, metadata_url: str, name: str, policy: str) -> Topic:
    async with connected(bootstrap) as client:
        await client.create_topic(name, partitions=1, configs={"cleanup.policy": policy})
    metadata = open_metadata(metadata_url)
    await metadata.open()
    [topic] = [each for each in await metadata.agents.list_topics() if each.name == name]
    await metadata.close()
    return topic


async def write_l0(metadata_url: str, folder: Path, topic: Topic, batches: Iterator[bytes]) -> int:
    """Write L0 files of 8 MiB and more, as an agent leaves them. Returns the number of bytes."""
    metadata, store, ids = open_metadata(metadata_url), LocalStore(folder), SystemIds()
    await metadata.open()
    lease = await metadata.agents.register_agent(AgentAddress(host="writer", port=1))
    [partition_id] = topic.partition_ids
    total = seq = 0
    while chunks := list(_about(L0_FILE_BYTES, batches)):
        joined = memoryview(b"".join(chunks))
        rows = [
            L0Batch(partition_id, at, header.size_bytes, header.records_count, NOW_MS, header.max_timestamp_ms)
            for at, header in iter_headers(joined)
        ]
        extent = ExtentSource(topic.topic_id, 0, chunks, sum(row.record_count for row in rows), NOW_MS, NOW_MS)
        file = build_file([extent], level=0, created_ms=NOW_MS)
        key = file_key(
            level=0, writer_id=lease.writer_id, epoch=lease.epoch, file_uuid=ids.uuid7(NOW_MS), created_ms=NOW_MS
        )
        await store.put_if_absent(key, file.body, crc32c=file.crc32c)
        seq += 1
        size = len(file.body)
        await metadata.agents.commit_l0(
            CommitL0(lease=lease, seq=seq, key=key, size_bytes=size, crc32c=file.crc32c, batches=rows)
        )
        total += size
    await store.close()
    await metadata.close()
    return total


def _about(size_bytes: int, batches: Iterator[bytes]) -> Iterator[bytes]:
    while size_bytes > 0 and (data := next(batches, None)) is not None:
        size_bytes -= len(data)
        yield data


async def ask_to_compact(metadata_url: str, topic: Topic) -> None:
    metadata = open_metadata(metadata_url)
    await metadata.open()
    await metadata.operators.request_compaction(topic.topic_id)
    await metadata.close()


def overlap(processes: Processes) -> bool:
    """Whether L0 files were merged while a partition was deduped."""
    return processes.postgres.value(
        """SELECT count(*) > 0 FROM merge_jobs a JOIN merge_jobs b
        ON a.kind = 'forced' AND b.kind = 'level' AND a.started_ms < b.finished_ms AND b.started_ms < a.finished_ms"""
    )


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_compactor_that_levels_half_a_gigabyte_while_it_dedupes_stays_below_a_gibibyte(
    processes: Processes, compactors: CompactorProcesses
) -> None:
    # given 7 M records of 4 M keys in L1, and 512 MiB of another topic in L0
    processes.start(1, gc_grace_ms=2_000)
    url, folder = processes.postgres.url, processes.store_folder
    users = in_thread(topic_of(processes.bootstrap, url, "users", "compact"))
    events = in_thread(topic_of(processes.bootstrap, url, "events", "delete"))
    values = np.random.default_rng(3).integers(32, 127, (97, 60), dtype=np.uint8)
    keys = np.concatenate((some_keys(), np.arange(2_200_000)))
    in_thread(write_l0(url, folder, users, stamped_batches(numbered_keys(keys), values)))
    [compactor] = compactors.start(1, **REAL_SIZES)
    compactors.until_all_is_leveled(200)
    leveling_peak = peak_bytes(compactor.pid)
    assert compactor.stop() == 0
    names = numbered_keys(np.arange(6_500_000))
    assert in_thread(write_l0(url, folder, events, stamped_batches(names, values))) > 512 * MIB
    in_thread(ask_to_compact(url, users))
    # when a compactor starts
    compactor.start()
    query = processes.postgres.value
    wait_until(lambda: query("SELECT count(*) FROM merge_jobs WHERE kind = 'forced' AND state = 'done'") > 0, 200)
    compactors.until_all_is_leveled(200)
    # then it does both at once, and takes no more memory than its limit
    peak = peak_bytes(compactor.pid)
    print(f"leveling: peak {leveling_peak / MIB:.0f} MiB, beside a dedupe {peak / MIB:.0f} MiB")
    assert overlap(processes)
    assert max(peak, leveling_peak) < COMPACTOR_MEMORY_BYTES
    check_fsck(metadata_url=url, store_url=processes.store_url)
