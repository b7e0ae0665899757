"""What the runbook tells a person to run: its SQL runs, its commands are there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from metadata.asyncpg_driver import open_connection
from siltstone.cli import main

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs" / "operations").glob("*.md"))
RUNBOOK = next(page for page in PAGES if page.name == "runbook.md")
MONITORING = next(page for page in PAGES if page.name == "monitoring.md")
QUERIES = re.findall(r"```sql\n(.*?)```", RUNBOOK.read_text(), re.DOTALL)


def commands(page: Path) -> Sequence[Sequence[str]]:
    """`siltstone ...` between backticks, as words; a line may break within."""
    told = re.findall(r"(?<!`)`siltstone ([^`]+)`", page.read_text())
    return [shlex.split(" ".join(each.split())) for each in told]


def unknown(words: Sequence[str]) -> str:
    """What is wrong with a command's words; "" = nothing."""
    command: click.Command = main
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        found = command.get_command(click.Context(command), name)
        if found is None:
            return f"no command {name!r} in {' '.join(words)!r}"
        command = found
    options = {option for parameter in command.params for option in parameter.opts}
    strange = [word for word in rest if word.startswith("-") and word not in options]
    return f"no option {strange[0]} in {' '.join(words)!r}" if strange else ""


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


@pytest.mark.parametrize("page", [RUNBOOK, MONITORING], ids=lambda page: page.name)
def test_every_command_of_a_page_is_one(page: Path) -> None:
    assert [found for each in commands(page) if (found := unknown(each))] == []


def test_a_command_that_is_none_is_noticed() -> None:
    assert len(commands(RUNBOOK)) > 20
    assert unknown(["agents", "list"]) == "no command 'agents' in 'agents list'"
    assert unknown(["fsck", "--adopted"]) == "no option --adopted in 'fsck --adopted'"
    assert unknown(["jobs", "list", "--state", "failed"]) == ""
