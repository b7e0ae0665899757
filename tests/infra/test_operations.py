"""The parts of the rules of the second day that no plan shows: patterns of events, and what processes write."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.check.rules.operations.lines import LINES, TEXTS, terms_of
from infra.check.rules.operations.patterns import takes
from runtime.errors import SiltstoneError
from runtime.logging import configure
from runtime.metrics import Metrics
from siltstone.ops.probe.probing import RoundTrip
from siltstone.ops.probe.records import Outcome
from siltstone.ops.probe.running import Teller

EVENT = {"source": "aws.ecs", "resources": ["a", "b"], "detail": {"code": 1, "of": [{"exit": 0}, {"exit": 3}]}}
WRITTEN_BY_ALL = {"event", "level", "module", "timestamp"}


@pytest.mark.parametrize(
    ("pattern", "is_taken"),
    [
        ({}, True),
        ({"source": ["aws.s3", "aws.ecs"]}, True),
        ({"source": ["aws.s3"]}, False),
        ({"resources": ["b"]}, True),
        ({"resources": [{"prefix": "c"}]}, False),
        ({"source": [{"prefix": "aws."}], "detail": {"code": [1]}}, True),
        ({"source": [{"prefix": "aws."}], "detail": {"code": ["1"]}}, False),
        ({"detail": {"of": {"exit": [{"anything-but": [0]}]}}}, True),
        ({"detail": {"of": {"exit": [{"anything-but": [0, 3]}]}}}, False),
        ({"detail": {"none": [{"anything-but": [0]}]}}, False),
        ({"detail": {"code": [{"anything-but": {"prefix": "1"}}]}}, False),
        ({"detail": {"none": [{"exists": False}], "code": [{"exists": True}]}}, True),
        ({"detail": {"none": {"deeper": ["x"]}}}, False),
        ({"detail": {"$or": [{"code": [2]}, {"of": {"exit": [3]}}]}}, True),
        ({"$or": [{"source": ["aws.s3"]}, {"detail": {"code": [2]}}]}, False),
        ({"source": [{"a-filter-of-tomorrow": "aws.ecs"}]}, False),
    ],
)
def test_a_pattern_takes_the_events_that_eventbridge_would_send(pattern: dict[str, Any], is_taken: bool) -> None:
    assert takes(pattern, EVENT) is is_taken


@pytest.mark.parametrize(
    ("pattern", "terms"),
    [
        ('{ ($.event = "figures") && ($.ready = *) }', {"event": "figures", "ready": "*"}),
        ('{$.event="probe"}', {"event": "probe"}),
        ('{ ($.event = "figures") || ($.ready = *) }', None),
        ("{ $.ready > 1 }", None),
        ("figures", None),
    ],
)
def test_a_pattern_of_a_filter_is_read_or_told_of(pattern: str, terms: dict[str, str] | None) -> None:
    assert terms_of(pattern) == terms


def test_the_fields_of_the_probe_are_those_that_it_writes(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "json")
    teller = Teller("siltstone-probe", Metrics())
    for sequence, outcome in enumerate(Outcome):
        error = None if outcome is Outcome.OK else SiltstoneError(outcome.value)
        teller.tell(RoundTrip(outcome=outcome, sequence=sequence, took_ms=1.5, error=error))
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert {line["event"] for line in lines} == {"probe"}
    assert {name for line in lines for name in line} - WRITTEN_BY_ALL == LINES["probe"]["probe"]
    assert {line["outcome"] for line in lines} == TEXTS["outcome"]
