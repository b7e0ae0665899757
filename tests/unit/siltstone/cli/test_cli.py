"""The command itself: help, loading, and the output of errors. Other tests run the commands on a running stack."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from metadata.contract.errors import MetadataUnavailableError
from runtime.errors import BadInputError
from siltstone import cli
from siltstone.cli.postgres_remedies import remedy_of
from siltstone.cli.topics import commands as topics
from siltstone.kafka.addresses import parse_bootstrap


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


def run(*words: str, **environment: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.main, words, env=environment)
    return result.exit_code, result.stdout, result.stderr


def fake_command(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make `siltstone doctor` a command that raises `error`."""

    @click.command()
    def doctor() -> None:
        raise error

    monkeypatch.setitem(cli.COMMANDS, "doctor", (f"{__name__}:stand_in", ""))  # type: ignore[arg-type]
    monkeypatch.setattr(sys.modules[__name__], "stand_in", doctor, raising=False)


def test_every_command_has_help_with_an_example() -> None:
    for path in commands(cli.main):  # type: ignore[arg-type]
        code, text, errors = run(*path, "--help")
        assert code == 0, errors
        assert "Example" in text and "siltstone " + path[0] in text, path
        assert "\\b" not in text, f"{path}: its examples are folded into a paragraph"


def test_the_list_of_commands_loads_none_of_them() -> None:
    code = (
        "import sys\nfrom siltstone.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print([name for name in sys.modules if name.split('.')[0] in "
        "('asyncio', 'rich', 'sqlalchemy', 'aioboto3', 'wire', 'storage', 'metadata', 'agents', 'compactor')])"
    )
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert outcome.stdout.splitlines()[-1] == "[]"


def test_commands_that_read_and_check_load_nothing_that_merges_or_migrates() -> None:
    modules = ", ".join(f"siltstone.cli.{name}" for name in ("fsck", "record", "erase.command", "files.list_files"))
    unwanted = {"numpy", "numba", "alembic", "metadata.memory.store"}
    code = f"import sys, {modules}\nprint(sorted({unwanted} & sys.modules.keys()))"
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert outcome.stdout == "[]\n"


def test_every_command_of_the_list_has_the_name_it_is_listed_under() -> None:
    context = click.Context(cli.main)
    for name in cli.COMMANDS:
        command = cli.main.get_command(context, name)  # type: ignore[attr-defined]
        assert command is not None and command.name == name


def test_an_error_is_two_lines_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_command(monkeypatch, BadInputError("the bucket is gone", remedy="make it anew"))
    assert run("doctor") == (1, "", "error: the bucket is gone\nremedy: make it anew\n")


