"""The reasons against adopting a database after a restore, and the objects that its janitor would delete."""

from __future__ import annotations

import itertools

import pytest

from compactor.intervals import Intervals
from metadata.contract.l0_commit import CommitL0, L0Batch
from metadata.contract.leases import AgentAddress
from metadata.memory.store import MemoryMetadata
from metadata.rules.invariants.all_levels import Violation
from runtime.ids import SystemIds
from runtime.settings.table import Settings
from siltstone.ops.adoption import allowances, obstacles, unknown_objects
from siltstone.ops.fsck import INVARIANTS, Finding
from storage.keys import file_key
from storage.memory import MemoryStore
from wire.crc import crc32c

HOUR_MS = 3_600_000


def finding(id_: str, violations: int) -> Finding:
    broken = [Violation(id=id_, message=str(number)) for number in range(violations)]
    return Finding(id=id_, rule="", checked=1, unit="files", violations=broken)


@pytest.mark.parametrize("id_", sorted(INVARIANTS))
def test_anything_broken_stands_against_it_but_what_lies_there_too_long(id_: str) -> None:
    findings = [finding(each, 2 if each == id_ else 0) for each in INVARIANTS]
    assert obstacles(findings) == ([] if id_ == "FILE-2" else [id_])


async def test_objects_that_no_row_names_are_found_oldest_first_whatever_their_age() -> None:
    # given an object with a row, one without a row, one that was aborted, and one that is not ours
    store, metadata, ids, seqs = MemoryStore(), MemoryMetadata(), SystemIds(), itertools.count(1)
    topic = await metadata.agents.create_topic("t", partitions=1, configs={})
    lease = await metadata.agents.register_agent(AgentAddress(host="h", port=1))

    async def put(level: int) -> str:
        now_ms = 1_700_000_000_000 + next(seqs)
        uuid = ids.uuid7(now_ms)
        key = file_key(level=level, writer_id=lease.writer_id, epoch=0, file_uuid=uuid, created_ms=now_ms)
        await store.put_if_absent(key, b"body", crc32c=crc32c(b"body"))
        return key

    committed, unknown, aborted, other = await put(0), await put(2), await put(1), await put(0)
    batches = [L0Batch(topic.partition_ids[0], 0, 4, 1, 1, 1)]
    await metadata.agents.commit_l0(
        CommitL0(lease=lease, seq=1, key=committed, size_bytes=4, crc32c=crc32c(b"body"), batches=batches)
    )
    assert await metadata.deletion.abort_file(aborted)
    await store.put_if_absent("l0/notes.txt", b"body", crc32c=crc32c(b"body"))
    # then exactly those of ours are found that no row names
    found = await unknown_objects(metadata, store)
    assert {stat.key for stat in found.objects} == {unknown, other}
    assert [stat.last_modified_ms for stat in found.objects] == sorted(s.last_modified_ms for s in found.objects)
    assert (found.listed, found.size_bytes) == (5, 8)


def test_what_may_lie_there_follows_from_the_settings() -> None:
    usual = allowances(Settings())
    assert (usual.grace_ms, usual.late_ms, usual.orphan_ms) == (900_000, HOUR_MS, 4 * HOUR_MS)
    slow = allowances(Settings(gc_grace_ms=5 * HOUR_MS, orphan_age_ms=6 * HOUR_MS))
    assert (slow.grace_ms, slow.late_ms, slow.orphan_ms) == (5 * HOUR_MS, HOUR_MS, 9 * HOUR_MS)
    assert usual.late_ms >= 2 * Intervals().janitor_interval_ms
    assert usual.listed_late_ms >= 2 * Intervals().orphan_check_interval_ms
