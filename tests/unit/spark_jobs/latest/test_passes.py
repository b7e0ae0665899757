"""Both passes over slices, with a dict in place of the shuffle between them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from spark_jobs.keys.shuffle import Surviving
from spark_jobs.latest.passes import key_blocks, surviving_batches
from spark_jobs.latest.places import places_of
from spark_jobs.scan.blocking import BlockingStore
from spark_jobs.scan.contract import DataLossError, ScanOptions, Slice
from spark_jobs.scan.plan import plan_slices
from tests.fixtures.log_lines import LogLines
from tests.fixtures.scan_logs import Found, ScanLog, records_of, rows
from tests.fixtures.unreadable_batches import does_not_unfold
from tests.property.test_scan import some_batch, some_log

OPTIONS = ScanOptions(topic="flights")


def grouped(store: BlockingStore, slices: Sequence[Slice], options: ScanOptions) -> list[Surviving]:
    """For each slice: the offsets that are the last of their key in the partition, and how many records had a key."""
    last: dict[tuple[int, bytes], int] = {}
    counts: list[int] = []
    for part in slices:
        counts.append(0)
        for block in key_blocks(store, part, options):
            assert np.all(np.diff(block.offsets) > 0) and block.hashes.shape == (len(block.offsets), 4)
            counts[-1] += len(block.offsets)
            for key, offset in zip(block.hashes, block.offsets.tolist(), strict=True):
                last[part.partition_id, key.tobytes()] = offset
    kept = {(partition_id, offset) for (partition_id, _), offset in last.items()}
    return [
        Surviving(
            np.array([at for at in range(part.start, part.end) if (part.partition_id, at) in kept], "int64"), rows
        )
        for part, rows in zip(slices, counts, strict=True)
    ]


def taken(
    store: BlockingStore, slices: Sequence[Slice], options: ScanOptions, found: Sequence[Surviving], *, keep: bool
) -> list[Found]:
    return [
        row
        for part, surviving in zip(slices, found, strict=True)
        for batch in surviving_batches(store, part, options, surviving, keep_tombstones=keep, batch_rows=7)
        for row in rows(batch)
    ]


def latest_of(records: Sequence[Found], *, keep: bool) -> list[Found]:
    last = {(each.partition, each.key): each for each in records if each.key is not None}
    return sorted(each for each in last.values() if keep or each.value is not None)


async def slices_of(log: ScanLog, slice_bytes: int, **asked: object) -> Sequence[Slice]:
    options = replace(OPTIONS, **asked)  # type: ignore[arg-type]
    return plan_slices(await log.snapshot(), options, slice_bytes=slice_bytes)


@pytest.mark.parametrize("seed", range(12))
def test_the_survivors_of_any_log_are_the_last_records_of_its_keys(seed: int) -> None:
    r = random.Random(seed)
    log = asyncio.run(some_log(r))
    slices = asyncio.run(slices_of(log, r.choice((1, 200, 3_000, 1 << 20))))
    with BlockingStore(log.store) as store:
        found = grouped(store, slices, OPTIONS)

        for keep in (False, True):
            assert taken(store, slices, OPTIONS, found, keep=keep) == latest_of(log.expected(), keep=keep)


@pytest.mark.parametrize("seed", range(6))
def test_steps_that_keep_tombstones_lead_from_one_state_to_the_next(seed: int) -> None:
    r = random.Random(100 + seed)
    log = asyncio.run(some_log(r))
    table: dict[tuple[int, bytes | None], Found] = {}
    [high, *_] = [part.high_watermark for part in asyncio.run(log.snapshot()).partitions]
    low = asyncio.run(log.snapshot()).partitions[0].log_start_offset
    borders = sorted([low, *(r.randint(low, high) for _ in range(3)), high])
    with BlockingStore(log.store) as store:
        for start, end in pairwise(borders):
            slices = asyncio.run(slices_of(log, 500, partitions=(0,), starting={0: start}, ending={0: end}))
            for row in taken(store, slices, OPTIONS, grouped(store, slices, OPTIONS), keep=True):
                if row.value is None:
                    table.pop((0, row.key), None)
                else:
                    table[0, row.key] = row
            assert sorted(table.values()) == latest_of(log.expected(0, low, end), keep=False)


@pytest.mark.parametrize("seed", range(6))
def test_changes_are_whole_though_dedupe_drops_what_is_superseded_in_between(seed: int) -> None:
    r = random.Random(200 + seed)
    log = asyncio.run(ScanLog.make())
    table: dict[bytes | None, Found] = {}
    end = 0
    for _ in range(4):
        for _ in range(r.randint(1, 4)):
            asyncio.run(log.write((0, some_batch(r))))
        if r.random() < 0.6:
            latest = {found.offset for found in latest_of(log.expected(), keep=True)}

            def keep(found: Found, latest: set[int] = latest) -> bool:
                return found.offset in latest

            asyncio.run(log.merge(extents=asyncio.run(log.leveled()), shape=log.thin(keep)))
        slices = asyncio.run(slices_of(log, 700, starting={0: end}))
        with BlockingStore(log.store) as store:
            for row in taken(store, slices, OPTIONS, grouped(store, slices, OPTIONS), keep=True):
                if row.value is None:
                    table.pop(row.key, None)
                else:
                    table[row.key] = row
        [part] = asyncio.run(log.snapshot()).partitions
        end = part.last_stable_offset
        assert sorted(table.values()) == latest_of(log.expected(), keep=False)


async def test_records_without_a_key_are_counted_in_the_log_once(log_lines: LogLines) -> None:
    log = await ScanLog.make()
    await log.write((0, records_of((None, b"1"), (b"a", b"2"), (None, None), (b"b", b"3"))))
    slices = await slices_of(log, 1 << 20)
    with BlockingStore(log.store) as store:
        found = grouped(store, slices, OPTIONS)
        assert [row.offset for row in taken(store, slices, OPTIONS, found, keep=True)] == [1, 3]

    assert [each.rows for each in found] == [2]
    [line] = log_lines.named("records without a key are left out")
    assert (line["topic"], line["partition"], line["count"]) == ("flights", 0, 2)


async def test_a_record_that_only_one_pass_could_read_ends_the_read() -> None:
    # given a file that is damaged between the passes, and whose damage is to be left out
    options = replace(OPTIONS, fail_on_data_loss=False)
    log = await ScanLog.make()
    await log.write((0, records_of((b"a", b"1"), (b"b", b"2"))))
    await log.write((0, records_of((b"c", b"3"))))
    slices = await slices_of(log, 1 << 20)
    [_, lost] = [piece.key for piece in slices[0].pieces]
    store = BlockingStore(log.store)
    whole = grouped(store, slices, options)
    await log.store.delete_many([lost])
    # then the second pass does not end well
    with pytest.raises(DataLossError, match=r"offsets 0 to 2: 2 records .* it was 3 and 3"):
        taken(store, slices, options, whole, keep=False)
    # but both passes without it do
    assert [row.key for row in taken(store, slices, options, grouped(store, slices, options), keep=False)] == [
        b"a",
        b"b",
    ]
    # and neither does one that finds fewer survivors, or more records
    damaged = grouped(store, slices, options)
    for wrong in (
        damaged[0]._replace(offsets=np.array([0, 1, 2])),
        damaged[0]._replace(offsets=np.array([0, 7])),
        damaged[0]._replace(rows=1),
    ):
        with pytest.raises(DataLossError, match="read again; `siltstone fsck`"):
            taken(store, slices, options, [wrong], keep=False)
    store.close()


async def test_a_slice_without_survivors_is_read_to_its_end_all_the_same() -> None:
    log = await ScanLog.make()
    await log.write((0, records_of((b"a", b"1"))))
    [part] = await slices_of(log, 1 << 20)
    nothing = np.empty(0, dtype=np.int64)
    with BlockingStore(log.store) as store:
        assert taken(store, [part], OPTIONS, [Surviving(nothing, 1)], keep=True) == []
        # its count proves that no key was lost on the way
        with pytest.raises(DataLossError):
            taken(store, [part], OPTIONS, [Surviving(nothing, 0)], keep=True)


async def test_damage_inside_a_batch_is_met_by_both_passes() -> None:
    log = await ScanLog.make()
    await log.write((0, records_of((b"e", b"0"), (b"a", b"1"))))
    log._remember = lambda *_: None  # type: ignore[method-assign]  # nobody can walk the next batch
    await log.write((0, does_not_unfold()))
    slices = await slices_of(log, 1 << 20)
    with BlockingStore(log.store) as store:
        with pytest.raises(DataLossError):
            grouped(store, slices, OPTIONS)
        passing_over = replace(OPTIONS, fail_on_data_loss=False)
        found = grouped(store, slices, passing_over)
        assert [row.offset for row in taken(store, slices, passing_over, found, keep=False)] == [0, 1]


async def test_places_are_disjoint_and_say_about_how_many_records_they_hold() -> None:
    log = await ScanLog.make(2)
    many = [(b"k%d" % n, bytes(100)) for n in range(400)]
    for _ in range(2):
        await log.write((0, records_of(*many)), (1, records_of(*many)))
    await log.merge(shape=log.thin(lambda found: found.offset % 2 == 0))
    await log.write((0, records_of(*many[:3])))

    places = places_of(await slices_of(log, 20_000))

    assert [place.number for place in places] == list(range(len(places))) and len(places) == 6
    for partition_id, end in zip(log.topic.partition_ids, (803, 800), strict=True):
        own = [place for place in places if place.partition_id == partition_id]
        assert [place.base_offset for place in own] == [0, *(place.last_offset + 1 for place in own[:-1])]
        assert own[-1].last_offset == end - 1
        held = len(log.expected(log.topic.partition_ids.index(partition_id)))
        assert abs(sum(place.rows for place in own) - held) <= len(own)
