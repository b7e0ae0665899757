"""Limits the lines of one kind, so that a storm of errors neither fills a disk nor hides other lines. Pure.

Lines are of one kind when their module and their constant text are the same. In each window of WINDOW_MS the first
`lines_max` lines of a kind are shown, and the others are counted. The next shown line of the kind carries the count; if
none comes, `ended` returns it.
"""

from __future__ import annotations

from dataclasses import dataclass

WINDOW_MS = 10_000.0
KINDS_MAX = 1_000
"""Kinds that are remembered. Our texts are constants, so there are fewer; a library's texts may vary."""

Kind = tuple[str, str]
"""(module, text)"""


@dataclass(slots=True)
class _Window:
    began_ms: float
    shown: int = 0
    left_out: int = 0


class Bursts:
    def __init__(self, lines_max: int) -> None:
        """`lines_max`: 0 = no bound."""
        self._lines_max = lines_max
        self._windows: dict[Kind, _Window] = {}

    def admit(self, kind: Kind, now_ms: float) -> int | None:
        """None: leave this line out. Else the number of lines of its kind left out since the last one shown."""
        if not self._lines_max:
            return 0
        window = self._windows.get(kind)
        left_out = 0
        if window is None or now_ms - window.began_ms >= WINDOW_MS:
            left_out = 0 if window is None else window.left_out
            # Those with a count stay, or their left-out lines would never be told.
            if len(self._windows) >= KINDS_MAX:
                self._windows = {each: known for each, known in self._windows.items() if known.left_out}
            window = self._windows[kind] = _Window(now_ms)
        if window.shown >= self._lines_max:
            window.left_out += 1
            return None
        window.shown += 1
        return left_out

    def ended(self, now_ms: float, *, all_of_them: bool = False) -> list[tuple[Kind, int]]:
        """Kinds with lines left out in a window that is over (or in any window, when the process ends). Each only
        once."""
        over = {
            kind: window.left_out
            for kind, window in self._windows.items()
            if all_of_them or now_ms - window.began_ms >= WINDOW_MS
        }
        # Also those with nothing to tell: a kind that is quiet again costs no memory.
        for kind in over:
            del self._windows[kind]
        return [(kind, left_out) for kind, left_out in over.items() if left_out]
