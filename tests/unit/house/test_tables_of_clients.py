"""The tables of clients and ways to come in, which a run of all cells prints."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.conformance.security.table import FAILED, TITLES, Cell, Tables

MATRIX = Path(__file__).parents[2] / "conformance" / "security" / "test_matrix.py"
READS, REFUSED, _ = TITLES


def test_a_table_shows_seconds_failures_and_why_cells_were_skipped() -> None:
    tables = Tables()
    tables.took(Cell(READS, "one", "SSL"), 1.25)
    tables.failed(Cell(READS, "one", "PLAIN"))
    tables.skipped(Cell(READS, "two", "SSL"), "it is not there")
    tables.skipped(Cell(REFUSED, "two", "no such user"), "it is not there")
    lines = tables.lines({"one": "one 1.0", "two": "two", "three": "three"})
    assert [line for line in lines if line.startswith(("| one", "| two", "| three"))] == [
        f"| one 1.0 | 1.2 | {FAILED} |",
        "| two | (1) |  |",
        "| three |  |  |",
        "| one 1.0 |  |",
        "| two | (1) |",
        "| three |  |",
    ]
    assert lines[-1] == "(1) it is not there"
    assert tables.have(["one", "two"]) and not tables.have(["one", "two", "three"])


def test_a_cell_that_failed_while_it_was_taken_down_has_failed() -> None:
    tables, cell = Tables(), Cell(READS, "one", "SSL")
    tables.took(cell, 1)
    tables.failed(cell)
    tables.took(cell, 1)
    assert tables.results == {cell: FAILED}


def test_the_tables_are_of_tests_that_there_are() -> None:
    tree = ast.parse(MATRIX.read_text(encoding="utf-8"))
    tests = {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}
    assert tests >= TITLES.keys()
