"""One planted bug as data, and the text of the file that has it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class PlantError(Exception):
    """The text to replace is not in its file exactly once."""


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    file: str
    """Path from the root of the repository."""
    text: str
    """Stands in the file exactly once."""
    replacement: str
    tests: tuple[str, ...]
    """Node ids without parameters. Each of them must fail, with some parameters at least."""

    def planted(self, root: Path) -> str:
        """The file's text with the bug. Raises PlantError when the text to replace is absent or there twice."""
        try:
            source = (root / self.file).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise PlantError(f"{self.name}: there is no {self.file}") from None
        count = source.count(self.text)
        if count != 1:
            raise PlantError(f"{self.name}: {self.file} has the text to replace {count} times, not once: {self.text!r}")
        return source.replace(self.text, self.replacement)
