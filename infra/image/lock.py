"""Writes requirements.lock beside it: every package that the image may hold, with the hashes of its wheels.

Run it from the top of the repository after `make lock`, with the pip that is to be asked:

    python infra/image/lock.py

pip resolves pyproject.toml with the versions of constraints.txt, once for each extra and architecture, and says which
wheel it would install. Nothing is installed. A line of the lock ends with a comment: what of pyproject.toml needs it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from requirements import BASE, BUILD, requirements

LOCK = Path(__file__).with_name("requirements.lock")
BUILDERS = ("hatchling==1.27.0",)
MACHINES = ("x86_64", "aarch64")
WITHOUT_WHEELS = ("pyspark",)
"""Built from their sources, with what pip fetches for that."""
GLIBC = (36, 35, 34, 31, 28, 27, 24, 17, 12)
"""Bookworm's version of glibc, and the older ones that wheels are named by."""


def resolved(wanted: Sequence[str], machine: str) -> Mapping[str, tuple[str, str]]:
    """By name: the version, and the hash of the wheel that pip would install."""
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC] + [f"manylinux2014_{machine}"]
    words = ["--only-binary", ":all:", "--python-version", "3.11", "--implementation", "cp"]
    words += [word for platform in platforms for word in ("--platform", platform)]
    found: dict[str, tuple[str, str]] = {}
    wheels: list[str] = []
    for each in wanted:
        if each not in WITHOUT_WHEELS:
            wheels.append(each)
            continue
        [source] = reported(["--no-deps", "--no-binary", each, each])
        found.update([entry_of(source)])
        needed = source["metadata"].get("requires_dist", [])
        wheels += [requirement for requirement in needed if "extra ==" not in requirement]
    with tempfile.TemporaryDirectory() as nowhere:
        return found | dict(map(entry_of, reported([*words, "--target", nowhere, *wheels])))


def reported(words: Sequence[str]) -> list[dict[str, Any]]:
    """The distributions that pip would install. Raises SystemExit with pip's own words if it fails."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    # the index alone: a wheel that lies about has other hashes
    environment = {name: value for name, value in os.environ.items() if name != "PIP_FIND_LINKS"}
    done = subprocess.run(  # noqa: S603 - our own words
        [*command, "-c", "constraints.txt", *words], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)["install"]


def entry_of(reported: Mapping[str, Any]) -> tuple[str, tuple[str, str]]:
    name = re.sub(r"[-_.]+", "-", reported["metadata"]["name"]).lower()
    return name, (reported["metadata"]["version"], reported["download_info"]["archive_info"]["hashes"]["sha256"])


def locked(pyproject: str, extras: Mapping[str, object]) -> Iterator[str]:
    """Lines of the lock, by name."""
    versions: dict[str, str] = {}
    hashes: dict[str, set[str]] = {}
    needed_by: dict[str, list[str]] = {}
    for part in (BASE, *extras, BUILD):
        wanted = BUILDERS if part == BUILD else tuple(requirements(pyproject, "" if part == BASE else part))
        for machine in MACHINES:
            for name, (version, digest) in resolved(wanted, machine).items():
                versions[name] = version
                hashes.setdefault(name, set()).add(digest)
                if part not in needed_by.setdefault(name, []):
                    needed_by[name].append(part)
    for name in sorted(versions):
        parts = [BASE] if BASE in needed_by[name] else needed_by[name]
        if BUILD in needed_by[name] and BUILD not in parts:
            parts = [*parts, BUILD]
        digests = " ".join(f"--hash=sha256:{digest}" for digest in sorted(hashes[name]))
        yield f"{name}=={versions[name]} {digests}  # {' '.join(parts)}\n"


if __name__ == "__main__":
    asked = sys.argv[1:] or ["fast-s3", "oauth", "otel", "spark", "tables"]
    text = Path("pyproject.toml").read_text(encoding="utf-8")
    head = "# Written by infra/image/lock.py; do not edit by hand.\n"
    LOCK.write_text(head + "".join(locked(text, dict.fromkeys(asked))), encoding="utf-8")
