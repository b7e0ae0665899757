"""Ranges of offsets."""

from __future__ import annotations


def joined_ranges(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Disjoint inclusive (base, last) ranges in order, with touching ranges joined."""
    joined: list[tuple[int, int]] = []
    for base, last in ranges:
        if joined and joined[-1][1] + 1 == base:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((base, last))
    return joined
