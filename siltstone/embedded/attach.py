"""Connect a command to the system in a data directory of `siltstone dev` (`--data DIR`).

If `siltstone dev` runs there, its `run.json` has all addresses. If not, the embedded Postgres is started for the run of
the command and stopped after it. The objects are in the directory in both cases.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from runtime.errors import BadInputError
from runtime.settings.checks import is_memory
from siltstone.embedded.postgres import EmbeddedPostgres
from siltstone.embedded.run_file import read_run_file

POSTGRES = "postgres"
OBJECTS = "objects"


def data_directory(data: Path) -> Path:
    """The canonical name of a data directory in URLs, files and messages: absolute, without `..` or symbolic links."""
    return data.resolve()


def objects_url(data: Path) -> str:
    """The URL of the objects in a data directory, unless another object store was given."""
    return (data_directory(data) / OBJECTS).as_uri()


class NothingHereError(BadInputError):
    """The directory contains no system, and none runs on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    metadata_url: str = field(repr=False)
    object_store_url: str
    bootstrap: str
    """HOST:PORT[,HOST:PORT...] of the agents; empty if none runs."""


@contextmanager
def attach(data: Path) -> Generator[Attached]:
    """The addresses of the system. Blocks while Postgres starts and stops, usually for less than a second.

    Raises NothingHereError, RunFileError, DataDirectoryInUseError (a `siltstone dev` is just starting), and the errors
    of `EmbeddedPostgres.start`.
    """
    data = data_directory(data)
    run = read_run_file(data)
    if run is not None:
        if is_memory(run.metadata_url) or is_memory(run.object_store_url):
            raise NothingHereError(
                f"the `siltstone dev` on {data} (process {run.pid}) keeps everything in its own memory, which no other"
                " process can read",
                remedy="start `siltstone dev` without memory:// to keep everything in a directory",
            )
        yield Attached(metadata_url=run.metadata_url, object_store_url=run.object_store_url, bootstrap=run.bootstrap)
        return
    if not (data / POSTGRES / "data" / "PG_VERSION").exists():
        raise NothingHereError(
            f"{data} contains no metadata of `siltstone dev`, and none is running there",
            remedy="name another directory with --data, or give --metadata and --object-store",
        )
    with EmbeddedPostgres(data / POSTGRES) as postgres:
        yield Attached(metadata_url=postgres.url, object_store_url=objects_url(data), bootstrap="")
