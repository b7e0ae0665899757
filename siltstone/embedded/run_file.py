"""`DIR/run.json`: what a running `siltstone dev` tells other commands. Mode 0600, for it holds Postgres's password.

Written whole under another name and renamed, removed at stop. One that a killed process left is known by its pid: no
such process, or one that was started at another time (the pid was given away again).
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from runtime.errors import BadInputError

NAME = "run.json"


class RunFileError(BadInputError):
    """`run.json` is not what we write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    pid: int
    started_ticks: int
    """When the process was started, in clock ticks since the boot (field 22 of /proc/PID/stat)."""
    bootstrap: str
    """HOST:PORT[,HOST:PORT...]"""
    metadata_url: str
    object_store_url: str
    metrics_url: str
    """Of the first agent."""
    metrics_urls: tuple[str, ...]
    """Of all agents."""
    compactor_metrics_urls: tuple[str, ...] = ()
    """Of all compactors, once all are ready: they may take longer than the agents, whose clients need not wait."""


def write_run_file(data: Path, run: RunFile) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=f".{NAME}-", dir=data)  # mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(run), file, indent=2)
            file.write("\n")
        Path(temporary).replace(data / NAME)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def remove_run_file(data: Path) -> None:
    (data / NAME).unlink(missing_ok=True)


def run_file_exists(data: Path) -> bool:
    """For who holds the lock of the directory: whether a predecessor was killed."""
    return (data / NAME).exists()


def read_run_file(data: Path) -> RunFile | None:
    """What the running `siltstone dev` says, or None when none runs on this directory. Raises RunFileError."""
    path = data / NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunFileError(f"cannot read {path}: {error.strerror}", remedy="run as the user who started it") from error
    try:
        run = _parse(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise RunFileError(f"{path} is not what `siltstone dev` writes: {error}", remedy="remove it") from error
    return run if started_ticks(run.pid) == run.started_ticks else None


def started_ticks(pid: int) -> int | None:
    """None when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # the second field is the program's name in brackets and may hold anything, brackets too
    after_name = stat.rpartition(")")[2].split()
    return int(after_name[19]) if after_name[0] != "Z" else None


def _parse(value: Any) -> RunFile:
    fields = cast(Mapping[str, Any], value)
    return RunFile(
        pid=int(fields["pid"]),
        started_ticks=int(fields["started_ticks"]),
        bootstrap=str(fields["bootstrap"]),
        metadata_url=str(fields["metadata_url"]),
        object_store_url=str(fields["object_store_url"]),
        metrics_url=str(fields["metrics_url"]),
        metrics_urls=tuple(str(url) for url in fields["metrics_urls"]),
        # a stack that an earlier release has started does not tell
        compactor_metrics_urls=tuple(str(url) for url in fields.get("compactor_metrics_urls", ())),
    )
