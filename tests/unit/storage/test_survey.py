"""The batches of a flagged extent that may be served: only those whose offsets are certain."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence

import pytest

from agents.read import surveys
from agents.read.blocks import BlockReader
from agents.read.cache import BLOCK_BYTES, BlockCache
from agents.read.surveys import Surveys
from metadata.contract.leveled import LeveledExtent
from runtime.metrics import Metrics
from storage.format.flag_reason import with_written_crc, written_crc
from storage.memory import MemoryStore
from storage.objects import ObjectStoreError
from tests.fixtures.flagged_extents import FlaggedExtent, stamped
from tests.fixtures.sources import source_of
from wire.batch import CRC_POSITION, CorruptBatchError, read_header
from wire.crc import crc32c
from wire.records import NewRecord, build_batch

BASE = 100
BODY = 70
"""The position of a byte inside the records of a batch."""


def batch(count: int = 2, *, value_bytes: int = 10) -> bytes:
    return build_batch([NewRecord(1_000, b"k", bytes(value_bytes)) for _ in range(count)])


def extent_of(*base_offsets: int, last_offset: int | None = None, **options: bool) -> FlaggedExtent:
    """Batches of two records at these offsets."""
    batches = [stamped(batch(), base) for base in base_offsets]
    return FlaggedExtent(BASE, base_offsets[-1] + 1 if last_offset is None else last_offset, batches, **options)


def damage(found: FlaggedExtent, number: int, byte: int) -> None:
    start = sum(len(each) for each in found.batches[:number])
    found.data[start + byte] ^= 0x40


def served(found: FlaggedExtent) -> list[tuple[int, int]]:
    return [(each.base_offset, each.end_offset - 1) for each in found.parts().stretches]


WHOLE = (100, 102, 104, 106)
THINNED = (100, 105, 110, 120)
"""Dedupe has removed the batches between them."""


# Offsets that batches carry, proved by the sum


@pytest.mark.parametrize(("bases", "last"), [(WHOLE, 107), (THINNED, 130)])
def test_damaged_records_cost_their_batch_alone(bases: Sequence[int], last: int) -> None:
    found = extent_of(*bases, last_offset=last)
    damage(found, 1, BODY)
    before = (BASE, bases[0] + 1)
    assert served(found) == [before, (bases[2], last)]
    # everything from the end of the sound batches to the next sound batch is damaged; the damaged batch's end is
    # unknown
    for offset in range(bases[0] + 2, bases[2]):
        assert (found.read(offset).batches, found.read(offset).ends_in_damage) == ([], True)
    assert found.read(BASE).bases == [bases[0]] and found.read(BASE).ends_in_damage
    assert found.read(bases[2]).bases == list(bases[2:]) and not found.read(bases[2]).ends_in_damage
    # behind the last batch nothing is damaged, and nothing exists
    assert not found.read(last).ends_in_damage


def test_several_damaged_batches_leave_what_lies_between_them() -> None:
    found = extent_of(*range(100, 120, 2))
    for number in (0, 1, 4, 9):
        damage(found, number, BODY)
    assert served(found) == [(104, 107), (110, 117)]


@pytest.mark.parametrize("bases", [WHOLE, THINNED])
def test_an_extent_that_turns_out_sound_is_served_whole(bases: Sequence[int]) -> None:
    found = extent_of(*bases)
    assert served(found) == [(BASE, bases[-1] + 1)]
    assert found.read(BASE).batches == list(found.batches)


def test_what_is_damaged_since_is_not_served() -> None:
    found = extent_of(*WHOLE)
    parts = found.parts()
    damage(found, 1, BODY)
    with pytest.raises(CorruptBatchError, match="CRC-32C of the batch at byte"):
        found.read(BASE, parts=parts)


# Damaged heads


@pytest.mark.parametrize("byte", [7, 15, 8, 11, 16, CRC_POSITION])
def test_of_a_thinned_extent_nothing_is_served_if_a_head_is_damaged(byte: int) -> None:
    """A base offset may have moved within its gap, and no batch's CRC would show it."""
    found = extent_of(*THINNED, last_offset=200)
    damage(found, 2, byte)
    assert served(found) == []


def test_a_base_offset_that_moved_is_not_believed_because_another_batch_is_damaged_too() -> None:
    found = extent_of(*THINNED, last_offset=200)
    found.data[len(found.batches[0]) + 7] ^= 0x01
    damage(found, 3, BODY)
    assert served(found) == []


@pytest.mark.parametrize("byte", [0, 7, 15, 8, 11, 16, CRC_POSITION])
def test_of_a_whole_extent_what_lies_before_a_damaged_head_is_served(byte: int) -> None:
    found = extent_of(*WHOLE)
    damage(found, 2, byte)
    assert served(found) == [(100, 103)]
    assert found.read(BASE).batches == list(found.batches[:2])


def test_a_batch_that_says_two_gigabytes_ends_what_is_known() -> None:
    found = extent_of(*WHOLE)
    struct.pack_into(">i", found.data, len(found.batches[0]) + 8, 2**31 - 1)
    assert served(found) == [(100, 101)]


@pytest.mark.parametrize("is_from_l0", [True, False])
def test_an_extent_that_is_cut_off_is_served_up_to_its_last_whole_batch(is_from_l0: bool) -> None:
    found = extent_of(*WHOLE, is_from_l0=is_from_l0)
    del found.data[-5:]
    assert served(found) == [(100, 105)]


# Batches without offsets


