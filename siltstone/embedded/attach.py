"""How other commands reach the system in a data directory of `siltstone dev` (`--data DIR`).

When `siltstone dev` runs there, its `run.json` says where everything is. When not, the embedded Postgres is started for
the command's own run and stopped after it; the objects lie in the directory anyway.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runtime.errors import BadInputError
from runtime.settings.checks import is_memory
from siltstone.embedded.postgres import EmbeddedPostgres
from siltstone.embedded.run_file import read_run_file

POSTGRES = "postgres"
OBJECTS = "objects"


def data_directory(data: Path) -> Path:
    """The one name of a data directory, in URLs, files and messages: absolute, without `..` and symbolic links."""
    return data.resolve()


def objects_url(data: Path) -> str:
    """Where the objects of a data directory lie, unless an object store was given."""
    return (data_directory(data) / OBJECTS).as_uri()


class NothingHereError(BadInputError):
    """The directory holds no system, and none runs on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    metadata_url: str
    object_store_url: str
    bootstrap: str
    """HOST:PORT[,HOST:PORT...] of the agents; empty when none runs."""


@contextmanager
def attach(data: Path) -> Generator[Attached]:
    """Blocks while Postgres starts and stops (below a second, as a rule).

    Raises NothingHereError, RunFileError, DataDirectoryInUseError (a `siltstone dev` that is just starting), and what
    `EmbeddedPostgres.start` raises.
    """
    data = data_directory(data)
    run = read_run_file(data)
    if run is not None:
        if is_memory(run.metadata_url) or is_memory(run.object_store_url):
            raise NothingHereError(
                f"the `siltstone dev` on {data} (process {run.pid}) keeps everything in its own memory",
                remedy="nobody else can look into it; start it without memory:// to keep things in a directory",
            )
        yield Attached(metadata_url=run.metadata_url, object_store_url=run.object_store_url, bootstrap=run.bootstrap)
        return
    if not (data / POSTGRES / "data" / "PG_VERSION").exists():
        raise NothingHereError(
            f"{data} holds no metadata of `siltstone dev`, and none is running there",
            remedy="name its directory with --data, or give --metadata and --object-store",
        )
    with EmbeddedPostgres(data / POSTGRES) as postgres:
        yield Attached(metadata_url=postgres.url, object_store_url=objects_url(data), bootstrap="")
