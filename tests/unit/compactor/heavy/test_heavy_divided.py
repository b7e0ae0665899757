"""Heavy merges whose units end inside extents: the same result as the embedded engine's, also where extents are
damaged.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from compactor.heavy.combine import PartsDamagedError, combine
from compactor.heavy.engine import UnitsMissingError
from compactor.heavy.manifest import ManifestMismatchError, UnitResult
from compactor.heavy.plan.units import HeavyPlan, UnitKind
from compactor.heavy.stored import plan_key, read_result, stored_plans
from metadata.contract.jobs import ClaimedJob, CommitMerge, OutputExtent
from metadata.contract.leases import WriterLease
from metadata.contract.leveled import LeveledExtent
from metadata.contract.topics import Topic
from tests.fixtures.heavy_merges import Driver, HeavySystem, InProcessSubmitter, latest
from wire.batch import iter_headers
from wire.crc import crc32c

JOB_LEASE_MS = 10_000
BATCHES = 12


@pytest.fixture
async def system(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HeavySystem]:
    # Every batch is a block, so that extents of some hundred bytes can be divided.
    monkeypatch.setattr("storage.format.file_writer.BLOCK_BYTES", 1)
    system = HeavySystem()
    await system.begin()
    yield system


async def in_one_extent(system: HeavySystem, topic: Topic) -> None:
    """Merge the topic, so that each of its partitions has one extent."""
    lease = await system.metadata.compactors.register_compactor("first")
    await system.merge_all(topic)
    await system.metadata.compactors.commit_merge(await system.embedded(lease).run(await system.claim(lease)))


async def topics(system: HeavySystem) -> tuple[Topic, Topic]:
    """A plain topic of two partitions and a compacted one, whose partitions have an extent each."""
    plain = await system.topic("plain", partitions=2)
    keyed = await system.topic("keyed", cleanup_policy="compact")
    for number in range(BATCHES):
        await system.write(plain, [[(None, b"%d:%d:%d" % (p, number, n)) for n in range(8)] for p in range(2)])
        await system.write(keyed, [[(b"k%d" % ((n * number) % 11), b"%d:%d" % (number, n)) for n in range(8)]])
    await in_one_extent(system, plain)
    await in_one_extent(system, keyed)
    return plain, keyed


async def plans(system: HeavySystem, job_id: int) -> Sequence[HeavyPlan]:
    return await stored_plans(system.store, job_id, cluster_id=system.cluster_id)


def figures(commit: CommitMerge) -> dict[str, Any]:
    names = ("records_in", "records_out", "bytes_in", "keys", "deduped_partitions", "flagged_extents")
    return {name: commit.summary[name] for name in names}


def flagged(commit: CommitMerge) -> list[OutputExtent]:
    """Without their places in their files."""
    return [
        replace(each, position=0) for file in commit.outputs for each in file.extents if each.flagged_reason is not None
    ]


@pytest.mark.parametrize("seed", range(4))
async def test_units_that_end_inside_extents_make_one_merge_as_the_embedded_engine_does(
    system: HeavySystem, seed: int
) -> None:
    r = random.Random(seed)
    plain, keyed = await topics(system)
    (compacted,) = keyed.partition_ids
    for number in range(2):  # and some extents of one batch
        await system.write(plain, [[(None, b"%d" % number)] for _ in range(2)])
        await system.write(keyed, [[(b"k%d" % number, b"late")]])
    job_id = await system.merge_all(plain, keyed, deduped=[compacted])
    lease = await system.metadata.compactors.register_compactor("a")
    claimed = await system.claim(lease)
    by_hand = await system.embedded(lease).run(claimed)
    sizes = {"unit_bytes": r.choice([1, 250, 500]), "keyed_unit_bytes": 500}
    submitter = system.submitter(chance=r, dies=0.3, twice=0.4)
    commit = await system.engine(lease, submitter, **sizes).run(claimed)
    await system.metadata.compactors.commit_merge(commit)
    (plan,) = await plans(system, job_id)
    # the large extents of all three partitions were divided, and the compacted one was sliced
    assert len(plan.divided) == 3
    assert plan.sliced == [compacted]
    assert max(unit.input_bytes for unit in plan.units) <= max(sizes["unit_bytes"], 400)
    assert {id_: list(ranges) for id_, ranges in commit.covered.items()} == by_hand.covered
    assert list(commit.cleaned) == list(by_hand.cleaned)
    assert figures(commit) == figures(by_hand)
    for partition_id in plain.partition_ids:
        assert await system.records(partition_id) == system.written[partition_id]
    assert await system.records(compacted) == latest(system.written[compacted])


async def test_a_compacted_partition_that_fits_a_task_is_not_divided(system: HeavySystem) -> None:
    _, keyed = await topics(system)
    (compacted,) = keyed.partition_ids
    job_id = await system.merge_all(keyed, deduped=[compacted])
    lease = await system.metadata.compactors.register_compactor("a")
    engine = system.engine(lease, system.submitter(), unit_bytes=100, keyed_unit_bytes=1 << 20)
    await system.metadata.compactors.commit_merge(await engine.run(await system.claim(lease)))
    (plan,) = await plans(system, job_id)
    assert (plan.divided, [unit.kind for unit in plan.units]) == ((), [UnitKind.MERGE])
    assert await system.records(compacted) == latest(system.written[compacted])


# ---- damage


@dataclass
class Damaged:
    """A claimed job over a topic of which one extent is damaged, and the commit of the embedded engine."""

    job_id: int
    claimed: ClaimedJob
    lease: WriterLease
    extent: LeveledExtent
    by_hand: CommitMerge


HEADER, BODY = 15, 75
"""Bytes of a batch: of its leader epoch, which the CRC-32C of the batch does not cover, and of its records."""
DAMAGES = [("plain", HEADER), ("plain", BODY), ("keyed", HEADER), ("keyed", BODY)]


async def damaged_job(system: HeavySystem, which: str, byte: int) -> Damaged:
    """One byte of the fifth batch is changed."""
    plain, keyed = await topics(system)
    (compacted,) = keyed.partition_ids
    (extent,) = await system.extents(compacted if which == "keyed" else plain.partition_ids[1])
    body = bytearray(await system.store.get(extent.key))
    starts = [start for start, _ in iter_headers(bytes(body[extent.position : extent.position + extent.length]))]
    body[extent.position + starts[4] + byte] ^= 0x40
    await system.store.delete_many([extent.key])
    await system.store.put_if_absent(extent.key, bytes(body), crc32c=crc32c(bytes(body)))
    job_id = await system.merge_all(plain, keyed, deduped=[compacted])
    lease = await system.metadata.compactors.register_compactor("a")
    claimed = await system.claim(lease)
    by_hand = await system.embedded(lease).run(claimed)
    return Damaged(job_id, claimed, lease, extent, by_hand)


SIZES = {"unit_bytes": 300, "keyed_unit_bytes": 500}


def check_same(commit: CommitMerge, job: Damaged) -> None:
    (kept,) = flagged(commit)
    assert [kept] == flagged(job.by_hand)
    assert (kept.base_offset, kept.last_offset, kept.length) == (
        job.extent.base_offset,
        job.extent.last_offset,
        job.extent.length,
    )
    assert {id_: list(ranges) for id_, ranges in commit.covered.items()} == job.by_hand.covered
    assert list(commit.cleaned) == list(job.by_hand.cleaned)
    assert figures(commit) == figures(job.by_hand)


@pytest.mark.parametrize(("which", "byte"), DAMAGES)
async def test_a_damaged_extent_is_kept_whole_by_a_second_plan(system: HeavySystem, which: str, byte: int) -> None:
    job = await damaged_job(system, which, byte)
    submitter = system.submitter()
    commit = await system.engine(job.lease, submitter, **SIZES).run(job.claimed)
    check_same(commit, job)
    assert len(submitter.tokens) == 2
    await system.metadata.compactors.commit_merge(commit)
    stored = await plans(system, job.job_id)
    assert sorted(len(plan.divided) for plan in stored) == [2, 3]
    for plan in stored:
        assert (job.extent.extent_id in plan.parts) == (len(plan.divided) == 3)


class DiesAtSecondPlan(InProcessSubmitter):
    """The drivers of any other plan than the first do nothing."""

    async def submit(self, plan_url: str, *, job_id: int, token: str, limit_ms: int) -> Driver:
        if len({each.split("-")[1] for each in (*self.tokens, token)}) > 1:
            self.units_max = 0
        return await super().submit(plan_url, job_id=job_id, token=token, limit_ms=limit_ms)


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize(("which", "byte"), DAMAGES)
async def test_a_compactor_that_dies_after_it_found_the_damage_is_followed_by_one_that_finds_it_too(
    system: HeavySystem, which: str, byte: int, is_stored: bool
) -> None:
    # given a compactor that dies after it stored the second plan, or before
    job = await damaged_job(system, which, byte)
    with pytest.raises(UnitsMissingError):
        await system.engine(job.lease, DiesAtSecondPlan(system.store, system.runtime), **SIZES).run(job.claimed)
    stored = await plans(system, job.job_id)
    (second,) = [each for each in stored if len(each.divided) == 2]
    (first,) = [each for each in stored if each is not second]
    if not is_stored:
        await system.store.delete_many([plan_key(second)])
    # when another one claims the job
    system.clock.advance_ms(JOB_LEASE_MS + 1)
    again = await system.metadata.compactors.register_compactor("b")
    submitter = system.submitter()
    commit = await system.engine(again, submitter, **SIZES).run(await system.claim(again))
    # then no unit of the first plan is done again, and the second plan is taken if it is there
    check_same(commit, job)
    (fingerprint,) = {token.split("-")[1] for token in submitter.tokens}
    assert fingerprint != first.fingerprint
    assert (fingerprint == second.fingerprint) == is_stored
    await system.metadata.compactors.commit_merge(commit)


async def test_an_extent_whose_block_index_is_damaged_stays_whole(system: HeavySystem) -> None:
    plain, _ = await topics(system)
    (extent,) = await system.extents(plain.partition_ids[0])
    body = bytearray(await system.store.get(extent.key))
    body[extent.block_index_position] ^= 1
    await system.store.delete_many([extent.key])
    await system.store.put_if_absent(extent.key, bytes(body), crc32c=crc32c(bytes(body)))
    job_id = await system.merge_all(plain)
    lease = await system.metadata.compactors.register_compactor("a")
    commit = await system.engine(lease, system.submitter(), **SIZES).run(await system.claim(lease))
    await system.metadata.compactors.commit_merge(commit)
    (plan,) = await plans(system, job_id)
    assert [each.partition_id for each in plan.divided] == [plain.partition_ids[1]]
    assert flagged(commit) == []
    for partition_id in plain.partition_ids:
        assert await system.records(partition_id) == system.written[partition_id]


# ---- results


async def done(system: HeavySystem) -> tuple[HeavyPlan, dict[int, UnitResult]]:
    """A plan that divides three extents, and the results of its units."""
    plain, keyed = await topics(system)
    job_id = await system.merge_all(plain, keyed, deduped=keyed.partition_ids)
    lease = await system.metadata.compactors.register_compactor("a")
    await system.engine(lease, system.submitter(), **SIZES).run(await system.claim(lease))
    (plan,) = await plans(system, job_id)
    results = {unit.number: await read_result(system.store, plan, unit.number) for unit in plan.units}
    return plan, {number: each for number, each in results.items() if each is not None}


@pytest.mark.parametrize("kind", list(UnitKind))
async def test_no_commit_is_made_of_parts_that_are_not_their_extents(system: HeavySystem, kind: UnitKind) -> None:
    plan, results = await done(system)
    assert combine(plan, results, epoch=1).outputs
    unit = plan.units_of(kind)[1]
    extent_id = plan.extents_of(unit)[0].extent_id
    result = results[unit.number]
    first, *rest = result.parts
    for crc in (None, (first.crc32c or 0) ^ 1):
        changed = replace(result, parts=(first._replace(crc32c=crc), *rest))
        with pytest.raises(PartsDamagedError) as raised:
            combine(plan, {**results, unit.number: changed}, epoch=1)
        assert raised.value.extent_ids == {extent_id}
    # and a result that leaves a part out is of another unit
    with pytest.raises(ManifestMismatchError, match="other parts"):
        combine(plan, {**results, unit.number: replace(result, parts=rest)}, epoch=1)


async def test_the_records_of_all_parts_together_are_those_of_their_extents(system: HeavySystem) -> None:
    plan, results = await done(system)
    result = results[plan.units_of(UnitKind.MERGE)[0].number]
    (file,) = result.outputs
    first, *rest = file.extents
    more = replace(file, extents=(replace(first, record_count=first.record_count + 1), *rest))
    with pytest.raises(ManifestMismatchError, match=f"records of partition {first.partition_id}"):
        combine(plan, {**results, result.unit: replace(result, outputs=(more,))}, epoch=1)
