"""The parts of a dashboard, and their form as Grafana's JSON. Pure.

A query is written as a person would type it; `scoped` limits it to the chosen jobs. One compactor exports the series of
the whole cluster, and the others show 0 or nothing, so such queries take the maximum.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

COLUMNS = 24
PANEL_WIDTH, PANEL_HEIGHT = 8, 8
DATASOURCE: Mapping[str, str] = {"type": "prometheus", "uid": "${datasource}"}
_SELECTOR = re.compile(r"\b((?:siltstone|process)_[a-z0-9_]+)(?:\{([^}]*)\})?")


@dataclass(frozen=True, slots=True)
class Query:
    legend: str
    """The legend; `{{label}}` stands for a label's value."""
    expression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    title: str
    unit: str
    """Grafana's name of the unit."""
    description: str
    docs: str
    """The page to read, below docs/: `operations/runbook.md#siltstoneconsumerlaggrowing`."""
    queries: Sequence[Query]
    empty_unless: str = ""
    """The condition under which it has data, if it has none in a normal working cluster: its series do not exist
    before. "" = always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    title: str
    panels: Sequence[Panel]


def panel(
    title: str, unit: str, description: str, docs: str, *queries: tuple[str, str], empty_unless: str = ""
) -> Panel:
    """`queries`: (legend, expression)."""
    return Panel(
        title=title,
        unit=unit,
        description=description,
        docs=docs,
        queries=[Query(legend, expression) for legend, expression in queries],
        empty_unless=empty_unless,
    )


def quantile(share: float, histogram: str, *labels: str) -> str:
    """The quantile of a histogram over the whole cluster, by labels."""
    by = ", ".join(("le", *labels))
    return f"histogram_quantile({share}, sum by ({by}) (rate({histogram}_bucket[$__rate_interval])))"


def of_role(role: str, metric: str) -> str:
    """The metric's series of agents or of compactors only: every process exports every metric."""
    return f'{metric} and on (job, instance) siltstone_ready{{role="{role}"}}'


def scoped(expression: str) -> str:
    """The expression, limited to the chosen jobs."""

    def of_jobs(found: re.Match[str]) -> str:
        matchers = ", ".join(filter(None, (found[2], 'job=~"$job"')))
        return f"{found[1]}{{{matchers}}}"

    return _SELECTOR.sub(of_jobs, expression)


def dashboard(rows: Sequence[Row]) -> Mapping[str, Any]:
    """The dashboard in the form that Grafana imports."""
    panels: list[Mapping[str, Any]] = []
    top = 0
    for row in rows:
        panels.append(_row(len(panels) + 1, row.title, top))
        top += 1
        for number, each in enumerate(row.panels):
            across, down = number % (COLUMNS // PANEL_WIDTH), number // (COLUMNS // PANEL_WIDTH)
            at = {"x": across * PANEL_WIDTH, "y": top + down * PANEL_HEIGHT, "w": PANEL_WIDTH, "h": PANEL_HEIGHT}
            panels.append(_panel(len(panels) + 1, each, at))
        top += PANEL_HEIGHT * -(-len(row.panels) // (COLUMNS // PANEL_WIDTH))
    return {
        "uid": "siltstone",
        "title": "Siltstone",
        "description": "Agents, compactors and the Postgres of one cluster.",
        "tags": ["siltstone", "kafka"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "panels": panels,
    }


def _variables() -> Sequence[Mapping[str, Any]]:
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0},
        {
            "name": "job",
            "label": "Job",
            "type": "query",
            "datasource": DATASOURCE,
            "definition": "label_values(siltstone_build_info, job)",
            "query": {"query": "label_values(siltstone_build_info, job)", "refId": "job"},
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".+",
            "current": {"text": "All", "value": "$__all"},
        },
        {
            "name": "docs",
            "label": "Where docs/ is served",
            "type": "textbox",
            "query": "docs",
            "current": {"text": "docs", "value": "docs"},
        },
    ]


def _row(number: int, title: str, top: int) -> Mapping[str, Any]:
    at = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": at, "panels": []}


def _panel(number: int, each: Panel, at: Mapping[str, int]) -> Mapping[str, Any]:
    said = f"{each.description} Empty unless {each.empty_unless}." if each.empty_unless else each.description
    return {
        "id": number,
        "type": "timeseries",
        "title": each.title,
        "description": said,
        "gridPos": at,
        "datasource": DATASOURCE,
        "links": [{"title": "Meaning and remedies", "url": f"${{docs}}/{each.docs}", "targetBlank": True}],
        "fieldConfig": {
            "defaults": {
                "unit": each.unit,
                "custom": {"lineWidth": 1, "fillOpacity": 8, "showPoints": "never", "spanNulls": False},
            },
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": DATASOURCE,
                "expr": scoped(query.expression),
                "legendFormat": query.legend,
            }
            for place, query in enumerate(each.queries)
        ],
    }
