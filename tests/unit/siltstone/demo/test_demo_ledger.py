"""The demo's comparison finds every difference between the records sent and the records read."""

from __future__ import annotations

import pytest

from siltstone.demo.ledger import Comparison, Ledger, MismatchError, frame

SENT = [(0, b"a", b"1"), (0, b"b", b"2"), (1, None, b"3"), (0, b"a", b"4")]


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger(2)
    for partition, key, value in SENT:
        ledger.add(partition, key, value)
    return ledger


def test_the_same_records_give_the_same_sum(ledger: Ledger) -> None:
    comparison = Comparison(ledger, 2)
    comparison.add(1, 0, None, b"3")
    for offset, (_, key, value) in enumerate(sent for sent in SENT if sent[0] == 0):
        assert not comparison.done()
        comparison.add(0, offset, key, value)
    assert comparison.done()
    assert comparison.finish() == ledger.sha256()


def test_a_changed_value_is_found_at_its_place(ledger: Ledger) -> None:
    comparison = Comparison(ledger, 2)
    comparison.add(0, 0, b"a", b"1")
    with pytest.raises(MismatchError, match="partition 0, offset 1: the record here was never sent"):
        comparison.add(0, 1, b"b", b"X")


def test_a_reordered_record_is_found_and_its_place_told(ledger: Ledger) -> None:
    comparison = Comparison(ledger, 2)
    with pytest.raises(MismatchError, match="partition 0, offset 0: the record here was sent at place 2"):
        comparison.add(0, 0, b"a", b"4")


def test_a_gap_is_found(ledger: Ledger) -> None:
    with pytest.raises(MismatchError, match="partition 0: a gap: offset 1 follows -1"):
        Comparison(ledger, 2).add(0, 1, b"b", b"2")


def test_a_record_that_comes_twice_is_found(ledger: Ledger) -> None:
    comparison = Comparison(ledger, 2)
    comparison.add(0, 0, b"a", b"1")
    with pytest.raises(MismatchError, match="came twice"):
        comparison.add(0, 0, b"a", b"1")


def test_a_record_too_many_is_found(ledger: Ledger) -> None:
    comparison = Comparison(ledger, 2)
    comparison.add(1, 0, None, b"3")
    with pytest.raises(MismatchError, match="partition 1, offset 1: the record here was never sent"):
        comparison.add(1, 1, None, b"4")


def test_missing_records_are_counted_by_partition(ledger: Ledger) -> None:
    comparison = Comparison(ledger, 2)
    comparison.add(1, 0, None, b"3")
    with pytest.raises(MismatchError, match="records are missing: partition 0: 0 of 3"):
        comparison.finish()


def test_null_and_empty_and_shifted_bytes_are_told_apart() -> None:
    assert len({frame(None, b""), frame(b"", b""), frame(b"", None), frame(b"ab", b"c"), frame(b"a", b"bc")}) == 5


def test_a_digest_is_found_only_where_a_record_starts() -> None:
    # given a partition in which the wanted digest also occurs shifted by a byte
    ledger = Ledger(1)
    for number in range(50):
        ledger.add(0, None, str(number).encode())
    joined = b"".join(ledger.digest_at(0, place) for place in range(50))
    # when a digest that spans two records is searched, then it is not found
    assert ledger.find(0, joined[1:17]) == -1
    assert ledger.find(0, ledger.digest_at(0, 37)) == 37
