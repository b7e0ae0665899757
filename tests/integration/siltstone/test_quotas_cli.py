"""`siltstone quotas` against a real agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from security.quotas.values import DEFAULT, QuotaEntity
from siltstone.cli import main
from tests.fixtures.agents import RunningAgent

Run = Callable[..., "asyncio.Future[Result]"]


@pytest.fixture
def run(agent: RunningAgent) -> Run:
    def invoke(*words: str, code: int = 0) -> Result:
        result = CliRunner(env={"SILTSTONE_BOOTSTRAP": agent.address}).invoke(main, ["quotas", *words])
        assert result.exit_code == code, result.output
        return result

    # in a thread: the agent has the test's event loop
    return lambda *words, code=0: asyncio.ensure_future(asyncio.to_thread(invoke, *words, code=code))


async def test_quotas_are_set_listed_and_lifted(run: Run, agent: RunningAgent) -> None:
    known = agent.agent._access.known
    assert "no quotas" in (await run("list")).output
    done = await run("alter", "--user", "ann", "--add", "producer_byte_rate=1048576", "--add", "request_percentage=2.5")
    assert done.stdout == "changed: user ann now has producer_byte_rate=1,048,576, request_percentage=2.5\n"
    await run("alter", "--user", "ann", "--client-defaults", "--add", "consumer_byte_rate=10")
    await run("alter", "--ip-defaults", "--add", "connection_creation_rate=20")
    ann = {"producer_byte_rate": 1048576.0, "request_percentage": 2.5}
    assert known.quotas == {
        QuotaEntity(user="ann"): ann,
        QuotaEntity(user="ann", client_id=DEFAULT): {"consumer_byte_rate": 10.0},
        QuotaEntity(ip=DEFAULT): {"connection_creation_rate": 20.0},
    }

    everything = (await run("list")).output
    assert "user ann, client-id (default)" in everything and "1,048,576" in everything and "2.5" in everything
    listed = json.loads((await run("list", "--user", "ann", "--strict", "--json")).output)
    assert listed == [{"entity": {"user": "ann"}, "quotas": ann}]
    listed = json.loads((await run("list", "--client-defaults", "--json")).output)
    assert [each["entity"] for each in listed] == [{"user": "ann", "client-id": None}]
    assert "no quota of this entity" in (await run("list", "--user", "bob")).output

    dry = await run("alter", "--user", "ann", "--delete", "producer_byte_rate", "--dry-run")
    assert "would be changed" in dry.output and known.quotas[QuotaEntity(user="ann")] == ann
    lifted = await run("alter", "--user", "ann", "--delete", "producer_byte_rate", "--delete", "request_percentage")
    assert lifted.stdout == "changed: user ann now has no quotas\n"
    again = await run("alter", "--user", "ann", "--delete", "producer_byte_rate")
    assert again.stdout == "not set: producer_byte_rate of user ann\n"
    assert QuotaEntity(user="ann") not in known.quotas


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["alter", "--add", "producer_byte_rate=1"], "--user, --client, --ip"),
        (["alter", "--user", "User:ann", "--add", "producer_byte_rate=1"], "the name is 'ann'"),
        (["alter", "--ip", "10.0.0.0/8", "--add", "connection_creation_rate=1"], "name one address"),
        (["alter", "--user", "ann"], "nothing to change"),
        (["alter", "--user", "ann", "--user-defaults", "--add", "producer_byte_rate=1"], "either --user or"),
        (["alter", "--user", "ann", "--add", "producer_byte_rate"], "is not KEY=NUMBER"),
        (["alter", "--user", "ann", "--add", "producer_byte_rate=0"], "--delete producer_byte_rate lifts it"),
        (["alter", "--user", "ann", "--add", "connection_creation_rate=1"], "cannot be set for a user"),
        (["alter", "--ip", "10.0.0.1", "--user", "ann", "--add", "producer_byte_rate=1"], "cannot be combined"),
        (["list", "--strict"], "--strict needs an entity"),
    ],
)
def test_wrong_words_are_refused_before_any_agent_is_asked(words: list[str], said: str) -> None:
    result = CliRunner(env={"SILTSTONE_BOOTSTRAP": "127.0.0.1:1"}).invoke(main, ["quotas", *words])
    assert result.exit_code == 2 and said in result.output
