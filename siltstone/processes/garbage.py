"""How often Python's garbage collector looks for cycles of objects: the arguments of `gc.set_threshold`."""

from __future__ import annotations

SELDOM = (20_000, 4, 100)
"""For agents, and for the start of every command. By Python's default of 700 the collector would run after every few
requests and look through thousands of batches that are in use; in a start, through all that was imported. The second is
small, so that a request of very many elements does not lead to one look through all of them: 20 ms instead of 100. The
product bounds how often it looks through everything."""

USUAL = (700, 10, 10)
"""Python's default, for compactors: what a merge has left may hold on to large arrays."""
