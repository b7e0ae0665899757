"""The stored answer to a commit, in each of its forms."""

from __future__ import annotations

import pytest

from metadata.contract.l0_commit import BatchResult
from metadata.rules.packed_index import IndexRow, encode_index
from metadata.rules.results import ResultsError, answers, encode_results
from tests.contract.metadata_worlds import batch, duplicate, refused, stored

BATCHES = [batch(1, 3), batch(1, 2, log_append_time_ms=7), batch(4)]
INDEX = encode_index([IndexRow(1, 10, 14, 0, 2, 0, 0), IndexRow(4, 99, 99, 2, 1, 0, 0)])
ANSWERS = [stored(10), stored(13, 7), stored(99)]


def test_the_answer_of_a_usual_file_follows_from_its_index_or_from_the_bases_that_are_left_of_it() -> None:
    bases = b"\x03" + (10).to_bytes(8) + (99).to_bytes(8)
    assert answers(b"", INDEX, BATCHES) == ANSWERS
    assert answers(bases, b"\x01", BATCHES) == ANSWERS


def test_the_answer_of_any_other_file_is_stored_batch_by_batch() -> None:
    rows: list[BatchResult] = [refused(45), duplicate(8), stored(9)]
    assert answers(encode_results(rows), b"\x01", BATCHES) == rows
    assert answers(b"", b"\x01", []) == []


@pytest.mark.parametrize(
    ("packed", "index"),
    [
        (b"", b"\x01"),
        (b"", encode_index([IndexRow(1, 10, 14, 0, 2, 0, 0)])),
        (b"", INDEX + INDEX[1:]),
        (b"\x03" + bytes(8), INDEX),
        (b"\x03" + bytes(24), INDEX),
        (b"\x03" + bytes(17), INDEX),
        (encode_results([stored(1)]), INDEX),
        (bytes(18), INDEX),
    ],
)
def test_an_answer_to_other_batches_is_none(packed: bytes, index: bytes) -> None:
    with pytest.raises(ResultsError):
        answers(packed, index, BATCHES)
