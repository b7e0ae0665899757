"""Random partitions and marks: the compiled eraser gives the oracle's bytes, and both take the marked records alone.

Hypothesis draws seeds and prints the one that fails: `random_partition(seed)` makes that partition again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.cleaning import payloads as clean_payloads
from compactor.erasing import partition_eraser
from compactor.erasing.marks_table import MarksTable
from compactor.erasing.oracle import erase
from compactor.erasing.partition_eraser import PartitionEraser
from metadata.erasures.contract import KeyMark
from tests.fixtures.chance import examples
from tests.fixtures.cleaning import Stored, split, stored, uncompressed_sizes, windows_of
from tests.fixtures.erasures import hash_of
from tests.property.cleaner_partitions import KEYS, random_partition
from wire.batch import read_header
from wire.kernels.batches import read_batches

SEEDS = st.integers(0, 2**48)
STRANGERS = [b"nobody-%d" % n for n in range(40)]


def random_marks(r: random.Random, batches: Sequence[bytes]) -> dict[bytes, list[tuple[int, bool]]]:
    """By key: before_offset and tombstone of each of its marks."""
    headers = [read_header(batch) for batch in batches]
    edges = [edge for header in headers for edge in (header.base_offset, header.last_offset, header.next_offset)]
    first, end = headers[0].base_offset, headers[-1].next_offset
    # Often no mark reaches as far as the last batch, or ends within one.
    farthest = r.choice((end, end, r.choice(edges), r.randint(first, end)))
    keys = r.sample([*KEYS, *STRANGERS], r.choice((1, 2, 8, len(KEYS))))
    return {
        key: [
            (min(r.choice((end, end, r.choice(edges), r.randint(first, end), 0)), farthest), r.random() < 0.3)
            for _ in range(r.choice((1, 1, 1, 2, 3)))
        ]
        for key in keys
    }


def as_marks(r: random.Random, marks: dict[bytes, list[tuple[int, bool]]]) -> list[KeyMark]:
    found = [KeyMark(hash_of(key), *mark) for key, each in marks.items() for mark in each]
    r.shuffle(found)
    return found


@settings(max_examples=examples(400), deadline=None)
@given(seed=SEEDS)
def test_the_kernels_give_the_bytes_of_the_oracle(seed: int) -> None:
    partition, r = random_partition(seed), random.Random(seed)
    marks = as_marks(r, random_marks(r, partition.batches))
    ours: list[bytes] = []
    with (
        patch.object(clean_payloads, "CHUNK_BYTES", r.choice((100, 3000, 1 << 20))),
        patch.object(clean_payloads, "PLAIN_CHUNK_BYTES", r.choice((100, 3000, 1 << 20))),
        patch.object(clean_payloads, "CHUNK_RECORDS", r.choice((1, 40, 1 << 20))),
        patch.object(partition_eraser, "_LOOKED_UP_AT_ONCE", r.choice((1, 16, 4096))),
    ):
        eraser, table = PartitionEraser(MarksTable(marks)), MarksTable(marks)
        for window in windows_of(partition.batches, partition.cuts[0]):
            erased = eraser.erase(window, read_batches(window))
            after = read_batches(erased.data)
            # Batches above every mark are not read, so their true sizes stay unknown.
            read = after.base_offsets < table.end_offset
            true_sizes = np.array(uncompressed_sizes(erased.data), dtype=np.int64)
            after = after._replace(uncompressed_sizes=np.where(read, true_sizes, after.uncompressed_sizes))
            for name, column, expected in zip(after._fields, erased.table, after, strict=True):
                assert column.tolist() == expected.tolist(), name
            assert (erased.data is window) == (not erased.erased)
            before = read_batches(window).record_counts.sum()
            assert erased.erased == before - erased.table.record_counts.sum()
            ours += split(erased.data)

    assert ours == erase(partition.batches, marks)


@settings(max_examples=examples(400), deadline=None)
@given(seed=SEEDS)
def test_an_erasing_takes_the_marked_records_and_nothing_else(seed: int) -> None:
    partition, r = random_partition(seed), random.Random(seed)
    marks = random_marks(r, partition.batches)
    erased = erase(partition.batches, as_marks(r, marks))

    def goes(record: Stored) -> bool:
        mine = marks.get(record.key, ()) if record.key is not None else ()
        return any(record.offset < before or (record.offset == before and tombstone) for before, tombstone in mine)

    for before, after in zip(partition.batches, erased, strict=True):
        old, new = read_header(before), read_header(after)
        if old.is_control:
            assert after == before
            continue
        expected = [record for record in stored([before]) if not goes(record)]
        assert stored([after]) == expected
        if len(expected) == old.records_count:
            assert after == before
        for name in ("base_offset", "last_offset", "partition_leader_epoch", "producer_id", "producer_epoch"):
            assert getattr(new, name) == getattr(old, name)
        assert new.base_sequence == old.base_sequence
        assert new.is_transactional == old.is_transactional
        assert new.is_log_append_time == old.is_log_append_time
        if expected:
            assert (new.codec, new.has_delete_horizon) == (old.codec, old.has_delete_horizon)
            assert new.base_timestamp_ms == old.base_timestamp_ms
        if not expected or old.is_log_append_time:
            assert new.max_timestamp_ms == old.max_timestamp_ms
        elif len(expected) < old.records_count:
            assert new.max_timestamp_ms == max(record.timestamp_ms for record in expected)


def test_a_key_is_found_among_many_and_no_other_is() -> None:
    # given more keys than a stretch of the table holds, some with marks that agree in the leading words
    keys = [b"key-%d" % n for n in range(5000)]
    marks = [KeyMark(hash_of(key), number) for number, key in enumerate(keys)]
    alike = [KeyMark(hash_of(keys[7])[:24] + bytes([n]) * 8, 10**6 + n) for n in range(200)]
    table = MarksTable([*marks, *alike])

    # when all keys are looked up, with strangers and null keys in between
    wanted = [mark.key_hash for mark in (*marks, *alike)] + [hash_of(key) for key in STRANGERS] + [bytes(32)] * 3
    hashes = np.frombuffer(b"".join(wanted), dtype=">u8").astype(np.uint64).reshape(-1, 4)
    lengths = np.full(len(wanted), 5, dtype=np.int32)
    lengths[-2:] = -1
    found = table.ends_of(hashes, lengths).tolist()

    # then each has its own offset
    assert found == [mark.before_offset for mark in (*marks, *alike)] + [0] * (len(STRANGERS) + 3)
    assert table.end_offset == 10**6 + 199
    # and a null key has none, even if some key's hash were all zeros
    zeros = MarksTable([KeyMark(bytes(32), 9, True)])
    assert zeros.ends_of(hashes[-3:], lengths[-3:]).tolist() == [10, 0, 0]


def test_a_partition_without_marks_is_left_alone() -> None:
    batches = random_partition(3).batches
    window = b"".join(batches)
    assert PartitionEraser(MarksTable([])).erase(window, read_batches(window)).data is window
    assert erase(batches, []) == batches
