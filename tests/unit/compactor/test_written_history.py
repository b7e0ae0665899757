"""The model of what readers see of a history, by hand: each line of it is a rule that a broken merge breaks."""

from __future__ import annotations

from tests.fixtures.written_history import PartitionHistory, Seen, Transaction, Written

COMMITTED, ABORTED = True, False


def history(*records: tuple[str, Transaction | None], markers: tuple[int, ...] = ()) -> PartitionHistory:
    """Keys are the first letters of the values. `markers`: offsets that no record has."""
    offsets = (each for each in range(len(records) + len(markers)) if each not in markers)
    written = [
        Written(Seen(offset, value[:1].encode(), value.encode()), transaction)
        for offset, (value, transaction) in zip(offsets, records, strict=True)
    ]
    return PartitionHistory(written)


def names(seen: list[Seen]) -> list[str]:
    return [(each.value or b"").decode() for each in seen]


def test_readers_of_committed_records_stop_before_the_oldest_open_transaction() -> None:
    good, bad, slow = Transaction(COMMITTED), Transaction(ABORTED), Transaction()
    # given the markers of the first two at 4 and 5, and a record of nobody behind an open one
    log = history(
        ("a plain", None), ("a good", good), ("a bad", bad), ("b slow", slow), ("b plain", None), markers=(4, 5)
    )
    assert (log.end, log.last_stable_offset(log.end)) == (7, 3)
    assert names(log.committed()) == ["a plain", "a good"]
    assert names(log.uncommitted()) == ["a plain", "a good", "a bad", "b slow", "b plain"]
    slow.outcome = COMMITTED
    assert (log.end, log.last_stable_offset(log.end)) == (8, 8)
    assert names(log.committed()) == ["a plain", "a good", "b slow", "b plain"]
    assert log.never_shown() == {b"a bad"}


def test_a_dedupe_leaves_the_newest_committed_record_of_each_key_and_nothing_of_aborted_ones() -> None:
    bad, slow = Transaction(ABORTED), Transaction()
    log = history(
        ("a old", None),
        ("a new", None),
        ("a bad", bad),
        ("b old", None),
        ("a slow", slow),
        ("b new", None),
        markers=(6,),
    )
    log.cleaned_through = log.last_stable_offset(log.end)
    assert log.cleaned_through == 4
    # the aborted record hides nothing, and the newer one above the bound does not either
    assert names(log.committed()) == ["a new", "b old"]
    assert names(log.uncommitted()) == ["a new", "b old", "a slow", "b new"]
    assert log.gone() == {b"a old", b"a bad"}
    slow.outcome = ABORTED
    log.cleaned_through = log.end
    assert names(log.committed()) == names(log.uncommitted()) == ["a new", "b new"]
    assert log.gone() == {b"a old", b"a bad", b"b old", b"a slow"}


def test_what_was_aborted_behind_an_open_transaction_stays_until_that_has_ended() -> None:
    slow, bad = Transaction(), Transaction(ABORTED)
    log = history(("a old", None), ("b slow", slow), ("a bad", bad), markers=(3,))
    log.cleaned_through = log.last_stable_offset(log.end)
    assert names(log.committed()) == ["a old"]
    assert names(log.uncommitted()) == ["a old", "b slow", "a bad"]
    assert log.gone() == set()
