"""All rows of the dashboard, and the file that they become."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from infra.grafana import serving, upkeep
from infra.grafana.model import Row, dashboard

FILE = Path(__file__).parent / "siltstone.json"
ROWS: Sequence[Row] = (*serving.ROWS, *upkeep.ROWS)


def render() -> str:
    return json.dumps(dashboard(ROWS), indent=1, ensure_ascii=False) + "\n"
