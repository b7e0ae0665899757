"""Random damage in an extent of several batches: the sound batches before the damage are served byte for byte, and no
damaged batch is served.

The model is the list of batches as they were written, with their offsets.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.chance import examples
from tests.fixtures.flagged_extents import FlaggedExtent, stamped
from wire.batch import BATCH_HEADER_BYTES, CRC_COVERS_FROM, CorruptBatchError, read_header
from wire.records import NewRecord, build_batch

OFFSET_FIELDS = [*range(8), *range(12, 16)]
"""The bytes of a batch that its CRC does not cover and its framing does not need: base offset and leader epoch."""


@contextmanager
def small_blocks(read_bytes_min: int) -> Iterator[None]:
    """Small blocks, so that a few records fill several of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("storage.format.survey.BLOCK_BYTES", 400)
        patch.setattr("agents.read.plan.READ_BYTES_MIN", read_bytes_min)
        yield


def some_extent(chances: random.Random, kind: str) -> FlaggedExtent:
    offset = base = chances.choice([0, 1, 64, 1_000, 2**33])
    batches: list[bytes] = []
    for number in range(chances.randint(2, 8)):
        count = chances.randint(1, 4)
        offset += chances.choice([0, 0, 1, 50]) if kind == "thinned" else 0
        offset += 3 if kind == "thinned" and number == 1 else 0  # at least one gap
        size = chances.choice([0, 10, 300])
        batch = build_batch([NewRecord(at, b"k", chances.randbytes(size)) for at in range(count)])
        batches.append(stamped(batch, offset))
        offset += count
    last = offset - 1 + (chances.choice([0, 5]) if kind == "thinned" else 0)
    return FlaggedExtent(base, last, batches, is_from_l0=kind == "l0")


def damage(chances: random.Random, found: FlaggedExtent) -> set[int]:
    """Change some adjacent bytes, in one place or in two. Returns their positions."""
    positions: set[int] = set()
    for _ in range(chances.choice([1, 1, 2])):
        at = chances.randrange(len(found.data))
        positions.update(range(at, min(at + chances.choice([1, 1, 1, 4, 100]), len(found.data))))
    for position in positions:
        found.data[position] ^= chances.randint(1, 255)
    return positions


@pytest.mark.parametrize("kind", ["l0", "whole", "thinned"])
@settings(max_examples=examples(200), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_is_sound_before_damage_is_served_and_nothing_damaged_is(kind: str, seed: int) -> None:
    chances = random.Random(seed)
    found = some_extent(chances, kind)
    damaged = damage(chances, found)
    first_bad: int | None = None
    bad_bases: set[int] = set()
    is_head_damaged = False
    start = 0
    for number, batch in enumerate(found.batches):
        fields = {position - start for position in damaged if start <= position < start + len(batch)}
        if kind == "l0":
            fields -= set(OFFSET_FIELDS)  # these fields are assigned when the batch is read
        if fields:
            first_bad = number if first_bad is None else first_bad
            bad_bases.add(read_header(batch).base_offset)
        is_head_damaged = is_head_damaged or any(field < CRC_COVERS_FROM for field in fields)
        start += len(batch)
    with small_blocks(read_bytes_min=2_000):
        assert found.parts(chances) == found.parts(), "in pieces of any size"
        for offset in {found.base_offset, found.last_offset, chances.randint(found.base_offset, found.last_offset)}:
            read = found.read(offset, bytes_max=chances.choice([1, 500, 100_000]))
            # nothing damaged, nothing moved, nothing left out up to the last that is served
            rest = [batch for batch in found.batches if read_header(batch).last_offset >= offset]
            assert read.batches == rest[: len(read.batches)]
            assert not bad_bases & set(read.bases)
            # and all sound batches before the damage are served, where their offsets are certain
            is_certain = kind != "thinned" or not is_head_damaged
            if first_bad is not None and is_certain and rest and rest[0] in found.batches[:first_bad]:
                assert read.batches
                whole = found.read(offset)
                assert whole.batches == rest[: first_bad - len(found.batches) + len(rest)]
                assert whole.ends_in_damage
            # and so are the batches behind it, where no head is damaged and batches carry their offsets
            is_behind = first_bad is not None and rest and rest[0] not in found.batches[: first_bad + 1]
            if is_behind and kind != "l0" and not is_head_damaged and (base := read_header(rest[0]).base_offset):
                assert found.read(base).batches or base in bad_bases, "who goes round the damage reads on"


@pytest.mark.parametrize("kind", ["l0", "whole", "thinned"])
@settings(max_examples=examples(50), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_batch_that_is_damaged_after_the_survey_is_not_served(kind: str, seed: int) -> None:
    """The survey's bytes and the reader's come from different GETs."""
    chances = random.Random(seed)
    found = some_extent(chances, kind)
    # given: a survey that found everything sound, and then damage that only the CRC of a batch shows
    parts = found.parts()
    number = chances.randrange(len(found.batches))
    batch = found.batches[number]
    start = sum(map(len, found.batches[:number]))
    found.data[start + chances.randrange(BATCH_HEADER_BYTES, len(batch))] ^= chances.randint(1, 255)
    # then: a read that comes to it fails
    with small_blocks(read_bytes_min=1), pytest.raises(CorruptBatchError, match="CRC-32C"):
        found.read(read_header(batch).base_offset, parts=parts)


@pytest.mark.parametrize("kind", ["l0", "whole", "thinned"])
@settings(max_examples=examples(50), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_reads_of_any_size_go_on_where_the_last_one_ended(kind: str, seed: int) -> None:
    chances = random.Random(seed)
    found = some_extent(chances, kind)
    # given a damaged last byte
    found.data[-1] ^= 1
    with small_blocks(read_bytes_min=1):
        offset, taken, resume = found.base_offset, [], None
        bytes_max = 1
        for _ in range(200):
            read = found.read(offset, bytes_max=bytes_max, resume=resume)
            if read.ends_in_damage and not read.ranges:
                break
            taken += read.batches
            if read.batches:
                offset = read_header(read.batches[-1]).last_offset + 1
                resume = read.resume if chances.random() < 0.7 else None
            # a range that ends inside the first batch is requested again with more bytes
            bytes_max = chances.choice([1, 200, 2_000]) if read.batches else 2 * bytes_max
        else:
            pytest.fail(f"no end of it at offset {offset}")
    assert taken == list(found.batches[:-1])
