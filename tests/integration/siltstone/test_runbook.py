"""The commands and queries on the pages for operators: the SQL runs, and the commands exist."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from metadata.postgres.driver import open_connection
from siltstone.cli import main
from siltstone.cli.erase.command import RequestByDefault

ROOT = Path(__file__).resolve().parents[3]
RUNBOOK = ROOT / "docs" / "operations" / "runbook.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "operations").glob("*.md")])
QUERIES = re.findall(r"```sql\n(.*?)```", RUNBOOK.read_text(), re.DOTALL)


def commands(page: Path) -> Sequence[Sequence[str]]:
    """The words of each `siltstone ...` in backticks, which may contain a line break, and at the beginning of a line of
    a block."""
    text = page.read_text()
    told = re.findall(r"(?<!`)`siltstone ([^`]+)`", text)
    fenced = re.findall(r"^ *```(\w+)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    blocks = [block for language, block in fenced if language in ("sh", "bash", "console")]
    typed = [
        _until_an_operator(line)
        for block in blocks
        for line in re.findall(r"^(?:\$ )?siltstone (.+)", block.replace("\\\n", " "), re.MULTILINE)
    ]
    return [*(shlex.split(" ".join(each.split()), comments=True) for each in told), *typed]


def _until_an_operator(line: str) -> Sequence[str]:
    """The words of the first command of a line."""
    words = shlex.shlex(line, posix=True, punctuation_chars="|;&<>")
    words.whitespace_split = True
    return list(itertools.takewhile(lambda word: not word or word[0] not in "|;&<>", words))


def unknown(words: Sequence[str]) -> str:
    """The error in the words of a command; "" if there is none."""
    command: click.Command = main
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        found = command.get_command(click.Context(command), name)
        if found is None and isinstance(command, RequestByDefault):
            found, rest = command.commands["request"], [name, *rest]
        if found is None:
            return f"no command {name!r} in {' '.join(words)!r}"
        command = found
    context = click.Context(command)
    try:
        given, left, _ = command.make_parser(context).parse_args(list(rest))
    except click.UsageError as error:
        return f"{error.message} in {' '.join(words)!r}"
    if left and not isinstance(command, click.Group):
        return f"one word too many, {left[0]!r}, in {' '.join(words)!r}"
    if not rest:  # spoken of by its name
        return ""
    # placeholders (TOPIC, GROUP) are not converted; they are only present or missing
    missing = [
        parameter.opts[0] if isinstance(parameter, click.Option) else parameter.human_readable_name
        for parameter in command.params
        if parameter.required and not is_text(given.get(str(parameter.name))) and not parameter.envvar
    ]
    return f"{missing[0]} is missing in {' '.join(words)!r}" if missing else ""


def is_text(given: object) -> bool:
    """Whether the parser found a value. click has a special value for a missing one."""
    return isinstance(given, str) or (isinstance(given, list | tuple) and any(isinstance(each, str) for each in given))


async def test_every_query_of_the_runbook_runs_and_changes_nothing(postgres_url: str) -> None:
    assert len(QUERIES) >= 10
    connection = await open_connection(postgres_url, connect_timeout_s=10, command_timeout_s=60, settings={})
    try:
        for query in QUERIES:
            await connection.execute("BEGIN READ ONLY")
            await connection.fetch(query)
            await connection.execute("ROLLBACK")
    finally:
        await connection.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_is_one(page: Path) -> None:
    assert [found for each in commands(page) if (found := unknown(each))] == []


def test_a_command_that_is_none_is_noticed() -> None:
    assert len(commands(RUNBOOK)) > 20
    assert unknown(["agents", "list"]) == "no command 'agents' in 'agents list'"
    assert re.match("No such option.*--adopted.* in 'fsck --adopted'", unknown(["fsck", "--adopted"]))
    assert unknown(["fsck", "--adopt", "now"]) == "one word too many, 'now', in 'fsck --adopt now'"
    assert unknown(["groups", "delete-offsets", "GROUP"]) == "--topic is missing in 'groups delete-offsets GROUP'"
    assert unknown(["groups", "delete-offsets", "--topic", "t"]).startswith("GROUP is missing in")
    assert unknown(["groups", "delete-offsets", "GROUP", "--topic", "TOPIC"]) == ""
    assert unknown(["jobs", "list", "--state", "failed"]) == ""
    assert unknown(["jobs", "list", "--state"]).endswith("in 'jobs list --state'")
