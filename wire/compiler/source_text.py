"""A writer of Python source: its lines, and the objects that they name."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from struct import Struct as Layout
from typing import Any, Final

from wire.schema import Array, FieldTable

STEP_ELEMENTS: Final = 4_000
"""Elements that one step reads or writes: some milliseconds."""
_ELEMENT_BYTES_SHIFT: Final = 9
"""512 bytes of a string, or of an array of numbers, take about as long as an element."""

layout = cache(Layout)
"""One compiled layout per format, shared by all messages."""


class SourceText:
    """Collects lines; `text` is the source and `names` what it refers to.

    `in_steps`: the function is a generator, which pauses (it yields None) whenever a step's work is done.
    """

    def __init__(self, names: dict[str, Any], *, in_steps: bool = False) -> None:
        self.names = dict(names)
        self.in_steps = in_steps
        self._lines: list[str] = []
        self._depth = 0
        self._variables = 0

    @property
    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Generator[None]:
        """The lines inside are the body of `head`."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def begin_steps(self) -> None:
        if self.in_steps:
            self.line(f"left = {STEP_ELEMENTS}")
            # A generator even if it has no loop.
            self.line("if not left: yield")

    def end_element(self) -> None:
        """Stands at the end of the body of a loop."""
        if not self.in_steps:
            return
        self.line("left -= 1")
        with self.block("if left <= 0:"):
            self.line("yield")
            self.line(f"left = {STEP_ELEMENTS}")

    def took(self, elements: str) -> None:
        """Count as many more elements, outside a loop over them."""
        if self.in_steps:
            self.line(f"left -= {elements}")

    def took_bytes(self, size: str) -> None:
        """Count the work of that many bytes."""
        if self.in_steps:
            self.line(f"left -= {size} >> {_ELEMENT_BYTES_SHIFT}")

    def variable(self) -> str:
        """A variable that no other line uses."""
        self._variables += 1
        return f"v{self._variables}"

    def name(self, value: Any, stem: str) -> str:
        """The global name of an object."""
        for name, known in self.names.items():
            if known is value:
                return name
        name = f"{stem}_{len(self.names)}"
        self.names[name] = value
        return name

    def default(self, row: FieldTable) -> str:
        """The default of a field, as an expression."""
        if row.default == () and isinstance(row.type, Array):
            return "[]"
        if row.default is None or isinstance(row.default, (bool, int, str, bytes)):
            return repr(row.default)
        return self.name(row.default, "default")
