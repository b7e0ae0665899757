"""The report at the end of the demo: the files in the store, and the requests and latencies of writing them."""

from __future__ import annotations

import urllib.request
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.text import size_text

Samples = Mapping[str, float]
"""The value by the name of the metric with its labels."""

BAR_CELLS = 32
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a bar chart."""

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
    """The sizes of all files of records in the directory of a local object store, sorted."""
    return sorted(path.stat().st_size for path in objects.rglob(f"*{suffix}"))


def size_bars(sizes: Iterable[int]) -> Sequence[Bar]:
    """The number of files by size, in classes that double, from the smallest file to the largest."""
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
    """Horizontal bars in eighths of a cell. The longest has `cells` cells; a bar above 0 has at least one eighth."""
    largest = max((bar.count for bar in bars), default=0)
    label_width = max((len(bar.label) for bar in bars), default=0)
    lines: list[str] = []
    for bar in bars:
        eighths = max(1, round(bar.count / largest * cells * 8)) if bar.count else 0
        drawn = _EIGHTHS[8] * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
        lines.append(f"  {bar.label:>{label_width}}  {drawn} {bar.count}".rstrip())
    return "\n".join(lines)


def scrape(urls: Sequence[str]) -> Samples:
    """The counters, summed over all agents, by name and labels: `name{label="value"}`."""
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
    """The increase of each sample. A sample that did not exist before counts from 0."""
    return {key: value - before.get(key, 0.0) for key, value in after.items()}


def counter_sum(samples: Samples, name: str, **labels: str) -> float:
    """The sum of one counter over all samples with the given labels; 0 if such label values never occurred.

    Raises KeyError if there is no such counter at all.
    """
    family = {key: value for key, value in samples.items() if key.split("{")[0] == name}
    if not family:
        raise KeyError(f"the agent reports no counter {name}")
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(value for key, value in family.items() if all(each in key for each in wanted))