def test_a_fault_of_ours_is_no_traceback_either(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_command(monkeypatch, KeyError("shard"))
    code, out, errors = run("doctor")
    assert (code, out) == (1, "")
    assert errors.startswith("error: KeyError: 'shard'\nremedy: ")
    assert "SILTSTONE_TRACEBACK=1" in errors


def test_ctrl_c_is_no_finding_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_command(monkeypatch, KeyboardInterrupt())
    assert run("doctor") == (130, "", "stopped before the end\n")


def test_a_traceback_is_shown_to_who_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_command(monkeypatch, KeyError("shard"))
    with pytest.raises(KeyError):
        CliRunner().invoke(cli.main, ["doctor"], env={"SILTSTONE_TRACEBACK": "1"}, catch_exceptions=False)


def test_wrong_usage_ends_with_2_and_names_the_near_command() -> None:
    code, _, errors = run("topcs")
    assert code == 2
    assert "'topics'" in errors
    assert run("topics", "create")[0] == 2
    assert run("topics", "create", "x", "--partitions", "0")[0] == 2


def test_version_is_told() -> None:
    code, text, _ = run("--version")
    assert code == 0
    assert text.startswith("siltstone ")


def test_configs_are_read_as_name_and_value() -> None:
    assert topics.parse_configs(["retention.ms=1000", "a = b=c "]) == {"retention.ms": "1000", "a": "b=c"}


@pytest.mark.parametrize("pairs", [["retention.ms"], ["=1"], ["a=1", "a=2"]])
def test_configs_that_cannot_be_are_refused(pairs: list[str]) -> None:
    with pytest.raises(click.UsageError):
        topics.parse_configs(pairs)


def test_no_agent_is_an_error_with_a_remedy(unused_tcp_port: int) -> None:
    code, _, errors = run("topics", "list", "--bootstrap", f"127.0.0.1:{unused_tcp_port}")
    assert code == 1
    assert errors.startswith(f"error: no agent answers at 127.0.0.1:{unused_tcp_port}")
    assert "remedy: start one with `siltstone dev`" in errors


def test_the_bootstrap_address_comes_from_the_environment(unused_tcp_port: int) -> None:
    _, _, errors = run("topics", "list", SILTSTONE_BOOTSTRAP=f"127.0.0.1:{unused_tcp_port}")
    assert f"127.0.0.1:{unused_tcp_port}" in errors


@pytest.mark.parametrize(
    "bootstrap", ["", "localhost:", ":9092", "[::1", "::1:9092", "localhost:0", "localhost:70000", "a:1,,b:2"]
)
def test_a_bad_bootstrap_address_is_refused_by_name(bootstrap: str) -> None:
    code, _, errors = run("topics", "list", "--bootstrap", bootstrap)
    assert code == 1
    assert "is not HOST:PORT" in errors


def test_a_host_without_a_port_has_kafkas_port() -> None:
    assert parse_bootstrap("localhost, [::1], a:1") == [("localhost", 9092), ("::1", 9092), ("a", 1)]


def test_a_url_as_bootstrap_address_gets_its_remedy_and_no_password_is_printed() -> None:
    code, _, errors = run("topics", "list", "--bootstrap", "http://me:geheim@agents.example:8080/metrics")
    assert "geheim" not in run("topics", "list", "--bootstrap", "me:geheim@agents.example:9092")[2]
    assert code == 1 and "not a URL (http://...)" in errors and "geheim" not in errors
    assert "remedy: give the address without http://: agents.example:8080." in errors


def delete_orders(stdin: int) -> subprocess.CompletedProcess[str]:
    """Run `siltstone topics delete orders` with this standard input, without an agent."""
    command = [sys.executable, "-m", "siltstone", "topics", "delete", "orders", "--bootstrap", "127.0.0.1:1"]
    return subprocess.run(command, stdin=stdin, capture_output=True, text=True, timeout=60)


def test_delete_asks_first_on_a_terminal_and_does_nothing_without_a_yes() -> None:
    ours, terminal = os.openpty()
    try:
        for answer, asked_agent in ((b"n\n", False), (b"y\n", True)):
            os.write(ours, answer)
            outcome = delete_orders(terminal)
            assert outcome.returncode == 1
            assert ("no agent answers" in outcome.stderr) == asked_agent
    finally:
        os.close(ours)
        os.close(terminal)


def test_delete_says_that_yes_is_needed_where_nobody_can_be_asked() -> None:
    outcome = delete_orders(subprocess.DEVNULL)
    assert outcome.returncode == 2
    assert "add --yes" in outcome.stderr
    assert "Aborted" not in outcome.stderr + outcome.stdout


def test_doctor_without_a_place_begins_with_what_it_did_not_look_at_and_how_to_point_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said, errors = run("doctor")
    assert code == 1 and errors.startswith(
        "error: no Postgres and no object store were named, so neither was checked\nremedy: "
    )
    assert run("doctor", "--json")[0] == 1
    first = said.splitlines()[0]
    assert first.startswith("not checked: Postgres and an object store; give --data DIR of `siltstone dev`")


def test_a_place_that_nothing_names_is_the_one_where_dev_keeps_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no option or setting says where the metadata is" in run("fsck")[2]
    (tmp_path / "siltstone-data" / "postgres").mkdir(parents=True)
    assert "siltstone-data contains no metadata of `siltstone dev`" in run("fsck")[2]
    # when anything names a place, that place counts
    named = run("fsck", SILTSTONE_METADATA_URL="postgresql://u@127.0.0.1:1/db", SILTSTONE_OBJECT_STORE_URL="memory://")
    assert "siltstone-data" not in named[2] and named[0]


def test_a_variable_names_the_directory_for_all_commands(tmp_path: Path) -> None:
    there = str(tmp_path)
    for words in (("fsck",), ("topics", "explain", "x"), ("files", "list"), ("migrate", "--dry-run")):
        code, _, errors = run(*words, SILTSTONE_DATA=there)
        assert code == 1 and f"{there} contains no metadata of `siltstone dev`" in errors, words
    for words in (("topics", "list"), ("groups", "list"), ("compactor",), ("producers",)):
        code, _, errors = run(*words, SILTSTONE_DATA=there)
        assert code == 1 and there in errors, words
    code, _, errors = run("fsck", SILTSTONE_DATA=there + "/none")
    assert code == 2 and "does not exist" in errors
    # the command line counts first
    for words in (
        ("fsck", "--metadata", "postgresql://u@127.0.0.1:1/db", "--object-store", "file:///nowhere"),
        ("migrate", "--metadata", "postgresql://u@127.0.0.1:1/db"),
        ("topics", "list", "--bootstrap", "127.0.0.1:1"),
        ("producers", "--agent", "http://127.0.0.1:1", "--seconds", "0"),
    ):
        code, _, errors = run(*words, SILTSTONE_DATA=there)
        assert code == 1 and there not in errors, words
    code, _, errors = run("fsck", "--data", there, "--metadata", "postgresql://u@127.0.0.1:1/db")
    assert code == 2 and "--data already names the whole system" in errors


def test_doctor_of_one_place_alone_does_not_fail_for_the_other(tmp_path: Path) -> None:
    code, said, errors = run("doctor", "--object-store", tmp_path.as_uri())
    assert (code, errors) == (0, "") and said.startswith("not checked: Postgres; ")


@pytest.mark.parametrize(
    ("words", "ways"),
    [
        (("levels",), ("--data DIR", "--metadata URL", "SILTSTONE_METADATA_URL")),
        (("migrate",), ("--data DIR", "--metadata URL", "SILTSTONE_METADATA_URL")),
        (("rebuild", "--metadata", "postgresql://h/x"), ("--object-store URL", "SILTSTONE_OBJECT_STORE_URL")),
    ],
)
def test_a_place_that_is_not_named_is_told_with_the_options_that_the_command_has(
    words: tuple[str, ...], ways: tuple[str, ...]
) -> None:
    code, _, errors = run(*words)
    assert code == 1
    remedy = errors.splitlines()[-1]
    assert remedy.startswith("remedy: ") and all(way in remedy for way in ways), errors
    assert ("--data" in remedy) == ("--data DIR" in ways)


@pytest.mark.parametrize("command", ["rebuild", "doctor"])
def test_a_directory_of_objects_that_is_mistyped_is_told_and_not_made(
    tmp_path: Path, command: str, unused_tcp_port: int
) -> None:
    place = ("--object-store", (tmp_path / "nope").as_uri())
    code, said, errors = run(command, *place, "--metadata", f"postgresql://u@127.0.0.1:{unused_tcp_port}/db")
    assert code == 1
    assert f"there is no directory {tmp_path / 'nope'}" in said + errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["agent", "compactor"])
