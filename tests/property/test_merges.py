"""Merges of any history give the result of a naive model: every live batch once, in offset order, at its offset."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compactor.merging import cursors, windows
from compactor.planning.spec import GIB, MergeKind
from metadata.contract.jobs import CommitMerge
from tests.fixtures.chance import examples
from tests.fixtures.merge_inputs import MergeWorld, Sent, extents_of, keyed, records_in
from tests.fixtures.record_batches import NOW_MS
from wire.batch import iter_headers
from wire.codecs import Codec
from wire.records import build_batch

few = settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])

batches = st.builds(
    lambda records, codec: build_batch(records, codec=codec),
    st.lists(
        st.builds(
            keyed,
            st.sampled_from(["a", "b", "c", "d", "e", "f"]),
            st.one_of(st.none(), st.binary(max_size=60)),
            timestamp_ms=st.integers(NOW_MS, NOW_MS + 5_000),
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([Codec.NONE, Codec.NONE, Codec.ZSTD]),
)
sent = st.builds(Sent, st.integers(1, 3), batches, st.sampled_from([True, True, True, False]))
l0_files = st.lists(st.lists(sent, min_size=1, max_size=6), min_size=1, max_size=6)


@contextmanager
def small_windows(window_bytes: int) -> Iterator[None]:
    """Windows of some hundred bytes, so that batches and extents cross them as they would with gigabytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cursors, "WINDOW_BYTES", window_bytes)
        patch.setattr(cursors, "WINDOW_BYTES_MIN", min(window_bytes, 64))
        patch.setattr(cursors, "SMALL_L0_BYTES", 0)
        patch.setattr(windows, "WINDOW_BYTES", window_bytes)
        yield


def check_ranges(world: MergeWorld, commit: CommitMerge) -> None:
    """Check that the output extents tile exactly the covered offsets."""
    for partition_id in world.partitions:
        tiles: list[tuple[int, int]] = []
        for extent in extents_of(commit, partition_id):
            if tiles and tiles[-1][1] + 1 == extent.base_offset:
                tiles[-1] = (tiles[-1][0], extent.last_offset)
            else:
                tiles.append((extent.base_offset, extent.last_offset))
        assert tiles == list(commit.covered.get(partition_id, []))


def expected_log(world: MergeWorld, commit: CommitMerge) -> dict[int, bytes]:
    """The model's batches within the covered offsets."""
    logs: dict[int, bytes] = {}
    for partition_id, ranges in commit.covered.items():
        data = b""
        for batch in world.partitions[partition_id].batches:
            ((_, header),) = iter_headers(batch)
            if any(base <= header.base_offset and header.last_offset <= last for base, last in ranges):
                data += batch
        logs[partition_id] = data
    return logs


@few
@given(
    files=l0_files,
    runs=st.integers(1, 3),
    window_bytes=st.integers(80, 2_000),
    output_bytes=st.sampled_from([300, 1_000, GIB]),
    segment_bytes=st.sampled_from([150, 600, GIB]),
    span_ms=st.sampled_from([1_000, 10**9]),
    left_out=st.sets(st.integers(0, 12), max_size=4),
)
def test_leveling_and_merging_any_history_keeps_every_live_batch_once(
    files: list[list[Sent]],
    runs: int,
    window_bytes: int,
    output_bytes: int,
    segment_bytes: int,
    span_ms: int,
    left_out: set[int],
) -> None:
    async def scenario() -> None:
        # given a history in L0 files, a partition of each kind
        world = MergeWorld()
        for partition_id, policy in ((1, "delete"), (2, "compact"), (3, "delete")):
            world.add_partition(
                partition_id,
                partition=partition_id,
                cleanup_policy=policy,
                segment_bytes=str(segment_bytes),
                segment_ms=str(span_ms),
            )
        # when it is leveled in several runs
        leveled = []
        for run in range(runs):
            world.l0_files, world.extents = [], []
            for file in files[run::runs]:
                await world.add_l0(file)
            claimed = world.claim(output_bytes=output_bytes)
            commit = await world.engine(cursor_bytes=window_bytes).run(claimed)
            check_ranges(world, commit)
            assert await world.log_of(commit) == expected_log(world, commit)
            world.adopt(commit)
            leveled += world.extents
        # and these runs are merged, with some extents left out
        world.l0_files = []
        world.extents = [extent for number, extent in enumerate(leveled) if number not in left_out]
        claimed = world.claim(kind=MergeKind.MERGE, level=2, output_bytes=output_bytes)
        commit = await world.engine(cursor_bytes=window_bytes).run(claimed)
        # then every batch of an input is in one output, at its offset, and the ranges are those of the inputs
        check_ranges(world, commit)
        assert await world.log_of(commit) == expected_log(world, commit)
        for partition_id in commit.covered:
            for extent in extents_of(commit, partition_id):
                one_batch = extent.record_count <= 4
                assert extent.length <= min(segment_bytes, output_bytes) or one_batch
                assert extent.max_timestamp_ms - extent.min_timestamp_ms <= span_ms + 5_000

    with small_windows(window_bytes):
        asyncio.run(scenario())


@few
@given(
    files=st.lists(st.lists(batches, min_size=1, max_size=5), min_size=1, max_size=6),
    window_bytes=st.integers(80, 2_000),
    keys_max=st.sampled_from([2, 3, 100]),
    passes=st.integers(1, 3),
    uncleanable=st.integers(0, 40),
)
def test_dedupe_gives_the_same_bytes_from_memory_and_from_windows_and_keeps_every_keys_last(
    files: list[list[bytes]], window_bytes: int, keys_max: int, passes: int, uncleanable: int
) -> None:
    async def scenario(
        *, kept_bytes_max: int
    ) -> tuple[bytes, list[tuple[int, bytes | None, bytes | None]], CommitMerge]:
        world = MergeWorld()
        world.add_partition(1, cleanup_policy="compact")
        for file in files:
            await world.add_leveled({1: file})
        end = world.partitions[1].next_offset
        spec = world.dedupe_spec(1, passes=passes, first_uncleanable_offset=max(end - uncleanable, 0))
        claimed = world.claim(kind=MergeKind.MERGE, level=2, dedupe={1: spec})
        engine = world.engine(keys_max=keys_max, cursor_bytes=window_bytes, kept_bytes_max=kept_bytes_max)
        commit = await engine.run(claimed)
        check_ranges(world, commit)
        return (await world.log_of(commit)).get(1, b""), records_in(b"".join(world.partitions[1].batches)), commit

    with small_windows(window_bytes):
        kept, before, commit = asyncio.run(scenario(kept_bytes_max=2**30))
        read_again, _, again = asyncio.run(scenario(kept_bytes_max=0))
    assert kept == read_again
    assert commit.summary | {"gets": 0} == again.summary | {"gets": 0}
    after = records_in(kept)
    end = before[-1][0] + 1
    # every remaining record existed before; the latest below the bound, and all records above it, remain
    assert set(after) <= set(before)
    bound = max(end - uncleanable, 0)
    last = {key: (offset, key, value) for offset, key, value in before if offset < bound}
    assert set(last.values()) <= set(after)
    assert [each for each in after if each[0] >= bound] == [each for each in before if each[0] >= bound]
    if passes > 1 or commit.summary["clears"] == 0:
        assert [each for each in after if each[0] < bound] == sorted(last.values())
    offsets = [offset for offset, _, _ in after]
    assert all(low < high for low, high in pairwise(offsets))
