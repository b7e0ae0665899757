"""`DIR/run.json`: the addresses of a running `siltstone dev`, for other commands. Mode 0600: it contains a password.

The file is written completely under another name and then renamed; it is removed at stop. The file of a killed process
is recognized by its pid: there is no such process, or it was started at another time because the pid was reused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from runtime.errors import BadInputError
from siltstone.embedded.private_files import write_private

NAME = "run.json"


class RunFileError(BadInputError):
    """`run.json` cannot be read, or `siltstone dev` did not write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    pid: int
    started_ticks: int
    """The start time of the process, in clock ticks since the boot (field 22 of /proc/PID/stat)."""
    bootstrap: str
    """HOST:PORT[,HOST:PORT...]"""
    metadata_url: str = field(repr=False)
    object_store_url: str
    metrics_url: str
    """The metrics of the first agent."""
    metrics_urls: tuple[str, ...]
    """The metrics of all agents."""
    compactor_metrics_urls: tuple[str, ...] = ()
    """The metrics of all compactors, once all are ready, which may be later than the agents."""
    client_config: str = ""
    """The client.properties by which commands come in; empty if anybody may (without `--secure`)."""


def write_run_file(data: Path, run: RunFile) -> None:
    write_private(data / NAME, f"{json.dumps(asdict(run), indent=2)}\n".encode())


def remove_run_file(data: Path) -> None:
    (data / NAME).unlink(missing_ok=True)


def run_file_exists(data: Path) -> bool:
    """Whether the file exists. To the holder of the directory's lock that means that its predecessor was killed."""
    return (data / NAME).exists()


def read_run_file(data: Path) -> RunFile | None:
    """The file of the running `siltstone dev`; None if none runs on this directory. Raises RunFileError."""
    path = data / NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunFileError(
            f"cannot read {path}: {error.strerror}", remedy="run as the user that started `siltstone dev`"
        ) from error
    try:
        run = _parse(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise RunFileError(
            f"{path} was not written by `siltstone dev`: {error}", remedy=f"if no `siltstone dev` runs, remove {path}"
        ) from error
    return run if started_ticks(run.pid) == run.started_ticks else None


def started_ticks(pid: int) -> int | None:
    """The start time of a process; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the name of the program in brackets. It may contain anything, also brackets and spaces.
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
        # an earlier release does not write these fields
        compactor_metrics_urls=tuple(str(url) for url in fields.get("compactor_metrics_urls", ())),
        client_config=str(fields.get("client_config", "")),
    )
