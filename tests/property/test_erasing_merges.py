"""Merges that erase any history give, partition by partition, the bytes of the oracle, however its windows fall."""

from __future__ import annotations

import asyncio
import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compactor.erasing.oracle import erase
from compactor.planning.spec import GIB, MergeKind
from tests.fixtures.chance import examples
from tests.fixtures.cleaning import split
from tests.fixtures.erasures import erasing, with_keys
from tests.fixtures.merge_inputs import MergeWorld, Sent, extents_of
from tests.property.test_merges import check_ranges, l0_files, small_windows

few = settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@few
@given(
    files=l0_files,
    window_bytes=st.integers(80, 2_000),
    output_bytes=st.sampled_from([300, 1_000, GIB]),
    segment_bytes=st.sampled_from([150, 600, GIB]),
    seed=st.integers(0, 2**32),
)
def test_erasing_any_history_gives_the_bytes_of_the_oracle(
    files: list[list[Sent]], window_bytes: int, output_bytes: int, segment_bytes: int, seed: int
) -> None:
    async def scenario() -> None:
        # given a history in some leveled files, a partition of each kind
        r, world = random.Random(seed), MergeWorld()
        for partition_id, policy in ((1, "delete"), (2, "compact"), (3, "delete")):
            configs = {"cleanup_policy": policy, "segment_bytes": str(segment_bytes)}
            world.add_partition(partition_id, partition=partition_id, **configs)
        for file in files:
            await world.add_l0(file)
        world.adopt(await world.engine(cursor_bytes=window_bytes).run(world.claim(output_bytes=output_bytes)))
        world.extents = [each._replace(erased_through=r.choice((0, 3, 9))) for each in world.extents]
        before = {each.partition_id: [] for each in world.extents}
        for each in world.extents:
            before[each.partition_id].append(each)
        # when keys are erased from two of the partitions
        keys = {
            partition_id: erasing(
                partition_id * 4,
                {key: r.randint(0, world.partitions[partition_id].next_offset) for key in r.sample("abcdefgh", 3)},
                tombstones=r.random() < 0.3,
            )
            for partition_id in (1, 2)
        }
        claimed = world.claim(kind=MergeKind.ERASE, output_bytes=output_bytes)
        commit = await world.engine(cursor_bytes=window_bytes).run(with_keys(claimed, keys))
        # then each has the oracle's bytes, and the third its own
        check_ranges(world, commit)
        logs = await world.log_of(commit)
        for partition_id, extents in before.items():
            batches = world.partitions[partition_id].batches
            marks = keys[partition_id].marks if partition_id in keys else ()
            assert split(logs[partition_id]) == erase(batches, marks)
            # and no extent claims more than was erased from all that it covers
            stamp = keys[partition_id].stamp if partition_id in keys else 0
            for output in extents_of(commit, partition_id):
                covered = [
                    one.erased_through
                    for one in extents
                    if one.base_offset <= output.last_offset and output.base_offset <= one.last_offset
                ]
                assert output.erased_through == max(stamp, min(covered))

    with small_windows(window_bytes):
        asyncio.run(scenario())
