"""`python -m bench`: names, sizes, and files of tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import bench.__main__ as command
from bench.registry import BENCHMARKS, Benchmark, Size, find
from bench.table import Column, Table


def benchmark(name: str, seen: list[Size], *, fails: bool = False) -> Benchmark:
    def run(size: Size) -> Iterator[Table]:
        seen.append(size)
        yield Table(f"{name} 1", "", (Column("n"),), [[1]])
        if fails:
            raise RuntimeError("broken on purpose")

    return Benchmark(name, "made up", run)


def test_without_names_all_are_run_in_their_order() -> None:
    assert find([]) == list(BENCHMARKS)
    assert [each.name for each in find(["commit", "file_build"])] == ["file_build", "commit"]


def test_an_unknown_name_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["speed"]) == 2
    shown = capsys.readouterr()
    assert "no benchmark is called speed; there are: file_build, commit" in shown.err
    assert shown.out == ""


def test_help_has_examples_and_every_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--help"])
    shown = capsys.readouterr().out
    assert "python -m bench commit --full" in shown
    assert [each.name for each in BENCHMARKS if each.doc not in shown] == []


def test_tables_go_to_stdout_and_to_the_files_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given two benchmarks, the first of which breaks after its table
    seen: list[Size] = []
    made_up = (benchmark("first", seen, fails=True), benchmark("second", seen))
    monkeypatch.setattr("bench.registry.BENCHMARKS", made_up)
    # when all are run in full
    files = ["--json", str(tmp_path / "t.json"), "--markdown", str(tmp_path / "t.md")]
    assert command.main(["--full", *files]) == 1
    # then both tables are everywhere, the failure is told, and both ran in full
    shown = capsys.readouterr()
    assert "first 1" in shown.out and "second 1" in shown.out
    assert "broken on purpose" in shown.err and "failed: first" in shown.err
    assert [table["title"] for table in json.loads((tmp_path / "t.json").read_text())] == ["first 1", "second 1"]
    assert (tmp_path / "t.md").read_text().startswith("### first 1\n")
    assert seen == [Size.FULL, Size.FULL]
