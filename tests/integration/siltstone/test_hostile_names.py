"""Names that clients chose: none of them steers the terminal of whoever lists them, and none forges a line of its own,
neither of a list nor of the log."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from metadata.security.contract import UserChange
from runtime.logging import configure
from runtime.settings.listeners import ListenerSettings
from security.acls.values import Operation
from security.quotas.values import QuotaEntity
from security.scram import Mechanism
from siltstone.cli import main
from siltstone.kafka.client import KafkaClient, connected
from siltstone.kafka.security.authenticating import LoginError
from siltstone.kafka.security.values import ClientSecurity
from tests.fixtures.acls import allow, everything_to
from tests.fixtures.agents import RunningAgent, StartAgent
from tests.unit.agents.security.session_client import credential
from wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

FORGED = "FORGED"
HOSTILE = f"a\x1b[1m\x9b\u202e\r\v\x85\u2028\n{FORGED}"
"""Short, so that no table folds it."""
WITH_NUL = f"{HOSTILE}\0"
EVERYBODY = "User:ANONYMOUS"


def assert_harmless(said: str) -> None:
    assert FORGED in said, f"nothing of it is shown: {said}"
    assert not [each for each in said if each != "\n" and not each.isprintable()], said
    assert not [line for line in said.split("\n") if line.strip().startswith(FORGED)], said


def run(running: RunningAgent, *words: str) -> Any:
    return CliRunner(env={"SILTSTONE_DATA": None}).invoke(main, [*words, "--bootstrap", running.address])


async def listed(running: RunningAgent, *words: str) -> str:
    ran = await asyncio.to_thread(run, running, *words)
    assert ran.exit_code == 0, ran.output
    return ran.output


@pytest.fixture
async def running(start_agent: StartAgent) -> RunningAgent:
    """An agent of whose users, ACLs, quotas and groups nobody knows where they come from."""
    running = await start_agent(acl_mode="on")
    security = running.metadata.security
    await security.alter_users([UserChange(name=HOSTILE, mechanism=Mechanism(1), credential=credential())])
    hostile = allow(Operation.READ, WITH_NUL, to=f"User:{WITH_NUL}")
    await security.create_acls([hostile, *everything_to(EVERYBODY)])
    await security.alter_quotas(
        {
            QuotaEntity(user=HOSTILE, client_id=HOSTILE): {"producer_byte_rate": 1e6},
            QuotaEntity(user="x"): {HOSTILE: 1.0},
        }
    )
    await running.agent._follower.catch_up()
    return running


async def test_lists_of_users_acls_and_quotas(running: RunningAgent) -> None:
    for words in (("users", "list"), ("acls", "list"), ("quotas", "list")):
        assert_harmless(await listed(running, *words))
        said = await listed(running, *words, "--json")
        assert_harmless(said)
        assert any(HOSTILE in text for text in _texts(json.loads(said))), "a program gets the name as it is"


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from (name, *_texts(each))
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, str):
        yield value


async def join(running: RunningAgent) -> KafkaClient:
    """A member of a group, under names that are all hostile."""
    client = await KafkaClient.connect(running.address, client_id=HOSTILE)
    protocols = [JoinGroupRequestProtocol(name=HOSTILE, metadata=b"")]
    request = JoinGroupRequest(
        group_id=HOSTILE,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        member_id="",
        group_instance_id=None,
        protocol_type=HOSTILE,
        protocols=protocols,
        reason=HOSTILE,
    )
    asked = await client.call(request, JoinGroupResponse)
    joined = await client.call(replace(request, member_id=asked.member_id), JoinGroupResponse)
    assert not joined.error_code
    return client


async def test_groups_and_their_members(running: RunningAgent) -> None:
    client = await join(running)
    assert_harmless(await listed(running, "groups", "list"))
    assert_harmless(await listed(running, "groups", "list", "--json"))
    assert_harmless(await listed(running, "groups", "describe", HOSTILE))
    assert_harmless(await listed(running, "groups", "describe", HOSTILE, "--json"))
    await client.close()


async def test_errors_that_quote_a_name(running: RunningAgent) -> None:
    client = await join(running)
    for words in (
        ("users", "delete", f"no {HOSTILE}", "--yes"),
        ("topics", "describe", HOSTILE),
        ("topics", "create", HOSTILE),
        ("groups", "delete", HOSTILE, "--yes"),
        ("groups", "describe", f"no {HOSTILE}"),
        ("acls", "create", "--allow-principal", HOSTILE, "--operation", "Read", "--topic", "t"),
        ("quotas", "alter", "--user", "u", "--add", f"{HOSTILE}=1"),
        ("get", HOSTILE, "k"),
    ):
        ran = await asyncio.to_thread(run, running, *words)
        assert ran.exit_code, words
        assert_harmless(ran.output)
    await client.close()


@pytest.mark.parametrize("form", ["text", "json"])
async def test_the_log_and_the_audit_log(
    form: str, start_agent: StartAgent, capsys: pytest.CaptureFixture[str]
) -> None:
    configure("debug", form)
    listener = ListenerSettings(
        name="default", address="127.0.0.1:0", protocol="SASL_PLAINTEXT", sasl_mechanisms="SCRAM-SHA-256,PLAIN"
    )
    running = await start_agent(listen="", listeners=(listener,), acl_mode="on", log_slow_request_ms=1)
    users = UserChange(name=HOSTILE, mechanism=Mechanism(1), credential=credential())
    await running.metadata.security.alter_users([users])
    await running.agent._follower.catch_up()
    for mechanism, password in (("SCRAM-SHA-256", "wrong"), ("PLAIN", "wrong"), ("SCRAM-SHA-256", "secret")):
        security = ClientSecurity(
            protocol="SASL_PLAINTEXT", mechanism=mechanism, username=HOSTILE, password=password, source="here"
        )
        if password == "wrong":
            with pytest.raises(LoginError):
                await KafkaClient.connect(running.address, security=security, client_id=HOSTILE)
            continue
        async with connected(running.address, security=security, client_id=HOSTILE) as client:
            # denied: a topic and a group under such a name, by such a principal
            topics = [MetadataRequestTopic(name=HOSTILE)]
            await client.call(MetadataRequest(topics=topics, allow_auto_topic_creation=True), MetadataResponse)
            await client.call(DescribeGroupsRequest(groups=[HOSTILE]), DescribeGroupsResponse)
    await running.agent.stop()
    said = capsys.readouterr().err
    assert_harmless(said)
    lines = said.splitlines()
    if form == "json":
        events = [json.loads(line) for line in lines]
        assert any(each.get("principal") == f"User:{HOSTILE}" for each in events), "a program gets the name as it is"
        assert all(set(each) >= {"event", "level", "timestamp"} for each in events)
    else:
        assert all(re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z \[", line) for line in lines), "each line begins with its time"
    assert any("denied" in line for line in lines) and any("not authenticated" in line for line in lines)
