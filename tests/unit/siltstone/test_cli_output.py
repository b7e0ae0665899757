"""Sizes, ages and tables as people read them."""

from __future__ import annotations

import pytest

from siltstone.cli.output import age_text, print_pairs, print_table, size_text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (8 << 20, "8.0 MiB"),
        (300 << 20, "300 MiB"),
        (1 << 30, "1.0 GiB"),
        (5 << 40, "5.0 TiB"),
    ],
)
def test_sizes_are_short(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


@pytest.mark.parametrize(
    ("age_ms", "text"),
    [(-5, "0s"), (59_999, "59s"), (90_000, "1m30s"), (3_600_000, "1h00m"), (90_000_000, "1d01h")],
)
def test_ages_are_short(age_ms: int, text: str) -> None:
    assert age_text(age_ms) == text


def test_cells_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    # given values that look like rich's markup, and a key as long as an object key
    key = "l0/7f/2026010112/12-3-0190a0b0-1111-7222-8333-444455556666.silt"
    print_table(["key", "size"], [[key, "[red]1"]], right=["size"])
    print_pairs({"name": "[b]x[/b]"})
    shown = capsys.readouterr().out
    assert key in shown
    assert "[red]1" in shown and "[b]x[/b]" in shown
