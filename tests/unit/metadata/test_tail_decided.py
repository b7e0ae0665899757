"""Up to which file id everything is decided."""

from __future__ import annotations

from metadata.contract.tail import Decided
from metadata.postgres.log.tail import Ahead, decided_by


def ahead(newest_id: int, oldest_xid: int, next_xid: int) -> Ahead:
    return Ahead(newest_id=newest_id, oldest_xid=oldest_xid, next_xid=next_xid)


def test_an_id_is_decided_once_all_have_ended_that_ran_when_it_was_seen() -> None:
    # given: id 8 is seen, while transactions 10 and 12 run; one of them may have drawn id 7
    first = decided_by(None, ahead(8, 10, 13))
    assert first == Decided(file_id=None, next_file_id=8, next_xid=13)
    # when only the first of them has ended, then nothing is decided
    assert decided_by(first, ahead(9, 12, 15)) is first
    # when both have
    assert decided_by(first, ahead(9, 13, 15)) == Decided(file_id=8, next_file_id=9, next_xid=15)


def test_what_is_decided_stays_so_though_the_newest_row_was_forgotten() -> None:
    before = Decided(file_id=8, next_file_id=9, next_xid=15)
    assert decided_by(before, ahead(3, 15, 16)) == Decided(file_id=9, next_file_id=9, next_xid=16)
