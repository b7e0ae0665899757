"""The demo's comparison of a compacted topic with a plain dict."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from siltstone.demo.aircraft import Last, LatestComparison, LatestFlights
from siltstone.demo.flights import Flight
from siltstone.demo.ledger import MismatchError


def source() -> Iterator[Flight]:
    yield Flight(0, b"N1", b"first of N1")
    yield Flight(1, None, b"nobody's")
    yield Flight(1, b"N2", b"first of N2")
    yield Flight(0, b"N1", b"last of N1")


def latest() -> LatestFlights:
    flights = LatestFlights(2)
    assert [flight.value for flight in flights.noted(source())] == [b"first of N1", b"first of N2", b"last of N1"]
    return flights


def test_the_last_flight_of_each_aircraft_is_kept_with_its_offset() -> None:
    # flights without a tail number are not written, so they have no offset
    assert latest().by_tail_number == {b"N1": Last(0, 1, b"last of N1"), b"N2": Last(1, 0, b"first of N2")}
    assert latest().records == 3


def test_exactly_the_last_flights_compare_equal() -> None:
    comparison = LatestComparison(latest().by_tail_number)
    comparison.add(1, 0, b"N2", b"first of N2")
    comparison.add(0, 1, b"N1", b"last of N1")
    assert comparison.finish() == 2


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ((0, 0, b"N1", b"first of N1"), "whose last flight is at offset 1"),
        ((1, 1, b"N1", b"last of N1"), "whose last flight is at offset 1 of partition 0"),
        ((0, 1, b"N1", b"another"), "the bytes differ from those sent for N1"),
        ((0, 1, b"N3", b"x"), "never sent"),
        ((0, 1, None, b"x"), "never sent"),
    ],
)
def test_anything_else_is_told_where_it_lies(record: tuple[int, int, bytes | None, bytes], told: str) -> None:
    with pytest.raises(MismatchError, match=f"partition {record[0]}, offset {record[1]}.*{told}"):
        LatestComparison(latest().by_tail_number).add(*record)


def test_an_aircraft_that_comes_twice_or_never_is_told() -> None:
    comparison = LatestComparison(latest().by_tail_number)
    comparison.add(0, 1, b"N1", b"last of N1")
    with pytest.raises(MismatchError, match="N1 came twice"):
        comparison.add(0, 1, b"N1", b"last of N1")
    with pytest.raises(MismatchError, match="1 aircraft did not come back, for example N2"):
        comparison.finish()
