"""A partition deduped in slices gives, batch for batch, the embedded engine's result with a large enough buffer.

Hypothesis draws seeds and prints the one that fails. Each seed is a random partition (`cleaner_partitions.py`), cut at
random into extents and slices, with some batches unreadable, some extents damaged, and some sound ones in parts.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.cleaning import payloads as clean_payloads
from compactor.heavy import key_scan
from compactor.heavy.combine import join_cleaned
from compactor.heavy.plan.units import UnitKind
from compactor.merging import cursors, windows
from metadata.contract.leveled import LeveledExtent
from runtime.clock import ManualClock
from storage.memory import MemoryStore
from tests.fixtures.chance import examples
from tests.fixtures.extent_parts import crc_of_parts, in_parts
from tests.fixtures.record_batches import with_payload
from tests.fixtures.sliced_partitions import (
    PARTITION_ID,
    damage,
    engine_of,
    group_keys,
    in_one,
    left_by,
    plan_of,
    random_extents,
    rewrite,
    write_extents,
)
from tests.property.cleaner_partitions import random_partition
from wire.batch import read_header

SEEDS = st.integers(0, 2**48)
SUMMED = (
    "records_in",
    "records_out",
    "bytes_in",
    "bytes_out",
    "tombstones_kept",
    "tombstones_dropped",
    "keyless_dropped",
    "flagged_extents",
    "unreadable_batches",
    "keys",
    "deduped_partitions",
)


def unreadable(batch: bytes, r: random.Random) -> bytes:
    """Now and then, the batch with unreadable records; header and CRC-32C stay right."""
    return with_payload(batch, b"\xff" * 30) if read_header(batch).records_count and r.random() < 0.04 else batch


def small_windows(r: random.Random) -> ExitStack:
    """Small windows: extents of some kilobytes pass in several of them, and chunks end inside windows."""
    patches = ExitStack()
    window_bytes = r.choice((400, 3_000, 1 << 20))
    for module, name, value in (
        (windows, "WINDOW_BYTES", window_bytes),
        (cursors, "WINDOW_BYTES", window_bytes),
        (cursors, "WINDOW_BYTES_MIN", min(window_bytes, 300)),
        (key_scan, "WINDOW_BYTES", window_bytes),
        (key_scan, "BLOCK_ROWS", r.choice((1, 10, 1 << 16))),
        (clean_payloads, "CHUNK_BYTES", r.choice((100, 3_000, 1 << 20))),
        (clean_payloads, "PLAIN_CHUNK_BYTES", r.choice((100, 3_000, 1 << 20))),
    ):
        patches.enter_context(patch.object(module, name, value))
    return patches


async def check(seed: int) -> None:
    # given a partition in extents, some of them damaged, cut into slices
    r = random.Random(seed)
    partition = random_partition(seed)
    if not partition.batches:
        return
    batches = [unreadable(each, r) for each in partition.batches]
    store = MemoryStore(ManualClock(0))
    extents = await write_extents(store, random_extents(batches, r), r)
    damaged: list[LeveledExtent] = []
    if r.random() < 0.3:
        full = [extent for extent in extents if extent.length]
        damaged = r.sample(full, min(len(full), r.randint(1, 2)))
        for extent in damaged:
            await damage(store, extent, r.randrange(extent.length))
    in_slices = [
        part
        for extent in extents
        for part in await in_parts(store, [extent], r, chance=0.0 if extent in damaged else 0.4)
    ]
    cuts = sorted(r.sample(range(1, len(in_slices)), r.randint(0, min(4, len(in_slices) - 1))))
    log_start = r.choice((extents[0].base_offset, extents[0].base_offset, extents[0].last_offset, 0))
    cursor_bytes = r.choice((2_000, 1 << 22))
    one = plan_of(extents, partition.bounds, [], log_start_offset=log_start, cursor_bytes=cursor_bytes)
    plan = plan_of(in_slices, partition.bounds, cuts, log_start_offset=log_start, cursor_bytes=cursor_bytes)
    with small_windows(r):
        # when the embedded engine dedupes it, and when its slices are deduped
        whole = await engine_of(store, one).run(in_one(one))
        keys = await group_keys(store, plan)
        slices = await rewrite(store, plan)
    # then both leave the same batches and report the same about them
    expected, left = await left_by(store, [whole]), await left_by(store, slices)
    assert left.data == expected.data
    assert (left.ranges, left.flagged) == (expected.ranges, expected.flagged)
    assert (
        join_cleaned(
            plan,
            [
                (unit, one)
                for unit, each in zip(plan.units_of(UnitKind.REWRITE), slices, strict=True)
                for one in each.cleaned
            ],
        )
        == whole.cleaned
    )
    for name in SUMMED:
        assert sum(each.summary[name] for each in slices) == whole.summary[name], name
    assert keys.keys == whole.summary["partition_keys_max"]
    crcs = {(PARTITION_ID, base): crc for each in keys.slices.values() for base, crc in each.found.parts}
    for extent in extents:
        parts = [part for part in in_slices if part.extent_id == extent.extent_id]
        assert len(parts) == 1 or crc_of_parts(parts, crcs) == extent.crc32c


@settings(max_examples=examples(250), deadline=None)
@given(seed=SEEDS)
def test_slices_leave_what_the_embedded_engine_leaves(seed: int) -> None:
    asyncio.run(check(seed))
