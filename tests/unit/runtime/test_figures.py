"""The figures of a process for its log: flat numbers, counts since the last line, duties only where they are held."""

from __future__ import annotations

import pytest

from runtime.metrics import Metrics
from runtime.metrics.figures import figure_names, figures, read_samples


def test_an_agent_tells_what_it_produced_since_its_last_line() -> None:
    metrics = Metrics()
    metrics.ready.labels(role="agent").set(1)
    metrics.live_l0_files.set(17)
    outcomes = metrics.produce_batches_total
    for outcome, count in (("stored", 90), ("duplicate", 4), ("failed", 6), ("refused", 1_000)):
        outcomes.labels(outcome=outcome).inc(count)
    first = read_samples(metrics.registry)
    expected = {"ready": 1, "produce_batches": 100, "produce_failed": 6, "lease_errors": 0, "live_l0_files": 17}
    quiet = {"write_stall_delay_s": 0, "store_full": 0}
    assert figures("agent", first, ()) == {**expected, **quiet}
    # when more comes
    outcomes.labels(outcome="stored").inc(5)
    metrics.lease_errors_total.inc(2)
    metrics.write_stall_delay_seconds.set(0.25)
    metrics.store_full.set(1)
    second = read_samples(metrics.registry)
    expected |= {"produce_batches": 5, "produce_failed": 0, "lease_errors": 2}
    assert figures("agent", second, first) == {**expected, "write_stall_delay_s": 0.25, "store_full": 1}
    assert figures("agent", second, second)["produce_batches"] == 0


def test_the_slowest_hundredth_of_produce_is_of_the_requests_since_the_last_line() -> None:
    metrics = Metrics()
    for _ in range(50):
        metrics.produce_latency_seconds.observe(20)
    first = read_samples(metrics.registry)
    assert 29_000 < figures("agent", first, ())["produce_p99_ms"] <= 30_000
    # when 200 quick ones follow, of which two are slow
    for _ in range(198):
        metrics.produce_latency_seconds.observe(0.04)
    for _ in range(2):
        metrics.produce_latency_seconds.observe(4)
    second = read_samples(metrics.registry)
    # then: evenly spread within the bucket from 25 to 50 ms, as Prometheus has it
    assert figures("agent", second, first)["produce_p99_ms"] == 50
    assert "produce_p99_ms" not in figures("agent", second, second)
    metrics.produce_latency_seconds.observe(1_000)
    third = read_samples(metrics.registry)
    assert figures("agent", third, second)["produce_p99_ms"] == 30_000, "above the last bound"


def test_a_compactor_tells_of_the_cluster_only_what_its_duties_make_known() -> None:
    metrics = Metrics()
    metrics.ready.labels(role="compactor").set(1)
    for outcome, count in (("done", 5), ("failed", 2), ("lost", 1), ("given_back", 9)):
        metrics.merges_total.labels(kind="level", outcome=outcome).inc(count)
    metrics.l0_oldest_seconds.set(61.23456)
    metrics.catalog_age_seconds.set(3)
    for duty in ("plan", "catalog", "sweep", "erase", "observe"):
        metrics.compactor_duty.labels(duty=duty).set(0)
    own = {"ready": 1, "merges_done": 5, "merges_failed": 3}
    samples = read_samples(metrics.registry)
    assert figures("compactor", samples, ()) == own
    # when it has all duties
    for duty in ("plan", "catalog", "sweep", "erase", "observe"):
        metrics.compactor_duty.labels(duty=duty).set(1)
    metrics.observed.group_lag_seconds.labels(group="g", topic="a").set(12)
    metrics.observed.group_lag_seconds.labels(group="h", topic="b").set(900.5)
    metrics.janitor_halted.set(1)
    everything = {
        "l0_oldest_s": 61.235,
        "catalog_age_s": 3,
        "janitor_halted": 1,
        "erasures_overdue": 0,
        "group_lag_s_max": 900.5,
    }
    assert figures("compactor", read_samples(metrics.registry), ()) == {**own, **everything}
    assert figures("compactor", read_samples(metrics.registry), samples)["merges_done"] == 0


@pytest.mark.parametrize("role", ["agent", "compactor"])
def test_the_age_of_a_password_and_the_first_certificate_that_expires_are_told_where_there_are_any(role: str) -> None:
    metrics = Metrics()
    line = figures(role, read_samples(metrics.registry), ())  # type: ignore[arg-type]
    assert line.keys().isdisjoint({"postgres_password_age_s", "certificate_expires_s"})
    metrics.security.postgres_password_age_seconds.set(86_400)
    metrics.tls_certificate_expires_seconds.labels(listener="default").set(5_000)
    metrics.tls_certificate_expires_seconds.labels(listener="inside").set(-3)
    line = figures(role, read_samples(metrics.registry), ())  # type: ignore[arg-type]
    assert (line["postgres_password_age_s"], line["certificate_expires_s"]) == (86_400, -3)


def test_the_names_of_figures_are_told_beforehand() -> None:
    of_both = {"ready", "postgres_password_age_s", "certificate_expires_s"}
    of_agents = {"produce_batches", "produce_failed", "produce_p99_ms", "lease_errors", "live_l0_files"}
    of_agents |= {"write_stall_delay_s", "store_full"}
    of_compactors = {"merges_done", "merges_failed", "l0_oldest_s", "catalog_age_s", "janitor_halted"}
    of_compactors |= {"erasures_overdue", "group_lag_s_max"}
    assert figure_names("agent") == of_both | of_agents
    assert figure_names("compactor") == of_both | of_compactors
    assert figure_names("probe") == of_both
