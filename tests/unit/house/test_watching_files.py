"""The dashboard and the alert rules: the metrics that they ask for exist, and so do the pages that they link to."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.grafana.__main__ import main as write_dashboard
from infra.grafana.model import PANEL_WIDTH, scoped
from infra.grafana.source import FILE, ROWS, render
from runtime.metrics import Metrics
from tests.fixtures.promql import asked, mistakes

ROOT = Path(__file__).resolve().parents[3]
PROMETHEUS = ROOT / "infra" / "prometheus"
RUNBOOK = ROOT / "docs" / "operations" / "runbook.md"
ALERTS: Sequence[Mapping[str, Any]] = [
    rule for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]
PANELS = [panel for row in ROWS for panel in row.panels]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, made as from the headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}


def leads_somewhere(address: str) -> bool:
    """Whether `address`, relative to docs/, is a page with such an anchor."""
    page, _, anchor = address.partition("#")
    path = ROOT / "docs" / page
    return path.is_file() and (not anchor or anchor in anchors(path))


def titles(tests: Path) -> Iterator[str]:
    yield from (test["name"] for test in yaml.safe_load(tests.read_text())["tests"])


# ---- the dashboard


def test_the_dashboards_file_is_what_its_source_says() -> None:
    assert FILE.read_text(encoding="utf-8") == render(), "run `python -m infra.grafana`"


def test_help_tells_how_to_write_it_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    before = FILE.stat().st_mtime_ns
    with pytest.raises(SystemExit) as ended:
        write_dashboard(["--help"])
    assert ended.value.code == 0 and FILE.stat().st_mtime_ns == before
    text = capsys.readouterr().out
    assert "infra/grafana/siltstone.json" in text and "Example:\n  python -m infra.grafana" in text
    assert max(map(len, text.splitlines())) <= 80


def test_every_panel_says_what_it_shows_in_which_unit_and_where_to_read_on() -> None:
    assert len({panel.title for panel in PANELS}) == len(PANELS) > 50
    for panel in PANELS:
        assert panel.unit and panel.description.endswith(".") and panel.queries, panel.title
        assert leads_somewhere(panel.docs), f"{panel.title}: docs/{panel.docs} is not there"
        assert all(query.legend for query in panel.queries), panel.title


def test_every_panel_asks_for_metrics_and_labels_that_are_exported() -> None:
    wrong = {panel.title: [*mistakes(query.expression)] for panel in PANELS for query in panel.queries}
    assert {title: found for title, found in wrong.items() if found} == {}


def test_a_legend_names_labels_that_the_result_has() -> None:
    for panel in PANELS:
        for query in panel.queries:
            named = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
            grouped = re.match(r"(topk\(10, )?(\w+ by \(([^)]*)\)|histogram_quantile)", query.expression)
            if grouped:
                left = asked(query.expression).grouped - {"le"}
                assert named <= left, f"{panel.title}: {query.legend}"


def test_grafana_is_told_one_data_source_by_its_variable_and_panels_that_do_not_overlap() -> None:
    made = json.loads(FILE.read_text(encoding="utf-8"))
    assert {each["name"] for each in made["templating"]["list"]} == {"datasource", "job", "docs"}
    cells: set[tuple[int, int]] = set()
    for panel in made["panels"]:
        at = panel["gridPos"]
        taken = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not taken & cells and at["x"] + at["w"] <= 3 * PANEL_WIDTH, panel["title"]
        cells |= taken
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
            selectors = asked(target["expr"].replace("$__rate_interval", "5m")).selectors
            assert selectors and all(("job", "=~", "$job") in each.matchers for each in selectors), target["expr"]


def test_a_query_is_scoped_to_the_chosen_jobs_wherever_it_names_a_metric() -> None:
    expression = 'sum by (op) (rate(siltstone_a_total{op="put"}[5m])) / process_open_fds'
    wanted = 'sum by (op) (rate(siltstone_a_total{op="put", job=~"$job"}[5m])) / process_open_fds{job=~"$job"}'
    assert scoped(expression) == wanted


def test_a_metric_or_a_label_that_is_not_exported_is_noticed() -> None:
    assert [*mistakes("sum(rate(siltstone_produce_byte_total[5m]))")] == ["no metric siltstone_produce_byte_total"]
    assert [*mistakes('max(siltstone_level_files{lvl="0"}) > 1')] == ["no label lvl of siltstone_level_files"]
    assert [*mistakes("sum by (topic) (siltstone_connections)")] == ["no label topic to group by"]
    assert [*mistakes("siltstone_request_seconds")] == ["no metric siltstone_request_seconds"]
    assert [*mistakes("histogram_quantile(0.5, sum by (le) (rate(siltstone_request_seconds_bucket[5m])))")] == []
    with pytest.raises(ValueError, match="@"):
        asked("siltstone_connections @ 5")


# ---- the alerts


def test_every_alert_asks_for_metrics_and_labels_that_are_exported() -> None:
    wrong = {alert["alert"]: [*mistakes(alert["expr"])] for alert in ALERTS}
    assert {name: found for name, found in wrong.items() if found} == {}


def test_every_alert_says_how_bad_it_is_what_is_wrong_and_leads_to_its_place_in_the_runbook() -> None:
    assert len({alert["alert"] for alert in ALERTS}) == len(ALERTS) > 25
    for alert in ALERTS:
        name, notes = alert["alert"], alert["annotations"]
        assert alert["labels"]["severity"] in {"critical", "warning"} and alert["for"], name
        assert notes["summary"] and notes["description"].endswith("."), name
        assert notes["runbook_url"] == f"docs/operations/runbook.md#{name.lower()}"
        assert leads_somewhere(notes["runbook_url"].removeprefix("docs/")), name
        if not re.match(r"absent|max\(siltstone_\w+\) == 1", alert["expr"]):
            assert "$value" in notes["description"] or "up{" in alert["expr"], name


def test_the_runbook_treats_every_alert_and_no_other() -> None:
    told = re.findall(r"^### (Siltstone\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert sorted(told) == sorted(alert["alert"] for alert in ALERTS)
    for part in RUNBOOK.read_text().split("\n### Siltstone")[1:]:
        name = part.splitlines()[0]
        for what in ("**Means:**", "**Confirm:**", "**Do:**", "**Do not:**"):
            assert part.count(what) == 1, f"Siltstone{name}: {what}"


def test_the_runbook_names_metrics_that_exist() -> None:
    named = set(re.findall(r"\bsiltstone_[a-z0-9_]+", RUNBOOK.read_text()))
    assert named <= {metric.full_name for metric in Metrics().declared()}


def test_every_alert_is_tested() -> None:
    tested = [title for tests in PROMETHEUS.glob("*_test.yml") for title in titles(tests)]
    assert [a["alert"] for a in ALERTS if not any(title.startswith(f"{a['alert']}: ") for title in tested)] == []


def test_prometheus_takes_the_rules_and_their_tests_hold() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool on the PATH")
    tests = sorted(path.name for path in PROMETHEUS.glob("*_test.yml"))
    for words in (["check", "config", "prometheus.yml"], ["test", "rules", *tests]):
        ran = subprocess.run([promtool, *words], cwd=PROMETHEUS, capture_output=True, text=True, timeout=100)
        assert ran.returncode == 0, ran.stdout + ran.stderr
