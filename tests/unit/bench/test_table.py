"""Tables of results as text, Markdown and JSON."""

from __future__ import annotations

import json

import pytest

from bench.table import Column, Table, render_json, render_markdown, render_text

COLUMNS = (Column("partitions"), Column("latency", "ms", 2), Column("how"))
TABLE = Table("Commits", "Less is better.", COLUMNS, [[10, 0.5, "plain"], [5000, 1234.567, "a|b"], [1, None, "-"]])


def test_text_is_aligned_numbers_to_the_right_and_texts_to_the_left() -> None:
    assert render_text(TABLE) == (
        "Commits\n"
        "=======\n"
        "partitions  latency (ms)  how\n"
        "----------  ------------  -----\n"
        "        10          0.50  plain\n"
        "     5,000      1,234.57  a|b\n"
        "         1             -  -\n"
        "\n"
        "Less is better.\n"
    )


def test_markdown_aligns_by_its_rules_and_escapes_bars() -> None:
    assert render_markdown(TABLE) == (
        "### Commits\n"
        "\n"
        "| partitions | latency (ms) | how |\n"
        "| --: | --: | --- |\n"
        "| 10 | 0.50 | plain |\n"
        "| 5,000 | 1,234.57 | a\\|b |\n"
        "| 1 | - | - |\n"
        "\n"
        "Less is better.\n"
    )


def test_json_keeps_numbers_unrounded() -> None:
    (value,) = json.loads(render_json([TABLE]))
    assert value["title"] == "Commits"
    assert value["columns"][1] == {"name": "latency", "unit": "ms"}
    assert value["rows"] == [[10, 0.5, "plain"], [5000, 1234.567, "a|b"], [1, None, "-"]]


def test_a_table_without_rows_or_note_has_its_head() -> None:
    table = Table("Nothing", "", COLUMNS, [])
    assert render_text(table).splitlines()[2] == "partitions  latency (ms)  how"
    assert render_markdown(table).endswith("| --- | --- | --- |\n")


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="a row of 2 cells in a table of 3 columns"):
        Table("Commits", "", COLUMNS, [[1, 2]])


def test_a_detail_is_in_json_alone() -> None:
    table = Table("t", "", (Column("a"), Column("b", detail=True), Column("c")), [[1, 23456, 3]])
    assert "23" not in render_text(table) and "b" not in render_text(table)
    assert "| 1 | 3 |" in render_markdown(table)
    assert json.loads(render_json([table]))[0]["rows"] == [[1, 23456, 3]]
