"""Figures for the tests of this folder: new measurements must not change what the rules are tested by."""

from __future__ import annotations

import pytest

from siltstone.ops.capacity import limits
from siltstone.ops.capacity.figures import Ceiling

ROWS = (
    Ceiling(8, 100, False, 970, 13),
    Ceiling(8, 1000, False, 136, 124),
    Ceiling(8, 100, True, 659, 26),
    Ceiling(8, 1000, True, 49, 255),
)


@pytest.fixture(autouse=True)
def fixed_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CEILINGS", ROWS)
    monkeypatch.setattr(limits, "BENCH_FLUSH_MS", 0.2)
    monkeypatch.setattr(limits, "COMMIT_FIXED_MS", 0.5)
    monkeypatch.setattr(limits, "COMMIT_PARTITION_MS", 0.0155)
    monkeypatch.setattr(limits, "POLL_MS", 0.75)
