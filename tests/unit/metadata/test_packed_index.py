"""The packed index and the stored results: byte layouts that SQL also writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.contract.l0_commit import BatchResult
from metadata.rules.object_keys import key_hour, key_level
from metadata.rules.packed_index import IndexRow, PackedIndexError, decode_index, encode_index
from metadata.rules.results import ResultsError, decode_results, encode_results
from tests.contract.metadata_worlds import duplicate, stored

INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
ROWS = st.lists(st.builds(IndexRow, INT32, INT64, INT64, INT32, INT32, INT64, INT64), max_size=5)
RESULTS = st.lists(
    st.builds(
        BatchResult,
        error=st.integers(-(2**15), 2**15 - 1),
        duplicate=st.booleans(),
        base_offset=INT64,
        log_append_time_ms=INT64,
    ),
    max_size=5,
)


@given(ROWS)
def test_rows_come_back_as_they_were_packed(rows: list[IndexRow]) -> None:
    assert decode_index(encode_index(rows)) == rows


@given(RESULTS)
def test_results_come_back_as_they_were_stored(results: list[BatchResult]) -> None:
    assert decode_results(encode_results(results)) == results


def test_the_index_is_laid_out_byte_by_byte_as_specified() -> None:
    packed = encode_index([IndexRow(1, 2, 3, 4, 5, -1, 7)])

    assert (
        packed.hex() == "01" + "00000001" + f"{2:016x}" + f"{3:016x}" + "00000004" + "00000005" + "f" * 16 + f"{7:016x}"
    )


def test_the_results_are_laid_out_byte_by_byte_as_specified() -> None:
    assert encode_results([duplicate(9, 8)]).hex() == "0000" + "01" + f"{9:016x}" + f"{8:016x}"


@pytest.mark.parametrize("cut_short", [b"", b"\x02", b"\x01\x00", encode_index([IndexRow(1, 2, 3, 4, 5, 6, 7)])[:-1]])
def test_bytes_that_are_no_index_are_refused(cut_short: bytes) -> None:
    with pytest.raises(PackedIndexError):
        decode_index(cut_short)


def test_a_value_too_large_for_its_field_is_refused() -> None:
    with pytest.raises(PackedIndexError):
        encode_index([IndexRow(2**31, 0, 0, 0, 0, 0, 0)])


@pytest.mark.parametrize("broken", [b"\x00", encode_results([stored(1)])[:-1], b"\x00\x00\x02" + bytes(16)])
def test_bytes_that_are_no_results_are_refused(broken: bytes) -> None:
    with pytest.raises(ResultsError):
        decode_results(broken)


def test_the_hour_and_level_are_read_out_of_a_key() -> None:
    assert key_hour("l0/a7/2024010107/1-0-x.silt") == 2024010107
    assert (key_level("l0/a7/2024010107/x"), key_level("l2/a7/2024010107/x")) == (0, 2)
    assert (key_hour("x.silt"), key_level("x.silt")) == (None, 0)
