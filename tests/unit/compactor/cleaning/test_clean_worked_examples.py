"""Well-known examples of compaction, executed: a balance log, three users, an address table, a strip."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fixtures.cleaning import CLEANERS, DELETE_RETENTION_MS, Cleaned, Log, bounds_of, pairs
from tests.fixtures.record_batches import NOW_MS

Clean = Callable[..., Cleaned]
ADDRESSES = [
    ("1001", "4 Privet Dr"),
    ("1002", "221B Baker Street"),
    ("1003", "Milkman Road"),
    ("1002", "21 Jump St"),
    ("1001", "Paper St"),
    ("1001", "Paper Road 21"),
]
BALANCES = [
    ("user:101", "balance=500"),
    ("user:102", "balance=1200"),
    ("user:101", "balance=480"),
    ("user:103", "balance=300"),
    ("user:102", "balance=1180"),
    ("user:101", "balance=460"),
    ("user:104", "balance=900"),
    ("user:103", None),
    ("user:101", "balance=440"),
    ("user:105", "balance=750"),
]
STRIP = [("K1", "A"), ("K2", "B"), ("K1", "C"), ("K3", "D"), ("K2", "E"), ("K1", "F"), ("K3", "G"), ("K2", "H")]


@pytest.fixture(params=CLEANERS)
def clean(request: pytest.FixtureRequest) -> Clean:
    return CLEANERS[request.param]


@pytest.fixture(params=[1, 3, 100])
def log_of(request: pytest.FixtureRequest) -> Callable[[list[tuple[str, str | None]]], Log]:
    """The records in batches of one, of three, and in one batch."""

    def make(records: list[tuple[str, str | None]]) -> Log:
        log = Log()
        for start in range(0, len(records), request.param):
            log.append(*records[start : start + request.param])
        return log

    return make


def test_ten_balances_become_five_and_four_once_the_deleted_user_is_forgotten(
    clean: Clean, log_of: Callable[..., Log]
) -> None:
    log = log_of(BALANCES)

    cleaned = clean(log.batches, log.bounds())

    assert pairs(cleaned.records) == [
        (4, "user:102", "balance=1180"),
        (6, "user:104", "balance=900"),
        (7, "user:103", None),
        (8, "user:101", "balance=440"),
        (9, "user:105", "balance=750"),
    ]
    for now_ms, offsets in (
        (NOW_MS + DELETE_RETENTION_MS - 1, [4, 6, 7, 8, 9]),
        (NOW_MS + DELETE_RETENTION_MS, [4, 6, 8, 9]),
    ):
        assert clean(cleaned.batches, bounds_of(log.batches, now_ms=now_ms)).offsets == offsets


def test_of_three_users_the_last_value_of_each_survives(clean: Clean, log_of: Callable[..., Log]) -> None:
    log = log_of([("alice", "1"), ("bob", "1"), ("alice", "2"), ("carol", "1"), ("bob", "2"), ("alice", "3")])

    assert pairs(clean(log.batches, log.bounds()).records) == [(3, "carol", "1"), (4, "bob", "2"), (5, "alice", "3")]


def test_the_address_table_keeps_the_newest_address_of_each(clean: Clean, log_of: Callable[..., Log]) -> None:
    log = log_of([("before", "the table begins at offset 1"), *ADDRESSES])

    assert pairs(clean(log.batches, log.bounds()).records)[1:] == [
        (3, "1003", "Milkman Road"),
        (4, "1002", "21 Jump St"),
        (6, "1001", "Paper Road 21"),
    ]


def test_a_head_replaces_what_the_tail_holds(clean: Clean, log_of: Callable[..., Log]) -> None:
    # given a clean tail and a head after it
    log = log_of([("before", "the table begins at offset 1"), *ADDRESSES[:3]])
    tail = clean(log.batches, log.bounds())
    assert tail.batches == log.batches
    log.append(*ADDRESSES[3:])

    assert clean(log.batches, log.bounds()).offsets == [0, 3, 4, 6]


def test_of_the_strip_each_key_keeps_its_last_value(clean: Clean, log_of: Callable[..., Log]) -> None:
    """K1:F stays beside K1:I, as in the usual drawing, while I lies above the bound."""
    log = log_of([*STRIP, ("K1", "I")])

    young = clean(log.batches, log.bounds(first_uncleanable_offset=8, last_stable_offset=8))
    all_of_it = clean(log.batches, log.bounds())

    assert [(key, value) for _, key, value in pairs(young.records)] == [
        ("K1", "F"),
        ("K3", "G"),
        ("K2", "H"),
        ("K1", "I"),
    ]
    assert pairs(all_of_it.records) == [(6, "K3", "G"), (7, "K2", "H"), (8, "K1", "I")]


def test_a_deleted_key_is_a_tombstone_and_then_nothing(clean: Clean, log_of: Callable[..., Log]) -> None:
    log = log_of([("K4", "X"), ("K4", None), ("K5", "Y")])

    once = clean(log.batches, log.bounds())
    twice = clean(once.batches, bounds_of(log.batches, now_ms=NOW_MS + DELETE_RETENTION_MS))

    assert pairs(once.records) == [(1, "K4", None), (2, "K5", "Y")]
    assert pairs(twice.records) == [(2, "K5", "Y")]
