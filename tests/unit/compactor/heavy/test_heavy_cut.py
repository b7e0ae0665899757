"""The cut of a heavy merge, and the stored forms and checks of its plan and results."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from compactor.heavy.combine import combine
from compactor.heavy.manifest import ManifestMismatchError, UnitResult, check_result, decode_result
from compactor.heavy.plan.codec import decode_head, decode_plan, decode_stretches, plan_directory
from compactor.heavy.plan.cut import UnitSizes, cut, may_go_on
from compactor.heavy.plan.frames import encode_frames, piece
from compactor.heavy.plan.units import HeavyPlan, PlanError, UnitKind
from compactor.planning.options import MergeMemory
from compactor.planning.spec import GIB, SPARK_LIMIT_MS_MAX, MergeKind, MergeSpec, PartitionSpec
from metadata.contract.jobs import (
    ClaimedJob,
    CleanedPartition,
    InputPartition,
    JobState,
    L0Input,
    MergeJob,
    OutputExtent,
    OutputFile,
)
from metadata.contract.leases import WriterLease
from metadata.contract.leveled import FileClass, LeveledExtent
from storage.keys import file_key

NOW_MS = 1_700_000_000_000
LEASE = WriterLease(writer_id=7, epoch=0)
KEYS_MAX = 50


def claimed_job(sizes: list[tuple[bool, list[int]]], *, epoch: int = 1, limit_ms: int = 600_000) -> ClaimedJob:
    """`sizes`: for each partition whether it is deduped, and the bytes of its extents. There is a gap before every
    third."""
    extents: list[LeveledExtent] = []
    partitions: dict[int, InputPartition] = {}
    specs: dict[int, PartitionSpec] = {}
    ids = iter(range(1, 1_000_000))
    for partition_id, (deduped, lengths) in enumerate(sizes, start=1):
        offset = 0
        for number, length in enumerate(lengths):
            offset += 5 * (number % 3 == 2)
            extents.append(
                LeveledExtent(
                    *(next(ids), partition_id, offset, offset + 9, 100 + number, f"l1/aa/file-{number}", 1, 1 << 40),
                    *(number, length, 0, 0, 10, 1, 0, 0, deduped, None),
                )
            )
            offset += 10
        partitions[partition_id] = InputPartition(
            partition_id=partition_id,
            topic_id=uuid.UUID(int=partition_id),
            topic_name=f"t{partition_id}",
            partition=0,
            configs={"cleanup.policy": "compact" if deduped else "delete"},
            config_version=1,
            log_start_offset=0,
            last_stable_offset=offset,
            high_watermark=offset,
        )
        if deduped:
            specs[partition_id] = PartitionSpec(
                partition_id=partition_id,
                log_start_offset=0,
                last_stable_offset=offset,
                high_watermark=offset,
                first_uncleanable_offset=offset,
                whole_through_offset=offset,
                delete_horizon_ms=NOW_MS,
                aborted=((5, 1, 3),),
            )
    spec = MergeSpec(
        kind=MergeKind.MERGE,
        now_ms=NOW_MS - 5,
        limit_ms=limit_ms,
        level=2,
        output_bytes=GIB,
        dedupe=bool(specs),
        partitions=specs,
    )
    job = MergeJob(
        job_id=77,
        kind=spec.kind.value,
        state=JobState.RUNNING,
        epoch=epoch,
        spec=spec.to_json(),
        holder=LEASE.writer_id,
        attempts=1,
        created_ms=NOW_MS,
        started_ms=NOW_MS,
        deadline_ms=NOW_MS + limit_ms,
        finished_ms=None,
        lease_until_ms=None,
        input_files=1,
        input_bytes=0,
        progress={},
        result={},
        error="",
    )
    # in no order: `cut` sorts them
    return ClaimedJob(job=job, now_ms=NOW_MS, l0_files=(), extents=tuple(reversed(extents)), partitions=partitions)


def plan_of(claimed: ClaimedJob, **options: Any) -> HeavyPlan:
    sizes = UnitSizes(
        **{"unit_bytes": 100, "keyed_unit_bytes": 300, "memory": MergeMemory(keys_max=KEYS_MAX), **options}
    )
    return cut(claimed, MergeSpec.from_json(claimed.job.spec), cluster_id="c1", lease=LEASE, sizes=sizes)


PARTITIONS = st.lists(
    st.tuples(st.booleans(), st.lists(st.integers(min_value=0, max_value=150), min_size=1, max_size=8)), max_size=8
)


@given(PARTITIONS)
def test_every_extent_is_in_one_merge_unit_or_in_one_that_reads_its_keys_and_one_that_rewrites_it(
    sizes: list[tuple[bool, list[int]]],
) -> None:
    claimed = claimed_job(sizes)
    plan = plan_of(claimed)
    units = Counter((extent.extent_id, unit.kind) for unit in plan.units for extent in plan.extents_of(unit))
    assert set(units.values()) <= {1}
    for extent in plan.extents:
        kinds = {kind for kind in UnitKind if units[extent.extent_id, kind]}
        is_sliced = extent.partition_id in plan.sliced
        assert kinds == ({UnitKind.KEYS, UnitKind.REWRITE} if is_sliced else {UnitKind.MERGE})
    assert sorted(plan.extents) == sorted(claimed.extents)
    assert [unit.number for unit in plan.units] == list(range(len(plan.units)))


@given(PARTITIONS)
def test_deduped_partitions_stay_whole_or_are_sliced_and_units_are_as_large_as_they_may_be(
    sizes: list[tuple[bool, list[int]]],
) -> None:
    plan = plan_of(claimed_job(sizes))
    for partition_id, (deduped, lengths) in enumerate(sizes, start=1):
        holders = [
            unit
            for unit in plan.units
            if unit.kind is not UnitKind.KEYS
            and any(each.partition_id == partition_id for each in plan.extents_of(unit))
        ]
        if deduped:
            is_sliced = sum(lengths) > 300 and len(lengths) > 1
            assert (partition_id in plan.sliced) == is_sliced
            assert is_sliced or len(holders) == 1
            passes = plan.partition_specs[partition_id].passes
            assert is_sliced or passes == (1 if 10 * len(lengths) <= KEYS_MAX else 2)
        for unit in holders:
            count = len(plan.extents_of(unit))
            assert unit.records == 10 * count
            ids = {each.partition_id for each in plan.extents_of(unit)}
            assert unit.input_bytes == sum(each.length for each in plan.extents_of(unit))
            # larger only if it is one extent, or one partition that must stay whole
            assert unit.input_bytes <= 100 or count == 1 or len(ids) == 1
            assert unit.partition_id is None or ids == {unit.partition_id}


@given(PARTITIONS)
def test_a_plan_is_read_as_it_was_stored(sizes: list[tuple[bool, list[int]]]) -> None:
    plan = plan_of(claimed_job(sizes))
    again = decode_plan(plan.body, cluster_id="c1", fingerprint=plan.fingerprint)
    assert again == replace(plan, body=b"")


def test_neighbours_would_have_fitted_into_no_fewer_units() -> None:
    plan = plan_of(claimed_job([(False, [30, 30, 30, 30]), (False, [10]), (True, [40, 40]), (False, [90, 20])]))
    assert [(len(plan.extents_of(unit)), unit.input_bytes) for unit in plan.units] == [
        (3, 90),
        (2, 40),
        (2, 80),
        (1, 90),
        (1, 20),
    ]


def test_a_partition_that_went_with_its_topic_is_left_out() -> None:
    claimed = claimed_job([(False, [10]), (False, [20])])
    gone = replace(claimed, partitions={2: claimed.partitions[2]})
    assert [each.partition_id for each in plan_of(gone).extents] == [2]
    assert plan_of(replace(claimed, partitions={})).units == ()


def test_l0_files_are_not_for_a_cluster() -> None:
    claimed = claimed_job([(False, [10])])
    l0 = L0Input(file_id=1, key="l0/x", size_bytes=1, created_ms=0, index=b"")
    with pytest.raises(PlanError, match="L0"):
        plan_of(replace(claimed, l0_files=(l0,)))


def test_no_plan_may_be_committed_after_the_janitor_stops_sparing_its_files() -> None:
    assert plan_of(claimed_job([(False, [10])], limit_ms=10)).commit_by_ms == NOW_MS + 10
    long = claimed_job([(False, [10])], limit_ms=100 * 3_600_000)
    assert plan_of(long).commit_by_ms == NOW_MS + SPARK_LIMIT_MS_MAX


def stored(plan: HeavyPlan, **changes: Any) -> bytes:
    """The stored plan with other fields in its head, or in its only stretch."""
    directory = plan_directory(plan.body)
    bodies = [json.loads(frame.body(piece(plan.body, frame))) for frame in (directory.head, *directory.frames)]
    changed = [{**body, **{name: value for name, value in changes.items() if name in body}} for body in bodies]
    return encode_frames(*(json.dumps(each).encode() for each in changed[:1]), [json.dumps(changed[1]).encode()])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 1}, "version 1"),
        ({"file_format": 9}, "file format 9"),
        ({"cluster_id": "c2"}, "cluster 'c2'"),
        ({"units": [["merge"], [99], [1], [1], [None], [0], [0], [0]]}, "a stretch that is not one of 1"),
        ({"units": [["other"], [0], [1], [1], [None], [0], [0], [0]]}, "cannot be read"),
        ({"units": [["merge"], [0], [True], [1], [None], [0], [0], [0]]}, "type bool"),
        ({"units": [["merge"], [0], [2**63], [1], [None], [0], [0], [0]]}, "64 bits"),
        ({"units": [["merge"], [0, 0], [1], [1], [None], [0], [0], [0]]}, "different lengths"),
        ({"partitions": []}, "partition 1"),
        ({"extents": [[1, 2]]}, "cannot be read"),
        ({"files": [[], [], [], []]}, "cannot be read"),
        ({"keys_max": "many"}, "cannot be read"),
        ({"spec": {"version": 99}}, "version 99"),
    ],
)
def test_a_plan_that_is_not_for_us_is_refused_and_says_why(changes: dict[str, Any], said: str) -> None:
    plan = plan_of(claimed_job([(False, [10, 20])]))
    assert decode_plan(stored(plan), cluster_id="c1").units == plan.units
    with pytest.raises(PlanError, match=said):
        decode_plan(stored(plan, **changes), cluster_id="c1")


def test_a_plan_of_another_key_or_with_other_bytes_is_refused() -> None:
    plan = plan_of(claimed_job([(False, [10, 20]), (True, [400, 500])]))
    other = plan_of(claimed_job([(False, [10, 21]), (True, [400, 500])]))
    with pytest.raises(PlanError, match="fingerprint"):
        decode_plan(other.body, cluster_id="c1", fingerprint=plan.fingerprint)
    for at in range(0, len(plan.body), 7):
        damaged = bytearray(plan.body)
        damaged[at] ^= 1
        with pytest.raises(PlanError):
            decode_plan(bytes(damaged), cluster_id="c1", fingerprint=plan.fingerprint)


def test_a_task_reads_the_head_and_the_inputs_of_its_unit_alone() -> None:
    plan = plan_of(claimed_job(MIXED))
    directory = plan_directory(plan.body)
    head = decode_head(piece(plan.body, directory.head), directory)
    assert (head.units, head.fingerprint, head.stretches) == (plan.units, plan.fingerprint, {})
    for unit in head.units:
        stored_unit = piece(plan.body, directory.frames[unit.stretch])
        assert decode_stretches({unit.stretch: stored_unit}, head, directory) == {unit.stretch: plan.stretch_of(unit)}


def test_a_plan_of_the_release_before_is_refused_in_words() -> None:
    old = zstandard.ZstdCompressor().compress(json.dumps({"version": 3, "units": []}).encode())
    with pytest.raises(PlanError, match="older release"):
        decode_plan(old)


@pytest.mark.parametrize("body", [b"", b"not zstd", zstandard.ZstdCompressor().compress(b"[1]")])
def test_what_is_no_plan_is_refused(body: bytes) -> None:
    with pytest.raises(PlanError):
        decode_plan(body)


def test_a_later_claim_goes_on_with_a_plan_only_where_it_does_what_the_claim_asks_for() -> None:
    claimed = claimed_job([(True, [10, 20, 30]), (False, [10])])
    plan = plan_of(claimed)
    later = replace(claimed, now_ms=NOW_MS + 100_000, job=replace(claimed.job, epoch=2))

    def goes_on(claim: ClaimedJob, cluster_id: str = "c1", **spec: Any) -> bool:
        wanted = replace(MergeSpec.from_json(claim.job.spec), **spec)
        return may_go_on(plan, claim, wanted, cluster_id=cluster_id)

    assert goes_on(later)
    assert goes_on(replace(later, extents=later.extents[1:]))  # retention removed one meanwhile
    gone = replace(later, partitions={1: later.partitions[1]})
    assert goes_on(gone)  # a topic was deleted
    other = plan_of(claimed_job([(True, [10, 20, 31]), (False, [10])]))
    assert not may_go_on(other, later, MergeSpec.from_json(later.job.spec), cluster_id="c1")
    assert not goes_on(later, cluster_id="c2")
    assert not goes_on(later, now_ms=NOW_MS - 6)  # another job, from before a restore of the database
    assert not goes_on(replace(later, now_ms=NOW_MS + 500_000))  # too little time left
    plain = replace(later.partitions[1], configs={"cleanup.policy": "delete"})
    assert not goes_on(replace(later, partitions={**later.partitions, 1: plain}))


# ---- manifests


def results_of(plan: HeavyPlan) -> dict[int, UnitResult]:
    """The results as if every unit had been done."""
    return {unit.number: result_of(plan, unit.number) for unit in plan.units}


def result_of(plan: HeavyPlan, number: int) -> UnitResult:
    unit = plan.unit(number)
    extents = plan.extents_of(unit) if unit.kind is not UnitKind.KEYS else ()
    covered: dict[int, list[tuple[int, int]]] = {}
    for each in extents:
        ranges = covered.setdefault(each.partition_id, [])
        if ranges and ranges[-1][1] + 1 == each.base_offset:
            ranges[-1] = (ranges[-1][0], each.last_offset)
        else:
            ranges.append((each.base_offset, each.last_offset))
    outputs = [
        OutputFile(
            key=file_key(
                level=2,
                writer_id=7,
                epoch=0,
                file_uuid=uuid.UUID(int=(NOW_MS << 80) | 7 << 76 | 2 << 62 | 100 * number + partition_id),
                created_ms=NOW_MS,
            ),
            level=2,
            file_class=FileClass.COMPACTED if partition_id in plan.partition_specs else FileClass.PLAIN,
            size_bytes=1_000_000,
            crc32c=1,
            config_version=1,
            extents=tuple(
                OutputExtent(
                    partition_id=partition_id,
                    base_offset=base,
                    last_offset=last,
                    position=0,
                    length=10,
                    block_index_position=0,
                    block_index_length=0,
                    record_count=sum(
                        each.record_count
                        for each in extents
                        if each.partition_id == partition_id and base <= each.base_offset <= last
                    ),
                    crc32c=1,
                    min_timestamp_ms=0,
                    max_timestamp_ms=0,
                    has_tombstones=False,
                )
                for base, last in ranges
            ),
        )
        for partition_id, ranges in covered.items()
    ]
    cleaned = [
        CleanedPartition(partition_id=id_, cleaned_through_offset=9, passes_needed=1)
        for id_ in covered
        if id_ in plan.partition_specs
    ]
    return UnitResult(
        plan=plan.fingerprint,
        unit=number,
        kind=unit.kind,
        covered={id_: tuple(ranges) for id_, ranges in covered.items()},
        outputs=tuple(outputs),
        cleaned=tuple(cleaned),
        summary={"records_in": 10, "gets": 1, "passes": number % 3, "clears": 0},
        seconds=0.5,
    )


MIXED = [(True, [90, 90, 90, 90]), (False, [80, 80]), (True, [20, 20])]


@given(PARTITIONS)
def test_all_results_together_cover_the_inputs_of_the_plan(sizes: list[tuple[bool, list[int]]]) -> None:
    plan = plan_of(claimed_job(sizes))
    commit = combine(plan, results_of(plan), epoch=3)
    offsets = {
        (id_, offset)
        for id_, ranges in commit.covered.items()
        for base, last in ranges
        for offset in range(base, last + 1)
    }
    assert offsets == {
        (each.partition_id, offset) for each in plan.extents for offset in range(each.base_offset, each.last_offset + 1)
    }
    assert (commit.job_id, commit.epoch, commit.commit_by_ms) == (77, 3, plan.commit_by_ms)
    assert [each.partition_id for each in commit.cleaned] == sorted(plan.partition_specs)


def test_numbers_of_units_are_added_up_and_what_only_reads_keys_counts_its_requests_alone() -> None:
    plan = plan_of(claimed_job(MIXED))
    summary = combine(plan, results_of(plan), epoch=1).summary
    keys = len(plan.units_of(UnitKind.KEYS))
    assert (keys, len(plan.units)) == (4, 11)
    assert summary["records_in"] == 10 * (len(plan.units) - keys)
    assert (summary["gets"], summary["passes"], summary["units"]) == (11, 2, 11)
    assert summary["unit_seconds"] == 5.5


def test_a_result_is_read_as_it_was_stored() -> None:
    plan = plan_of(claimed_job(MIXED))
    for number in range(len(plan.units)):
        result = result_of(plan, number)
        assert decode_result(result.encode()) == result
        check_result(plan, plan.unit(number), result)


def merge_unit(plan: HeavyPlan) -> int:
    return plan.units_of(UnitKind.MERGE)[0].number


def with_extent(result: UnitResult, **changes: Any) -> UnitResult:
    file = result.outputs[0]
    extents = (replace(file.extents[0], **changes), *file.extents[1:])
    return replace(result, outputs=(replace(file, extents=extents), *result.outputs[1:]))


DISAGREEMENTS: dict[str, Any] = {
    "another plan": lambda r: replace(r, plan="0" * 32),
    "another unit": lambda r: replace(r, unit=r.unit + 1),
    "another kind": lambda r: replace(r, kind=UnitKind.REWRITE),
    "covers more": lambda r: replace(r, covered={**r.covered, 9: ((0, 1),)}),
    "covers less": lambda r: replace(r, covered={}),
    "writes nothing": lambda r: replace(r, outputs=()),
    "writes other offsets": lambda r: with_extent(r, last_offset=999),
    "writes twice": lambda r: replace(r, outputs=(*r.outputs, replace(r.outputs[0], key="other"))),
    "loses records": lambda r: with_extent(r, record_count=1),
    "extent outside of its file": lambda r: with_extent(r, position=2_000_000),
    "another level": lambda r: replace(r, outputs=(replace(r.outputs[0], level=1),)),
    "a malformed key": lambda r: replace(r, outputs=(replace(r.outputs[0], key="jobs/1"),)),
    "another writer": lambda r: replace(
        r, outputs=(replace(r.outputs[0], key=r.outputs[0].key.replace("/7-0-", "/8-0-")),)
    ),
    "another class": lambda r: replace(r, outputs=(replace(r.outputs[0], file_class=FileClass.COMPACTED),)),
    "dedupes a plain partition": lambda r: replace(
        r, cleaned=(CleanedPartition(partition_id=2, cleaned_through_offset=1, passes_needed=1),)
    ),
}


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_a_manifest_that_disagrees_with_its_unit_is_refused(name: str) -> None:
    plan = plan_of(claimed_job(MIXED))
    number = merge_unit(plan)
    wrong = DISAGREEMENTS[name](result_of(plan, number))
    with pytest.raises(ManifestMismatchError):
        check_result(plan, plan.unit(number), wrong)
    with pytest.raises(ManifestMismatchError):
        combine(plan, {**results_of(plan), number: wrong}, epoch=1)


def test_results_that_are_not_of_all_units_or_contradict_each_other_make_no_commit() -> None:
    plan = plan_of(claimed_job(MIXED))
    results = results_of(plan)
    with pytest.raises(ManifestMismatchError, match="unit 3"):
        combine(plan, {number: each for number, each in results.items() if number != 3}, epoch=1)
    first, second = (unit.number for unit in plan.units_of(UnitKind.MERGE)[:2])
    twin = replace(results[second].outputs[0], key=results[first].outputs[0].key)
    with pytest.raises(ManifestMismatchError, match="same output"):
        combine(plan, {**results, second: replace(results[second], outputs=(twin,))}, epoch=1)
    slice_unit = plan.units_of(UnitKind.REWRITE)[1].number
    other = (CleanedPartition(partition_id=1, cleaned_through_offset=8, passes_needed=1),)
    with pytest.raises(ManifestMismatchError, match="slices"):
        combine(plan, {**results, slice_unit: replace(results[slice_unit], cleaned=other)}, epoch=1)
    reader = plan.units_of(UnitKind.KEYS)[0].number
    with pytest.raises(ManifestMismatchError, match="reads keys"):
        combine(plan, {**results, reader: replace(results[first], unit=reader, kind=UnitKind.KEYS)}, epoch=1)


@pytest.mark.parametrize(
    "changes", [{"version": 1}, {"covered": {"1": [[0]]}}, {"outputs": [{}]}, {"unit": "1"}, {"cleaned": [[1]]}]
)
def test_what_is_no_manifest_is_refused(changes: dict[str, Any]) -> None:
    plan = plan_of(claimed_job(MIXED))
    fields = {**result_of(plan, merge_unit(plan)).to_json(), **changes}
    with pytest.raises(ManifestMismatchError):
        decode_result(zstandard.ZstdCompressor().compress(json.dumps(fields).encode()))
    with pytest.raises(ManifestMismatchError):
        decode_result(b"not zstd")
