"""Any log over all levels, with the gaps that dedupe leaves: its slices read like its batches in plain Python."""

from __future__ import annotations

import asyncio
import random

import pytest

from spark_jobs.scan import windows
from tests.fixtures.scan_logs import Found, ScanLog, control
from wire.codecs import Codec
from wire.records import NewRecord, build_batch

NOW_MS = 1_700_000_000_000
SEEDS = 12


def some_batch(r: random.Random) -> bytes:
    at_ms = NOW_MS + r.randint(-10_000, 10_000)
    records = [
        NewRecord(
            at_ms + r.randint(-50, 50),
            r.choice((None, b"", b"k%d" % r.randint(0, 9), r.randbytes(r.randint(1, 90)))),
            r.choice((None, b"", r.randbytes(r.randint(0, 300)))),
            tuple(
                (r.choice(("", "trace", "zürich-\U0001f600")), r.choice((None, b"", r.randbytes(r.randint(0, 90)))))
                for _ in range(r.choice((0, 0, 0, 1, 3)))
            ),
        )
        for _ in range(r.randint(1, r.choice((3, 40))))
    ]
    append_time_ms = r.choice((None, None, at_ms + 77))
    batch = build_batch(records, codec=r.choice(list(Codec)), log_append_time_ms=append_time_ms)
    return control(batch) if r.random() < 0.1 else batch


async def some_log(r: random.Random) -> ScanLog:
    """A log that is written, merged and thinned by turns; now and then records below an offset are deleted."""
    log = await ScanLog.make(r.randint(1, 3))
    partitions = len(log.topic.partition_ids)
    for _ in range(r.randint(2, 7)):
        for _ in range(r.randint(1, 4)):
            await log.write(*((r.randrange(partitions), some_batch(r)) for _ in range(r.randint(1, 6))))
        dies = {offset for offset in range(3000) if r.random() < 0.3}

        def keep(found: Found, dies: set[int] = dies) -> bool:
            return found.offset not in dies

        match r.choice(("nothing", "level", "thin", "deep")):
            case "level":
                await log.merge()
            case "thin":
                await log.merge(shape=log.thin(keep))
            case "deep":
                await log.merge()
                await log.merge(l0=False, extents=await log.leveled(), level=2, shape=log.thin(keep))
            case _:
                pass
        if r.random() < 0.2:
            partition = r.randrange(partitions)
            (high,) = (part.high_watermark for part in (await log.snapshot()).partitions if part.partition == partition)
            start = await log.metadata.agents.delete_records(log.topic.partition_ids[partition], r.randint(0, high))
            for place in [place for place in log.records if place[0] == partition and place[1] < start]:
                del log.records[place]
    return log


@pytest.mark.parametrize("seed", range(SEEDS))
def test_slices_of_any_log_hold_what_its_batches_hold(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    r = random.Random(seed)
    # given a log, read in pieces so small that batches cross reads, and windows end anywhere
    log = asyncio.run(some_log(r))
    monkeypatch.setattr(windows, "READ_BYTES", r.choice((700, 5_000, 8 << 20)))
    monkeypatch.setattr(windows, "SMALL_BYTES", r.choice((0, 2_000, 1 << 20)))
    monkeypatch.setattr(windows, "JOINED_BYTES", r.choice((1, 3_000, 4 << 20)))
    monkeypatch.setattr(windows, "AHEAD_BYTES", r.choice((1, 24 << 20)))

    # then all of it reads right, in slices of any size
    found = asyncio.run(log.scan(slice_bytes=r.choice((200, 500, 3_000, 1 << 20)), batch_rows=r.choice((1, 7, 65_536))))
    assert found == log.expected()

    # and so does any part of it
    snapshot = asyncio.run(log.snapshot())
    for part in snapshot.partitions:
        end = r.randint(part.log_start_offset, part.high_watermark)
        start = r.randint(part.log_start_offset, end)
        asked = {"starting": {part.partition: start}, "ending": {part.partition: end}}
        found = asyncio.run(log.scan(slice_bytes=r.choice((1_000, 3_000)), partitions=(part.partition,), **asked))
        assert found == log.expected(part.partition, start, end)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_narrowed_scan_misses_nothing_that_is_wanted(seed: int) -> None:
    # given batches whose first record is not their earliest one
    r = random.Random(2000 + seed)
    log = asyncio.run(some_log(r))
    times = sorted(each.timestamp_ms for each in log.expected())
    since_ms, low = r.choice([*times, NOW_MS + 20_000]), r.randint(0, 60)
    within = (low, low + r.randint(0, 60))

    found = asyncio.run(log.scan(slice_bytes=r.choice((200, 3_000, 1 << 20)), since_ms=since_ms, within=within))

    inside = [each for each in log.expected() if within[0] <= each.offset < within[1]]
    assert [each for each in found if each.timestamp_ms >= since_ms] == [
        each for each in inside if each.timestamp_ms >= since_ms
    ]
    assert set(found) <= set(inside)


@pytest.mark.parametrize("seed", range(6))
def test_the_latest_view_holds_the_last_record_of_each_key(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_jobs.scan import latest

    r = random.Random(1000 + seed)
    log = asyncio.run(some_log(r))
    # a table of a few keys, so that it overflows
    monkeypatch.setattr(latest, "DEDUPE_KEYS_MAX", keys_max := r.choice((1, 3, 50, 10_000)))
    monkeypatch.setattr(latest.latest_blocks, "__kwdefaults__", {"keys_max": keys_max})

    last: dict[tuple[int, bytes | None], Found] = {(each.partition, each.key): each for each in log.expected()}
    expected = sorted(each for each in last.values() if each.key is not None and each.value is not None)

    assert asyncio.run(log.scan(view="latest")) == expected
    # and the changes have the deleted keys, too
    changes = sorted(each for each in last.values() if each.key is not None)
    assert asyncio.run(log.scan(view="changes")) == changes
