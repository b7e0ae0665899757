"""The rules of the planner as tables: the rule in words, a view, a line of dashes, the plan.

A person writes the plan, from the rule in the first line. Nothing writes it from the planner, which it judges.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from compactor.planning.plan import explain_plan
from tests.fixtures.plan_views import plan_text, view_of

TABLES = sorted((Path(__file__).parents[3] / "golden" / "plan").glob("*.txt"))
DASHES = "-" * 20 + "\n"


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_view_is_planned_as_its_table_says(path: Path) -> None:
    given, _, expected = path.read_text().partition(DASHES)
    assert given.startswith("# "), "the first line says the rule in words"
    view, options = view_of(given)
    assert plan_text(explain_plan(view, options), view) == expected


def test_there_is_a_table_for_every_rule() -> None:
    rules = {path.stem.split("-")[0] for path in TABLES}
    assert rules == {"l0", "l1", "l2", "daily", "forced", "purge", "never", "places"}
