"""The line that lists the third-party clients, servers and tools that a run exercised."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conformance.clients import CLIENTS
from tests.fixtures.exercised import NOT_RUN, TOOLS, Seen, together

ROOT = Path(__file__).resolve().parents[3]
KCAT = "tests/conformance/test_scenarios.py::test_a_client_that_is_at_hand_passes[kcat-records:_none]"


def test_every_client_is_told_of() -> None:
    assert {client.name for client in CLIENTS} <= TOOLS.keys()
    assert all((ROOT / begin.partition("::")[0]).exists() for begin, _ in TOOLS.values())


def test_a_tool_whose_tests_were_all_skipped_is_named_with_the_reason() -> None:
    seen = Seen()
    seen.add(KCAT, "kcat is not on the PATH")
    seen.add("tests/integration/spark/scan/test_scan.py::test_a", None)
    assert "exercised: Spark; not exercised: " in seen.line()
    assert "kcat (kcat is not on the PATH)" in seen.line()
    assert f"franz-go ({NOT_RUN})" in seen.line()


def test_a_tool_that_one_run_of_several_exercised_counts() -> None:
    one, other = {"kcat": "not here", "Spark": None}, {"kcat": None, "Spark": "not there"}
    for lines in ([one, other], [other, one]):
        assert together([json.dumps(line) for line in lines]).by_tool == {"kcat": None, "Spark": None}
