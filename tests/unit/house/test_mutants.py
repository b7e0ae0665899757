"""`make mutants` is useful only while its list fits the tree. This quick check plants no mutant."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import __main__ as command
from tests.mutants.mutant import Mutant, PlantError
from tests.mutants.planted import MUTANTS

ROOT = Path(__file__).resolve().parents[3]


def test_every_mutant_changes_its_file_and_leaves_python_behind() -> None:
    for mutant in MUTANTS:
        planted = mutant.planted(ROOT)
        if mutant.file.endswith(".py"):
            compile(planted, mutant.file, "exec")
        assert mutant.text != mutant.replacement, mutant.name


def test_names_are_used_once_and_the_tests_are_there() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 15
    for mutant in MUTANTS:
        assert mutant.tests, mutant.name
        for test in mutant.tests:
            path, _, name = test.partition("::")
            assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), test


@pytest.mark.parametrize(("source", "said"), [("a = 1\n", "0 times"), ("x\nx\n", "2 times")])
def test_a_text_that_is_not_there_once_is_an_error_that_names_it(tmp_path: Path, source: str, said: str) -> None:
    (tmp_path / "room.py").write_text(source)
    with pytest.raises(PlantError, match=f"bug: room.py has the text to replace {said}, not once: 'x'"):
        Mutant("bug", "room.py", "x", "y", ("t",)).planted(tmp_path)


def test_a_name_that_nobody_has_is_told_with_those_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["mutants", "no-such-bug"])
    assert command.main() == 2
    assert f"no mutant is called no-such-bug; there are {MUTANTS[0].name}, " in capsys.readouterr().err


def test_one_that_survives_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found, survivor = MUTANTS[:2]
    monkeypatch.setattr(command, "judge", lambda mutant: "not found by t" if mutant is survivor else "")
    monkeypatch.setattr("sys.argv", ["mutants", found.name, survivor.name])
    assert command.main() == 1
    lines = sorted(capsys.readouterr().out.splitlines())
    assert lines[0] == f"SURVIVED {survivor.name} (0 s): not found by t"
    assert lines[1] == f"found    {found.name} (0 s)"
    assert lines[2] == "survived 1"
