"""How often Python's garbage collector looks for cycles of objects: the arguments of `gc.set_threshold`."""

from __future__ import annotations

SELDOM = (20_000, 20, 20)
"""For agents, and for the start of every command. By Python's default of 700 the collector would run after every few
requests and look through thousands of batches that are in use; in a start, through all that was imported."""

USUAL = (700, 10, 10)
"""Python's default, for compactors: what a merge has left may hold on to large arrays."""
