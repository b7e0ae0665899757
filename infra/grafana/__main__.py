"""`python -m infra.grafana`: write the dashboard from its source."""

from __future__ import annotations

from infra.grafana.source import FILE, render

FILE.write_text(render(), encoding="utf-8")
