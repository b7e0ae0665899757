"""Sizes, ages and counts in few characters, for messages, reports and tables."""

from __future__ import annotations


def size_text(size_bytes: float) -> str:
    """1536 -> "1.5 KiB"."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def age_text(age_ms: float) -> str:
    """90_000 -> "1m30s". Below zero (another clock is ahead of ours) is shown as 0s."""
    seconds = max(0, int(age_ms / 1000))
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    if seconds < 86_400:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
    return f"{seconds // 86_400}d{seconds % 86_400 // 3600:02d}h"


def plural(count: int, what: str) -> str:
    """2, "file" -> "2 files"; 2, "batch" -> "2 batches"."""
    ending = "" if count == 1 else "es" if what.endswith(("ch", "s", "x")) else "s"
    return f"{count:,} {what}{ending}"
