"""One table of metrics, and a registry for each process."""

from __future__ import annotations

import re
from pathlib import Path

from runtime.metrics import Metrics, render_metrics_markdown

ROOT = Path(__file__).resolve().parents[3]


def test_what_is_counted_is_rendered_in_the_text_format() -> None:
    metrics = Metrics()
    metrics.requests_total.labels(api="Produce").inc(3)
    metrics.l0_file_bytes.observe(5000)
    text = metrics.render().decode()
    assert 'siltstone_requests_total{api="Produce"} 3.0' in text
    assert 'siltstone_l0_file_bytes_bucket{le="16384.0"} 1.0' in text


def test_two_processes_worth_of_metrics_share_nothing() -> None:
    one, other = Metrics(), Metrics()
    one.produce_bytes_total.inc(5)
    assert "siltstone_produce_bytes_total 0.0" in other.render().decode()


def test_every_metric_is_declared_named_by_the_rules_and_exported_under_that_name() -> None:
    metrics = Metrics()
    declared = {metric.full_name: metric for metric in metrics.declared()}
    exported = {
        family.name + ("_total" if family.type == "counter" else ""): family.type
        for family in metrics.registry.collect()
    }
    assert {name: metric.kind for name, metric in declared.items()} == exported
    for name, metric in declared.items():
        assert re.fullmatch(r"(siltstone|process)_[a-z][a-z0-9_]*", name)
        assert (metric.kind == "counter") == name.endswith("_total")
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert metric.doc.endswith(".")


def test_docs_metrics_md_is_what_the_table_says() -> None:
    command = (
        "from pathlib import Path; from runtime.metrics import render_metrics_markdown as render;"
        " Path('docs/metrics.md').write_text(render())"
    )
    assert (ROOT / "docs" / "metrics.md").read_text() == render_metrics_markdown(), f'run python -c "{command}"'


def test_the_guide_to_compaction_names_metrics_that_exist() -> None:
    named = set(re.findall(r"siltstone_[a-z0-9_]+", (ROOT / "docs" / "compaction-metrics.md").read_text()))
    declared = {metric.full_name for metric in Metrics().declared()}
    assert len(named) > 20 and named <= declared
