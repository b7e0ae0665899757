"""Aborted transactions in a merge that is cut into slices: no slice knows all of one, and the combination decides."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from compactor.heavy.combine import combine
from compactor.heavy.manifest import ManifestMismatchError, UnitResult, check_result, decode_result
from compactor.heavy.plan.units import HeavyPlan, UnitKind
from compactor.heavy.stored import read_result
from metadata.contract.jobs import CommitMerge
from tests.fixtures.cleaning import ABORT, COMMIT, marker_batch
from tests.fixtures.heavy_merges import HeavySystem
from tests.fixtures.record_batches import NOW_MS
from wire.batch import ProducerStamp
from wire.records import NewRecord, build_batch

LISTED = [(7, 1, 4), (8, 2, 9), (9, 8, 11)]


def data(producer_id: int, key: str) -> bytes:
    record = NewRecord(NOW_MS, key.encode(), b"v")
    return build_batch([record], producer=ProducerStamp(producer_id), transactional=True)


LOG = [
    data(1, "a"),
    data(7, "a"),
    data(8, "b"),
    data(7, "c"),
    marker_batch(ABORT, 7, 0),
    marker_batch(COMMIT, 1, 0),
    data(7, "d"),
    data(8, "a"),
    data(9, "e"),
    marker_batch(ABORT, 8, 0),
    marker_batch(COMMIT, 7, 0),
    marker_batch(ABORT, 9, 0),
]
"""Each an extent of its own: three aborted transactions that lie across each other."""


async def merged(
    *, without: Sequence[int] = (), bound: int | None = None, seed: int = 1
) -> tuple[HeavyPlan, dict[int, UnitResult], CommitMerge, CommitMerge]:
    """The plan with a slice for each extent, its results, the commit, and that of the embedded engine."""
    system = HeavySystem()
    await system.begin()
    topic = await system.topic("keyed", cleanup_policy="compact")
    for body in LOG:
        await system.write_batches(topic, [body])
    (partition_id,) = topic.partition_ids
    await system.merge_all(topic, deduped=[partition_id], aborted=LISTED, without=without)
    lease = await system.metadata.compactors.register_compactor("a")
    claimed = await system.claim(lease)
    if bound is not None:
        rows = [[*row[:4], bound, *row[5:]] for row in claimed.job.spec["partitions"]]
        claimed = replace(claimed, job=replace(claimed.job, spec={**claimed.job.spec, "partitions": rows}))
    by_hand = await system.embedded(lease).run(claimed)
    submitter = system.submitter(chance=random.Random(seed), dies=0.3, twice=0.4)
    plans: list[HeavyPlan] = []
    submitter.before_unit = lambda plan, _: plans.append(plan)
    commit = await system.engine(lease, submitter, unit_bytes=1, keyed_unit_bytes=1).run(claimed)
    results = {unit.number: await read_result(system.store, plans[0], unit.number) for unit in plans[0].units}
    return plans[0], {number: each for number, each in results.items() if each is not None}, commit, by_hand


@pytest.mark.parametrize(
    ("without", "bound", "gone"),
    [
        ((), None, (4, 9, 11)),
        ((3,), None, (11,)),  # a hole in two of them
        ((10,), None, (4, 9)),
        ((0, 5), None, (4, 11)),
        ((), 7, (4,)),  # records of two lie above the bound
    ],
)
async def test_slices_report_what_one_merge_would(
    without: tuple[int, ...], bound: int | None, gone: tuple[int, ...]
) -> None:
    plan, results, commit, by_hand = await merged(without=without, bound=bound)
    slices = [each for each in results.values() if each.kind is UnitKind.REWRITE]
    assert len(slices) == len(LOG) - len(without)
    assert commit.cleaned == by_hand.cleaned
    assert commit.summary["records_out"] == by_hand.summary["records_out"]  # the same markers are gone, too
    assert [tuple(each.aborted_gone) for each in commit.cleaned] == [gone]
    # and the manifests hold it
    assert all(decode_result(each.encode()) == each for each in slices)
    assert combine(plan, results, epoch=commit.epoch).cleaned == commit.cleaned


async def test_what_one_slice_leaves_is_not_gone() -> None:
    plan, results, commit, _ = await merged()
    number, cleaned = next(
        (number, one) for number, each in results.items() for one in each.cleaned if 9 in one.aborted_gone
    )
    left = tuple(marker for marker in cleaned.aborted_gone if marker != 9)
    leaves = replace(results[number], cleaned=(replace(cleaned, aborted_gone=left),))
    (combined,) = combine(plan, {**results, number: leaves}, epoch=commit.epoch).cleaned
    assert combined.aborted_gone == (4, 11)
    # and a manifest that names a transaction of another plan is refused
    strange = replace(results[number], cleaned=(replace(cleaned, aborted_gone=(5,)),))
    with pytest.raises(ManifestMismatchError, match="does not"):
        check_result(plan, plan.unit(number), strange)
