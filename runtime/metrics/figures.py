"""A few figures out of the metrics of a process, for its log (`log.figures.interval.ms`): alarms without Prometheus.

Names are flat and values are numbers, so that a filter of a log service can name one (`{ $.event = "figures" &&
$.l0_oldest_s > 600 }`). Counts are those since the last line. A figure of the whole cluster is only on the line of the
compactor that has its duty; one that is not known is on no line. `docs/operations/logs-and-traces.md` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

from prometheus_client import CollectorRegistry

from runtime.metrics.declared import PREFIX

Role = Literal["agent", "compactor", "probe"]


class Sample(NamedTuple):
    name: str
    """Without the prefix."""
    labels: Mapping[str, str]
    value: float


Samples = tuple[Sample, ...]

_DUTIES = {
    "l0_oldest_s": ("plan", "l0_oldest_seconds"),
    "catalog_age_s": ("catalog", "catalog_age_seconds"),
    "janitor_halted": ("sweep", "janitor_halted"),
    "erasures_overdue": ("erase", "erasures_overdue"),
    "group_lag_s_max": ("observe", "group_lag_seconds"),
}
"""Figure: the duty that makes it known, and its gauge."""
_OF_AGENTS = (
    *("produce_batches_total", "lease_errors_total", "produce_latency_seconds_bucket", "live_l0_files"),
    *("write_stall_delay_seconds", "store_full"),
)
_OF_COMPACTORS = ("merges_total", "compactor_duty", *(name for _, name in _DUTIES.values()))
_OF_BOTH = ("ready", "postgres_password_age_seconds", "tls_certificate_expires_seconds")
SLOW = 0.99
"""The share of produce requests that are quicker than `produce_p99_ms`."""


def read_samples(registry: CollectorRegistry) -> Samples:
    """The samples that figures are made of. The others are not collected, of which there may be very many."""
    names = {PREFIX + name for name in (*_OF_AGENTS, *_OF_COMPACTORS, *_OF_BOTH)}
    families = registry.restricted_registry(sorted(names)).collect()
    samples = (sample for family in families for sample in family.samples if sample.name in names)
    return tuple(Sample(each.name.removeprefix(PREFIX), each.labels, each.value) for each in samples)


def figures(role: Role, now: Samples, before: Samples) -> dict[str, float]:
    """The line of a process. `before`: at its last line; empty for the first."""

    def since(name: str, counts: Callable[[Mapping[str, str]], bool]) -> float:
        return _sum(now, name, counts) - _sum(before, name, counts)

    found: dict[str, float] = {"ready": max(_values(now, "ready"), default=0.0)}
    if role == "agent":
        # A batch that the client must mend is no batch that we could have stored.
        found["produce_batches"] = since("produce_batches_total", lambda labels: labels["outcome"] != "refused")
        found["produce_failed"] = since("produce_batches_total", lambda labels: labels["outcome"] == "failed")
        found["lease_errors"] = since("lease_errors_total", lambda _: True)
        found["live_l0_files"] = max(_values(now, "live_l0_files"), default=0.0)
        found["write_stall_delay_s"] = max(_values(now, "write_stall_delay_seconds"), default=0.0)
        found["store_full"] = max(_values(now, "store_full"), default=0.0)
        bounds = _buckets(now, before)
        if bounds and bounds[-1][1]:
            found["produce_p99_ms"] = round(_quantile(bounds, SLOW) * 1000, 1)
    elif role == "compactor":
        found["merges_done"] = since("merges_total", lambda labels: labels["outcome"] == "done")
        found["merges_failed"] = since("merges_total", lambda labels: labels["outcome"] in ("failed", "lost"))
        duties = {each.labels["duty"] for each in now if each.name == "compactor_duty" and each.value}
        for figure, (duty, name) in _DUTIES.items():
            if duty in duties:
                found[figure] = max(_values(now, name), default=0.0)
    # Gauges that are 0 where there is no such password, and absent where there is no certificate.
    if age_s := max(_values(now, "postgres_password_age_seconds"), default=0.0):
        found["postgres_password_age_s"] = age_s
    if expiries := list(_values(now, "tls_certificate_expires_seconds")):
        found["certificate_expires_s"] = min(expiries)
    return {name: int(value) if value.is_integer() else round(value, 3) for name, value in found.items()}


def figure_names(role: Role) -> frozenset[str]:
    """The names of all figures that a process of this role may ever write."""
    labels = [{"duty": duty, "outcome": "done", "le": "1"} for duty, _ in _DUTIES.values()]
    names = (*_OF_AGENTS, *_OF_COMPACTORS, *_OF_BOTH)
    return frozenset(figures(role, tuple(Sample(name, each, 1.0) for name in names for each in labels), ()))


def _values(samples: Samples, name: str) -> Iterable[float]:
    return (float(each.value) for each in samples if each.name == name)


def _sum(samples: Samples, name: str, counts: Callable[[Mapping[str, str]], bool]) -> float:
    return sum((each.value for each in samples if each.name == name and counts(each.labels)), 0.0)


def _buckets(now: Samples, before: Samples) -> list[tuple[float, float]]:
    """(upper bound in seconds, requests since the last line at or below it), from the smallest bound to infinity."""
    counts: dict[float, float] = {}
    for samples, sign in ((now, 1), (before, -1)):
        for each in samples:
            if each.name == "produce_latency_seconds_bucket":
                bound = float(each.labels["le"])
                counts[bound] = counts.get(bound, 0.0) + sign * each.value
    return sorted(counts.items())


def _quantile(buckets: list[tuple[float, float]], share: float) -> float:
    """As Prometheus's histogram_quantile: evenly spread within a bucket, and the largest bound for what lies above."""
    rank = share * buckets[-1][1]
    lower_s = below = 0.0
    for bound_s, count in buckets:
        if count >= rank:
            within = (rank - below) / (count - below) if count > below else 1.0
            return lower_s if bound_s == float("inf") else lower_s + (bound_s - lower_s) * within
        lower_s, below = bound_s, count
    return lower_s
