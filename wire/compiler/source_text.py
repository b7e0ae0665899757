"""A writer of Python source: its lines, and the objects that they name."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from struct import Struct as Layout
from typing import Any

from wire.schema import Array, FieldTable

layout = cache(Layout)
"""One compiled layout per format, shared by all messages."""


class SourceText:
    """Collects lines; `text` is the source and `names` what it refers to."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = dict(names)
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