def test_the_address_of_metrics_has_one_name_in_all_processes(command: str) -> None:
    code, _, errors = run(command, "--metrics-listen", "somewhere")
    assert code == 1 and "metrics.listen" in errors and "somewhere" in errors
    names = run(command, "--help")[1]
    assert "--metrics-listen" in names and "--listen" in names


def test_a_url_with_a_question_mark_in_an_example_is_quoted_for_the_shell() -> None:
    for path in commands(cli.main):  # type: ignore[arg-type]
        for line in run(*path, "--help")[1].splitlines():
            if line.strip().startswith("siltstone "):
                assert "?" not in re.sub("'[^']*'", "", line), line


class PostgresSaid(Exception):
    """The error as the driver raises it."""

    def __init__(self, sqlstate: str) -> None:
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("cause", "remedy"),
    [
        (PostgresSaid("28P01"), "password"),
        (PostgresSaid("3D000"), "createdb"),
        (PostgresSaid("XX000"), "log of that Postgres"),
        (ConnectionRefusedError(111, "refused"), "start that Postgres"),
        (socket.gaierror(-2, "unknown"), "host name"),
        (TimeoutError(), "can be reached"),
        (None, "check that Postgres runs"),
    ],
)
def test_a_postgres_that_cannot_be_had_comes_with_a_remedy_for_its_cause(cause: Exception | None, remedy: str) -> None:
    error = MetadataUnavailableError("cannot connect")
    error.__cause__ = cause
    assert remedy in remedy_of(error)


