"""The account of steady clients: lines, pauses, losses, the tables of `bench fleet`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bench.cases.together.fleet import Run, Span, replaced_table, slept_table
from bench.registry import Size
from bench.steady.account import Account, NotALineError, doubled, lost, passed_over
from bench.steady.clients import AIOKAFKA, CLIENTS, JAVA_3, JAVA_3_REBOOTSTRAP, JAVA_4, at_hand
from bench.steady.crowd import Outcome
from bench.steady.programs.protocol import MEMBER, READER, WRITER, Job, job_of


def account(*lines: str) -> Account:
    """Lines that came one a second, the first at second 0."""
    said = Account()
    for at_s, line in enumerate(lines):
        said.take(line, float(at_s))
    return said


# ---- lines


def test_every_line_of_the_protocol_is_kept_with_its_time() -> None:
    said = account("ready", "b 6", "r 0 0 a:00000000", "r 5 7 with blanks in it", "e KafkaError: not now", "b 4")
    assert said.ready
    assert said.rebalances == [(1.0, 6), (5.0, 4)]
    assert said.found == {(0, 0): "a:00000000", (5, 7): "with blanks in it"}
    assert said.finds == [(2.0, (0, 0)), (3.0, (5, 7))]
    assert said.errors == [(4.0, "KafkaError: not now")]
    assert account("w 1 2 a:00000000").acknowledged == {(1, 2): "a:00000000"}


@pytest.mark.parametrize("line", ["", "w", "w 1 2", "w one 2 a", "r 1 two a", "b", "b many", "x 1", "ready?"])
def test_anything_else_is_no_line(line: str) -> None:
    with pytest.raises(NotALineError):
        Account().take(line, 0.0)


def test_a_place_that_comes_twice_is_counted_and_one_that_changes_is_an_error() -> None:
    assert account("r 0 0 a", "r 0 1 b", "r 0 0 a").found_twice == 1
    [(_, error)] = account("w 0 0 a", "w 0 0 b").errors
    assert error == "(0, 0) holds a, and then b"


def test_a_job_survives_the_command_line() -> None:
    job = Job("127.0.0.1:1,127.0.0.1:2", "t", 6, MEMBER, "one", {"group.id": "a=b", "retries": "3"})
    assert job_of(job.arguments()) == job
    assert job.value(7) == b"one:00000007"
    with pytest.raises(ValueError, match="no role 'dancer'"):
        job_of(["b", "t", "6", "dancer", "n"])


def test_settings_of_python_libraries_are_values_of_python() -> None:
    given = {"retry_backoff_ms": "50", "check_crcs": "false", "client_id": "me", "acks": "all"}
    job = Job("b", "t", 1, READER, "n", given)
    assert job.typed_settings() == {"retry_backoff_ms": 50, "check_crcs": False, "client_id": "me", "acks": "all"}


# ---- pauses


def test_the_longest_pause_is_between_two_steps_or_a_step_and_the_spans_end() -> None:
    said = Account()
    for at_s in (1.0, 2.0, 5.0, 6.0):
        said.take(f"r 0 {at_s:.0f} a", at_s)
    assert said.longest_pause_s(0, 7) == 3.0
    assert said.longest_pause_s(5.5, 20) == 14.0
    assert said.longest_pause_s(2.5, 5.5) == 2.5
    assert said.longest_pause_s(10, 70) == 60.0


def test_errors_and_rebalances_are_no_steps() -> None:
    said = account("r 0 0 a", "e one", "b 6", "e two", "r 0 1 a")
    assert said.longest_pause_s(0, 4) == 4.0


def test_what_a_client_had_in_hand_when_it_woke_does_not_count_as_found_again() -> None:
    # given records up to offset 4 of partition 0 and 1 of partition 1 in the log
    said = account("r 0 3 a", "r 0 4 a", "r 1 1 a", "r 0 5 a", "r 1 2 a")
    assert said.first_beyond_s({0: 5, 1: 2}, 0.5) == 3.0
    assert said.first_beyond_s({0: 5, 1: 2}, 3.5) == 4.0
    assert said.first_beyond_s({0: 6, 1: 3}, 0.0) is None


# ---- against the log

LOG = {(0, 0): "a:00000000", (0, 1): "b:00000000", (1, 0): "a:00000001", (1, 1): "a:00000002"}


def test_an_acknowledged_record_that_is_not_in_the_log_at_its_place_is_lost() -> None:
    assert lost({(0, 0): "a:00000000", (1, 1): "a:00000002"}, LOG) == []
    assert lost({(0, 1): "a:00000000", (1, 2): "a:00000003"}, LOG) == [(0, 1), (1, 2)]


def test_a_reader_passes_over_what_lies_before_its_last_record_only() -> None:
    assert passed_over(LOG, LOG) == []
    assert passed_over({(0, 1): "b:00000000"}, LOG) == [(0, 0)]
    assert passed_over({(0, 0): "a:00000000"}, LOG) == []
    assert passed_over({(0, 0): "another"}, LOG) == [(0, 0)]


def test_a_value_that_is_in_the_log_again_is_doubled_for_its_writer_alone() -> None:
    again = {**LOG, (2, 0): "a:00000000", (2, 1): "a:00000000"}
    assert (doubled(LOG, "a"), doubled(again, "a"), doubled(again, "b")) == (0, 2, 0)


# ---- the clients


def test_a_client_that_is_absent_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KAFKA_JARS", "KAFKA_JARS_3", "KAFKA_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert "KAFKA_JARS)" in JAVA_4.absent()
    assert "KAFKA_JARS_3)" in JAVA_3.absent()
    monkeypatch.setenv("PATH", "")
    assert at_hand() == [client for client in CLIENTS if client.always_there]


def test_names_of_clients_are_parts_of_values() -> None:
    names = [client.name for client in (*CLIENTS, JAVA_3_REBOOTSTRAP)]
    assert len(set(names)) == len(names)
    assert not any(" " in name or ":" in name for name in names)


# ---- the tables


def outcome(role: str, said: Account, **more: int) -> Outcome:
    client: Any = SimpleNamespace(
        client=AIOKAFKA,
        name=f"aiokafka-{role}",
        role=role,
        account=said,
        errors=[text for _, text in said.errors],
        rebalances=len(said.rebalances),
        longest_pause_s=said.longest_pause_s,
    )
    return Outcome(client=client, lost=more.get("lost", 0), doubled=more.get("doubled", 0))


def test_the_first_table_holds_clients_against_kafka_and_names_the_stranded() -> None:
    busy = account("b 6", "r 0 0 a", "r 0 1 a", "e oh", "b 6", "r 0 2 a")
    still = account("b 6", "r 0 0 a")
    ours = Run([outcome(WRITER, account("w 0 0 a"), lost=1), outcome(MEMBER, still, doubled=2)], [Span(0, 20)], [2.5])
    alone = replaced_table(ours, None, None, Size.SMALL)
    assert alone.rows == [
        ["aiokafka", WRITER, 20.0, "stranded", None, 0, None, None, None, 1, 0],
        ["aiokafka", MEMBER, 19.0, "stranded", None, 0, None, 0, None, 0, 2],
    ]
    beside = replaced_table(
        Run([outcome(MEMBER, busy)], [Span(0, 6)], [2.5]), Run([outcome(MEMBER, busy)], [Span(0, 9)]), None, Size.SMALL
    )
    assert beside.rows == [["aiokafka", MEMBER, 3.0, "goes on", 4.0, 1, 1, 1, 1, 0, 0]]


def test_the_second_table_says_who_found_the_fleet_again() -> None:
    reader, writer = ("aiokafka", READER), ("aiokafka", WRITER)
    table = slept_table({"without": {reader: None, writer: 1.26}, "with": {reader: 0.5, writer: 0.0}}, Size.SMALL)
    assert [column.title for column in table.columns[2:]] == ["without", "with", "silent, without", "silent, with"]
    assert table.rows == [
        [*reader, "stranded", "found again after 0.5 s", None, None],
        [*writer, "found again after 1.3 s", "found again after 0.0 s", None, None],
    ]
