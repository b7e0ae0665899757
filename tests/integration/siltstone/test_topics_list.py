"""`siltstone topics list` where it has nothing to show."""

from __future__ import annotations

import asyncio

from click.testing import CliRunner

from siltstone.cli import main
from tests.fixtures.agents import RunningAgent


async def test_an_empty_list_does_not_say_that_there_are_no_topics(agent: RunningAgent) -> None:
    # in a thread: the agent has the test's event loop
    words = ["topics", "list", "--bootstrap", agent.address]
    ran = await asyncio.to_thread(CliRunner().invoke, main, words)
    assert ran.exit_code == 0 and ran.stdout == "no topics, or none that this client may describe\n"
