"""Random histories with transactions, each from its seed: `python -m tests.compaction --transactions --seed N -v`."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from compactor.planning.spec import MergeKind
from tests.compaction.histories import PARTIAL, settle
from tests.compaction.transactions.planted import PLANTED
from tests.compaction.transactions.world import TransactionWorld, run_transactions
from tests.fixtures.cleaning import ABORT, COMMIT
from wire.records import NewRecord, build_batch

SEEDS = 40
SOAK_FROM, SOAK_SEEDS = 1_000_000, 4_000
FIRST_SEEDS = {
    "drops-markers-of-listed-transactions": 35,
    "lists-only-what-ended-below-the-stable-offset": 16,
}
"""Where to begin to look for a planted bug that few histories show."""
MUST_HAPPEN = frozenset(
    {"aborted", "committed", "markers gone", "poison", "overflow", "deep", "commit in doubt", "crash", "policy"}
    | {"delete records", "expire", "sent again", "arbitrary"}
    | {f"job {kind}" for kind in MergeKind if kind is not MergeKind.ERASE}
)


def run_seeds(seeds: range, *, heavy: bool = False) -> Counter[str]:
    counts: Counter[str] = Counter()
    failed: list[str] = []
    for seed in seeds:
        # Every second one has mostly merges of a few extents.
        outcome = run_transactions(seed, habits=PARTIAL if seed % 2 else {}, heavy=heavy)
        counts.update(outcome.counts)
        if outcome.violations:
            failed.append(str(outcome))
    assert not failed, "\n\n".join(failed[:3])
    return counts


@pytest.mark.timeout(300)
def test_consumers_of_either_level_see_what_was_committed_in_any_history() -> None:
    counts = run_seeds(range(SEEDS))
    # and the histories meant something
    assert not (missing := MUST_HAPPEN - counts.keys()), f"never happened: {sorted(missing)}"


def test_they_see_it_where_merges_are_cut_into_units(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every batch is a block, so units may be cut before any of them.
    monkeypatch.setattr("storage.format.file_writer.BLOCK_BYTES", 1)
    counts = run_seeds(range(12), heavy=True)
    assert counts["units"] > counts["commit"] - counts["job level"]
    assert counts["markers gone"]


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("heavy", [False, True])
def test_they_see_it_in_many_more_histories(heavy: bool) -> None:
    run_seeds(range(SOAK_FROM, SOAK_FROM + SOAK_SEEDS // (10 if heavy else 1)), heavy=heavy)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_bug_is_found(name: str) -> None:
    # given a rule about transactions removed from the product
    seeds = range(first := FIRST_SEEDS.get(name, 0), first + 100)
    with PLANTED[name]():
        found = next((seed for seed in seeds if run_transactions(seed, habits=PARTIAL).violations), None)
    # then some history shows it
    assert found is not None, f"{name} was not found in {len(seeds)} histories"


async def _aborted_while_an_older_one_is_open() -> TransactionWorld:
    """A value, and a transaction that overwrites it and aborts while another one is open; then a pass."""
    world = TransactionWorld(1)
    await world.begin()
    world.poison = world.jobs.lost = 0.0
    topic = world.topics[0]
    (partition_id, *_) = topic.partition_ids
    configs = {"cleanup.policy": "compact", "min.compaction.lag.ms": "0", "segment.ms": "100000"}
    await world.metadata.agents.alter_configs(topic.topic_id, configs)
    one, two, _ = world.clients
    records = [[NewRecord(world.clock.wall_ms(), b"k", value)] for value in (b"old", b"aborted", b"open")]
    batches = [
        build_batch(records[0]),
        await world.producers.in_transaction(one, partition_id, records[1]),
        await world.producers.in_transaction(two, partition_id, records[2]),
    ]
    await world.write(built={partition_id: list(zip(batches, records, strict=True))})
    await world.end_transactions([one], kinds=(ABORT,))
    for _ in range(2):
        await world.metadata.operators.request_compaction(topic.topic_id)
        world.clock.advance_ms(2_000)
        await settle(world)
    present, _, _ = await world.read(partition_id)
    assert [each.value for each in present] == [b"old", b"open"]
    # when the older one commits, then readers of either level see its value
    await world.end_transactions([two], kinds=(COMMIT,))
    await world.check()
    return world


def test_the_stable_offset_in_the_middle_of_a_merged_extent_is_the_end_of_a_pass() -> None:
    assert not asyncio.run(_aborted_while_an_older_one_is_open()).violations


def test_records_of_a_transaction_that_ended_above_the_stable_offset_hide_nothing() -> None:
    with PLANTED["lists-only-what-ended-below-the-stable-offset"](), pytest.raises(AssertionError, match="aborted"):
        asyncio.run(_aborted_while_an_older_one_is_open())