def test_a_remedy_that_an_error_has_of_its_own_is_kept() -> None:
    assert remedy_of(MetadataUnavailableError("cannot connect", remedy="pray")) == ""
    assert remedy_of(BadInputError("something else")) == ""


def test_migrate_names_the_remedy_when_nobody_answers(unused_tcp_port: int) -> None:
    code, _, errors = run("migrate", "--metadata", f"postgresql://u@127.0.0.1:{unused_tcp_port}/db")
    assert code == 1
    assert "remedy: start that Postgres" in errors


def test_examples_of_help_fit_a_terminal_of_80_columns() -> None:
    for path in commands(cli.main):  # type: ignore[arg-type]
        _, text, _ = run(*path, "--help")
        examples = text[text.index("Example") :].split("\n\n")[0]
        assert max(map(len, examples.splitlines())) <= 80, path


@pytest.mark.parametrize(
    ("words", "error", "remedy"),
    [
        (("jobs", "show", "abc"), "'abc' is not a job id", "`siltstone jobs list` shows the jobs"),
        (("levels", "--data", "/nosuch"), "'/nosuch' does not exist", "name the directory that `siltstone dev`"),
        (("compactor", "simulate", "--hours", "-3"), "not in the range", "give a number from 0.1 to 8760"),
        (("jobs", "list", "--limit", "x"), "'x' is not a whole number.", "give a whole number from 1 to 10000"),
        (("compactor", "simulate", "--hours", "x"), "'x' is not a number.", "give a number from 0.1 to 8760"),
        (("erase", "statsu", "1"), "no such subcommand 'statsu'", "did you mean 'status'?"),
        (("erase", "users", "--key", "k", "--before", "2999"), "lies in the future", "leave --before out"),
        (("files", "list", "--level", "L7"), "'L7' is not a level", "give 0, 1 or 2"),
        (("compact", "users", "--timeout", "5"), "because only --now waits", "add --now"),
        (("topics", "alter", "users"), "no change was asked for", ""),
    ],
)
def test_wrong_words_are_told_with_a_remedy(words: tuple[str, ...], error: str, remedy: str) -> None:
    code, _, errors = run(*words)
    assert code == 2 and error in errors
    assert f"\nremedy: {remedy}" in errors if remedy else "remedy" not in errors


def test_a_level_may_be_named_as_it_is_shown() -> None:
    for level in ("L1", "1", "l1"):
        code, _, errors = run("files", "list", "--level", level)
        assert code == 1 and "no option or setting says where the metadata is" in errors


@pytest.mark.parametrize(
    "words", [("list",), ("create", "x"), ("alter", "x", "--partitions", "2"), ("delete", "x", "--yes")]
)
def test_a_directory_where_nothing_runs_has_no_agents(tmp_path: Path, words: tuple[str, ...]) -> None:
    code, _, errors = run("topics", *words, "--data", str(tmp_path))
    assert code == 1 and f"no agent runs on {tmp_path}" in errors
    assert f"siltstone dev --data {tmp_path}" in errors
