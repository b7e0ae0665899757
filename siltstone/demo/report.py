"""What the demo shows at its end: how the records lie in the store, and what it took to write them."""

from __future__ import annotations

import urllib.request
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.text import size_text

Samples = Mapping[str, float]
"""Metric name with its labels -> value."""

BAR_CELLS = 32
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a bar picture."""

    label: str
    count: int


def percentile(values: array[float], fraction: float) -> float:
    """The smallest value that at least `fraction` of the values do not exceed; 0 for no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -int(-fraction * len(ordered) // 1) - 1))]


def latency_text(latencies_ms: array[float]) -> str:
    parts = [
        f"p{name} {percentile(latencies_ms, fraction):,.0f} ms"
        for name, fraction in (("50", 0.50), ("90", 0.90), ("99", 0.99))
    ]
    return ", ".join([*parts, f"max {max(latencies_ms, default=0.0):,.0f} ms"])


def object_sizes(objects: Path, suffix: str = ".silt") -> Sequence[int]:
    """Bytes of every file of records below a local object store's directory."""
    return sorted(path.stat().st_size for path in objects.rglob(f"*{suffix}"))


def size_bars(sizes: Iterable[int]) -> Sequence[Bar]:
    """How many files there are of each size, in classes that double, from the smallest there is to the largest."""
    classes: dict[int, int] = {}
    for size in sizes:
        exponent = max(0, size - 1).bit_length()
        classes[exponent] = classes.get(exponent, 0) + 1
    if not classes:
        return []
    return [
        Bar(f"{size_text(2 ** (exponent - 1))} to {size_text(2**exponent)}", classes.get(exponent, 0))
        for exponent in range(min(classes), max(classes) + 1)
    ]


def bar_picture(bars: Sequence[Bar], cells: int = BAR_CELLS) -> str:
    """Horizontal bars in eighths of a cell; the longest has `cells` cells, and none that counts anything is empty."""
    largest = max((bar.count for bar in bars), default=0)
    label_width = max((len(bar.label) for bar in bars), default=0)
    lines: list[str] = []
    for bar in bars:
        eighths = max(1, round(bar.count / largest * cells * 8)) if bar.count else 0
        drawn = _EIGHTHS[8] * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
        lines.append(f"  {bar.label:>{label_width}}  {drawn} {bar.count}".rstrip())
    return "\n".join(lines)


def scrape(urls: Sequence[str]) -> Samples:
    """The agents' counters, summed over agents, by name and labels: `name{label="value"}` -> value."""
    from prometheus_client.parser import text_string_to_metric_families

    totals: dict[str, float] = {}
    for url in urls:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - the URL of our own agent on loopback
            text = answer.read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
                key = f"{sample.name}{{{labels}}}" if labels else sample.name
                totals[key] = totals.get(key, 0.0) + sample.value
    return totals


def rise(before: Samples, after: Samples) -> Samples:
    """What each sample rose by; one that was not there before counts from 0."""
    return {key: value - before.get(key, 0.0) for key, value in after.items()}


def counter_sum(samples: Samples, name: str, **labels: str) -> float:
    """The sum of one counter over all label values but the given ones; 0 for label values that never occurred.

    Raises KeyError when there is no such counter at all.
    """
    family = {key: value for key, value in samples.items() if key.split("{")[0] == name}
    if not family:
        raise KeyError(f"the agent reports no counter {name}")
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(value for key, value in family.items() if all(each in key for each in wanted))