def test_batches_from_l0_are_served_up_to_the_first_damaged_one_with_offsets_that_follow() -> None:
    found = extent_of(*WHOLE, is_from_l0=True)
    damage(found, 2, BODY)
    assert served(found) == [(100, 103)]
    assert (read_header(bytes(found.data)).base_offset, found.read(101).bases) == (0, [100, 102])
    assert found.read(BASE).batches == list(found.batches[:2])


def test_whatever_producers_wrote_as_base_offset_counts_for_nothing() -> None:
    found = extent_of(*WHOLE, is_from_l0=True)
    damage(found, 2, BODY)
    struct.pack_into(">q", found.data, 0, 77)
    assert found.read(BASE).batches == list(found.batches[:2])


@pytest.mark.parametrize("counted", [7, 9])
def test_where_sound_batches_have_other_counts_than_the_commit_gave_none_is_served(counted: int) -> None:
    """One of the batches is not the one that was counted, and nothing tells which."""
    found = extent_of(*WHOLE, last_offset=BASE + counted - 1, is_from_l0=True)
    assert served(found) == []
    assert found.read(BASE).ends_in_damage


def test_bytes_that_nobody_summed_and_dedupe_thinned_are_not_even_read() -> None:
    extent = extent_of(*THINNED).extent._replace(flagged_reason="of an older release")
    assert not surveys.ExtentSurvey(extent).goes_on


# The messages


def test_a_reason_tells_the_sum_at_its_end_and_nowhere_else() -> None:
    assert written_crc(with_written_crc("its bytes have CRC-32C 00000001", 0xAB)) == 0xAB
    for reason in ("", "written with CRC-32C 000000ab", with_written_crc("damaged", 1) + " or so", "; written with"):
        assert written_crc(reason) is None


# Reading


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.gets: list[tuple[int, int]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.gets.append((start, length))
        await self.gate.wait()
        return await super().get_range(key, start, length)


async def stored(found: FlaggedExtent, store: MemoryStore, *, key: str = "l1/file") -> LeveledExtent:
    extent = found.extent._replace(key=key)
    body = bytes(extent.position) + bytes(found.data)
    body += bytes(extent.file_size_bytes - len(body))
    await store.put_if_absent(extent.key, body, crc32c=crc32c(body))
    return extent


def surveys_over(store: MemoryStore) -> Surveys:
    blocks = BlockReader(source=source_of(store), cache=BlockCache(0), pool="cold", concurrency=4, metrics=Metrics())
    return Surveys(blocks)


async def test_an_extent_is_looked_through_once_in_long_reads_whoever_asks() -> None:
    # given 20 MiB whose last batch is damaged
    batches = [stamped(batch(1, value_bytes=BLOCK_BYTES // 2), BASE + number) for number in range(40)]
    found = FlaggedExtent(BASE, BASE + 39, batches)
    found.data[-1] ^= 1
    store = CountingStore()
    extent = await stored(found, store)
    looking = surveys_over(store)
    # when several readers ask at the same time, and later
    answers = await asyncio.gather(*(looking.read(extent) for _ in range(5)))
    assert await looking.read(extent) is answers[0]
    # then
    assert answers == [found.parts()] * 5
    assert len(store.gets) <= 1 + -(-extent.length // (8 * BLOCK_BYTES))
    assert len(answers[0].stretches[0].blocks) >= 10, "a read begins near its offset, not at the extent's start"
    await looking.close()


async def test_who_asks_does_not_wait_for_ever_and_finds_the_answer_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surveys, "WAIT_MS_MAX", 20.0)
    store = CountingStore()
    found = extent_of(*WHOLE)
    extent = await stored(found, store)
    looking = surveys_over(store)
    store.gate.clear()
    with pytest.raises(ObjectStoreError, match="still being surveyed"):
        await looking.read(extent)
    monkeypatch.setattr(surveys, "WAIT_MS_MAX", 20_000.0)
    store.gate.set()
    assert await looking.read(extent) == found.parts()
    assert len(store.gets) == 1
    await looking.close()


async def test_a_store_that_is_silent_for_one_extent_does_not_stop_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surveys, "STORE_WAIT_MS_MAX", 20.0)
    store = CountingStore()
    found = extent_of(*WHOLE)
    silent, other = await stored(found, store, key="l1/silent"), await stored(found, store, key="l1/other")
    looking = surveys_over(store)
    store.gate.clear()
    with pytest.raises(ObjectStoreError, match="was not read in 20 ms"):
        await looking.read(silent)
    store.gate.set()
    assert await looking.read(other) == found.parts()
    await looking.close()


async def test_a_store_that_fails_is_asked_again() -> None:
    store = CountingStore()
    found = extent_of(*WHOLE)
    extent = await stored(found, store)
    looking = surveys_over(store)
    body = await store.get(extent.key)
    await store.delete_many([extent.key])
    with pytest.raises(ObjectStoreError):
        await looking.read(extent)
    await store.put_if_absent(extent.key, body, crc32c=crc32c(body))
    assert await looking.read(extent) == found.parts()
    await looking.close()


async def test_what_is_remembered_is_bounded() -> None:
    store = CountingStore()
    found = extent_of(*WHOLE)
    damage(found, 1, BODY)
    blocks = BlockReader(
        source=source_of(store),
        cache=BlockCache(1 << 20),
        pool="cold",
        concurrency=4,
        metrics=Metrics(),
    )
    looking = Surveys(blocks, entries_max=12)
    extents = [await stored(found, store, key=f"l1/{number}") for number in range(5)]
    for extent in extents:
        await looking.read(extent)
        assert looking.entries <= 12
    assert [looking.get(extent) is not None for extent in extents] == [False, False, False, True, True]
    await looking.close()
