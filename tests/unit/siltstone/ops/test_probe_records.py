"""The probe's records, and when an acknowledged one counts as lost."""

from __future__ import annotations

import pytest

from siltstone.kafka.record_format import OutputRecord
from siltstone.ops.probe.records import Expected, LostRecordError, Sent, decoded

BEFORE, NEW, OTHER = (Sent("me", sequence, 0, 1_000 + sequence) for sequence in (1, 2, 7))


def found(*placed: tuple[int, Sent | bytes | None]) -> dict[int, OutputRecord]:
    return {
        offset: OutputRecord(
            topic="t",
            partition=0,
            offset=offset,
            timestamp_ms=0,
            key=None,
            value=sent.encoded().value if isinstance(sent, Sent) else sent,
            headers=(),
        )
        for offset, sent in placed
    }


def test_a_record_is_read_as_it_was_written_and_what_is_no_probes_is_told() -> None:
    assert decoded(NEW.encoded().value) == NEW
    assert NEW.encoded().key is None, "a compacted topic would take it out"
    for value in (None, b"", b"\xff", b"null", b"7", b"[]", b"{}", b'{"of": "siltstone-probe"}', b'{"of": "other"}'):
        assert decoded(value) is None
    newer = (NEW.encoded().value or b"").replace(b"{", b'{"more": 1, ', 1)
    assert decoded(newer) == NEW


def test_the_record_and_the_one_before_are_there_among_those_of_other_probes() -> None:
    expected = Expected("t-0", 5, NEW, (3, BEFORE))
    assert expected.position == 3
    expected.read(found((3, BEFORE), (4, OTHER)), 5)
    assert not expected.is_done and expected.position == 5
    expected.read(found((5, NEW)), 6)
    assert expected.is_done


def test_an_agent_that_does_not_know_it_yet_is_asked_again() -> None:
    expected = Expected("t-0", 5, NEW, None)
    expected.deleted()
    assert not expected.is_done and expected.position == 5
    expected.read(found((5, NEW)), 6)
    assert expected.is_done


def test_a_record_that_retention_took_is_not_lost() -> None:
    expected = Expected("t-0", 5, NEW, (3, BEFORE))
    expected.deleted()
    expected.read(found((5, NEW)), 6)
    assert expected.is_done


@pytest.mark.parametrize(
    ("placed", "offset", "is_there"),
    [
        pytest.param(((3, BEFORE), (5, OTHER)), 5, r"Sent\(probe='me', sequence=7", id="another probe's"),
        pytest.param(((3, BEFORE), (5, b"x")), 5, "another record", id="somebody's"),
        pytest.param(((3, BEFORE), (5, None)), 5, "another record", id="a tombstone"),
        pytest.param(((3, BEFORE), (6, NEW)), 5, "nothing", id="moved"),
        pytest.param(((4, OTHER), (5, NEW)), 3, "nothing", id="the one before is gone"),
    ],
)
def test_an_acknowledged_record_that_is_not_there_is_lost(
    placed: tuple[tuple[int, Sent | bytes | None], ...], offset: int, is_there: str
) -> None:
    expected = Expected("t-0", 5, NEW, (3, BEFORE))
    with pytest.raises(LostRecordError, match=f"at offset {offset}, where record . was acknowledged, is {is_there}"):
        expected.read(found(*placed), 7)


@pytest.mark.parametrize("offset", [3, 2])
def test_a_log_that_went_back_is_told(offset: int) -> None:
    with pytest.raises(LostRecordError, match=f"at offset {offset}, after record 1 at offset 3: the log went back"):
        Expected("t-0", offset, NEW, (3, BEFORE))
