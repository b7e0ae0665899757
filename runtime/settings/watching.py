"""The settings by which a process is watched: its endpoint, its log lines, its traces."""

from __future__ import annotations

import re
from dataclasses import dataclass

from runtime.settings.values import SettingsError, count, duration_ms, setting

WATCHING = "Watching"
_RATIO = re.compile(r"0?\.[0-9]{1,9}|0|1(\.0{1,9})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchingSettings:
    """The section "Watching" of `runtime.settings.table.Settings`."""

    metrics_listen: str = setting(
        "127.0.0.1:0", WATCHING, "HOST:PORT for `/metrics`, `/healthz` and `/readyz`. Port 0 takes any; empty: none."
    )
    metrics_groups_max: int = count(
        200,
        WATCHING,
        "Pairs of a group and a topic whose lag is a metric of its own; that of the others is summed.",
        minimum=0,
        maximum=10_000,
    )
    metrics_topics_max: int = count(
        50,
        WATCHING,
        "Compacted topics whose size is a metric of its own; that of the others is summed.",
        minimum=0,
        maximum=10_000,
    )
    log_level: str = setting(
        "info", WATCHING, "The least severe message shown.", choices=("debug", "info", "warning", "error")
    )
    log_format: str = setting("text", WATCHING, "How messages are written.", choices=("text", "json"))
    log_slow_request_ms: int = duration_ms(
        5_000,
        WATCHING,
        "A request that took longer is logged, at level info; what a fetch waited for records and a member for its"
        " group is not counted. 0: none is.",
        minimum=0,
    )
    log_burst_lines: int = count(
        100,
        WATCHING,
        "Lines of one kind shown in 10 seconds; more are left out, and how many is said. 0: all are shown.",
        minimum=0,
    )
    trace_sample_ratio: str = setting(
        "0",
        WATCHING,
        "Share of the requests that are traced, from 0 (nothing is) to 1 (all are); above 0 merges are traced too."
        " Needs the extra `otel`; where spans go say the `OTEL_*` variables.",
    )

    @property
    def trace_ratio(self) -> float:
        return float(self.trace_sample_ratio)


def check_watching(settings: WatchingSettings) -> None:
    """Raises SettingsError."""
    if not _RATIO.fullmatch(settings.trace_sample_ratio):
        raise SettingsError(
            f"trace.sample.ratio must be a number from 0 to 1, not {settings.trace_sample_ratio!r}",
            remedy="write it as 0.01 for one request in a hundred",
        )
