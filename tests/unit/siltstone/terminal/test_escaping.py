"""Names are other people's text: none of them steers the terminal, wherever it is printed."""

from __future__ import annotations

import ast
import io
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.text import Text

from runtime import logging
from siltstone.cli import main
from siltstone.terminal import output
from siltstone.terminal.plain import escape_error

ROOT = Path(__file__).resolve().parents[4]
ESC = "\x1b]0;owned\x07\x9b31m"
ALLOWED = {"siltstone/terminal/plain.py", "siltstone/terminal/output.py"}


def assert_harmless(said: str) -> None:
    assert "\\x1b]0;owned" in said, said
    assert not [each for each in said if each != "\n" and not each.isprintable()], said


@pytest.mark.parametrize(
    "words",
    [
        (ESC,),
        (f"--{ESC}",),
        ("topics", ESC),
        ("topics", f"--{ESC}"),
        ("topics", "list", ESC),
        ("topics", "create", "t", "--partitions", ESC),
        ("topics", "create", "t", "--config", ESC),
        ("topics", "describe", "t", "--bootstrap", f"{ESC}:x"),
        ("topics", "trim", "t", "--before", ESC, "--yes"),
        ("cluster", "config", "get", ESC),
        ("consume", "t", "--offset", ESC),
        ("produce", "t", "--partition", ESC),
        ("tables", "export", "t", "--to", f"parquet:{ESC}", "--schema", ESC),
        ("tables", "export", "t", "--to", ESC),
        ("tables", "follow", "t", "--to", "parquet:x", "--every", ESC),
        ("tables", "export", "t", "--to", "parquet:x", "--value", ESC),
        ("fsck", "--data", ESC),
        ("record", "diagnose", "t", ESC, "0"),
        ("file", "inspect", ESC, "--data", f"/tmp/{ESC}"),
        ("groups", "describe", "g", "--bootstrap", f"{ESC}:0"),
        ("agent", "--set", f"{ESC}=1"),
        ("agent", "--config", ESC),
    ],
)
def test_words_of_the_command_line_that_are_refused_are_escaped(words: tuple[str, ...]) -> None:
    ran = CliRunner().invoke(main, words)
    assert ran.exit_code, ran.output
    assert_harmless(ran.output)


def test_a_file_that_click_cannot_open_is_escaped() -> None:
    error = click.FileError(ESC, hint=ESC)
    escape_error(error)
    assert_harmless(error.format_message())


def test_what_rich_prints_is_escaped_and_keeps_its_own_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    target = output.console()
    with target.capture() as drawn:
        target.print(Text.assemble(("fail", "red"), f" {ESC}"))
        target.print(ESC, markup=False)
    said = drawn.get()
    assert "\x1b[31mfail\x1b[0m" in said
    assert_harmless(said.replace("\x1b[31m", "").replace("\x1b[0m", ""))


@pytest.mark.parametrize("form", ["text", "json"])
def test_names_in_the_log_and_in_tracebacks_are_escaped(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    into = io.StringIO()
    monkeypatch.setattr("sys.stderr", into)
    logging.configure("info", form)
    log = logging.get_logger("test")
    log.warning("topic made", topic=ESC)
    try:
        raise ValueError(ESC)
    except ValueError:
        log.exception("request failed", names=[ESC])
    said = into.getvalue()
    assert "\x1b" not in said and "\x9b" not in said and "owned" in said


def test_commands_print_through_the_functions_that_escape() -> None:
    raw: list[str] = []
    for path in sorted((ROOT / "siltstone").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="click"), attr="echo" | "secho")):
                    raw.append(f"{name}:{node.lineno}: click.echo")
                case ast.Call(func=ast.Name(id="print" | "Console")):
                    raw.append(f"{name}:{node.lineno}: print or Console")
                case _:
                    pass
    assert [each for each in raw if each.partition(":")[0] not in ALLOWED] == []
