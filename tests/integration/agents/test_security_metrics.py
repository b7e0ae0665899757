"""Metrics count logins and denials by ACLs, seen with real clients of a running agent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import confluent_kafka
import pytest

from agents.request_context import ANONYMOUS
from agents.security import audit, gate
from agents.security.passwords import PasswordChecks
from metadata.security.contract import UserChange
from runtime.errors import UnavailableError
from runtime.logging import configure
from runtime.settings.listeners import ListenerSettings
from runtime.settings.table import Settings
from security.acls.values import Operation
from security.sasl import plain
from security.scram import Mechanism
from siltstone.kafka.client import KafkaClient, connected
from siltstone.kafka.security.authenticating import LoginError
from siltstone.kafka.security.values import ClientSecurity
from siltstone.processes.monitoring.log_and_traces import log_and_traces
from tests.fixtures.acls import allow
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent
from tests.fixtures.metric_values import metric_value
from tests.fixtures.waiting import until
from tests.unit.agents.security.session_client import credential
from wire.error_codes import ErrorCode
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
SERIES = "siltstone_authentications_refused_total"


@pytest.fixture
async def agent(start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch) -> RunningAgent:
    """Its listener has SASL, and ann a password for each mechanism."""
    monkeypatch.setattr(gate, "REFUSED_STAYS_MS", 0.0)
    listener = ListenerSettings(
        name="default", address="127.0.0.1:0", protocol="SASL_PLAINTEXT", sasl_mechanisms=",".join(MECHANISMS)
    )
    running = await start_agent(listen="", listeners=(listener,), acl_mode="off", auto_create_topics_enable=True)
    changes = [UserChange(name="ann", mechanism=each, credential=credential("secret", each)) for each in Mechanism]
    await running.metadata.security.alter_users(changes)
    await running.agent._follower.catch_up()
    return running


def as_ann(mechanism: str, password: str = "secret", username: str = "ann") -> ClientSecurity:
    return ClientSecurity(
        protocol="SASL_PLAINTEXT", mechanism=mechanism, username=username, password=password, source="client.properties"
    )


def refused(agent: RunningAgent, mechanism: str, reason: str = "credentials") -> float:
    return agent.metric("authentications_refused_total", mechanism=mechanism, reason=reason)


async def test_logins_are_counted_by_mechanism_and_refusals_do_not_tell_whether_a_user_exists(
    agent: RunningAgent,
) -> None:
    rendered = agent.metrics.render().decode()
    for mechanism in MECHANISMS:
        # from 0, or Prometheus would not see the first one rise
        assert f'{SERIES}{{mechanism="{mechanism}",reason="credentials"}} 0.0' in rendered
        async with connected(agent.address, security=as_ann(mechanism)) as client:
            await client.metadata([])
        for wrong in (as_ann(mechanism, "Secret"), as_ann(mechanism, username="nobody")):
            with pytest.raises(LoginError):
                await KafkaClient.connect(agent.address, security=wrong)
        assert agent.metric("authentications_total", mechanism=mechanism) == 1
        assert refused(agent, mechanism) == 2
    lines = [each for each in agent.metrics.render().decode().splitlines() if each.startswith(f"{SERIES}{{")]
    assert len(lines) == len(MECHANISMS), "nothing that a client said is in a label"


async def test_librdkafka_with_a_wrong_password_and_without_sasl_is_counted(agent: RunningAgent) -> None:
    def fail(config: Mapping[str, Any]) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": agent.address, **config})
        producer.produce("t", b"v")
        producer.flush(0.5)
        producer.purge()
        producer.flush(0)

    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "ann", "sasl.password": "wrong"}
    for config, mechanism, reason in (
        ({**login, "sasl.mechanisms": "PLAIN"}, "PLAIN", "credentials"),
        ({"security.protocol": "PLAINTEXT"}, "none", "protocol"),
    ):
        before = refused(agent, mechanism, reason)
        for _ in range(20):
            await asyncio.to_thread(fail, config)
            if refused(agent, mechanism, reason) > before:
                break
        assert refused(agent, mechanism, reason) > before


async def test_each_other_way_not_to_come_in_has_its_reason(agent: RunningAgent, dial: Dial) -> None:
    # a mechanism that the listener does not have: its name is no label
    raw = await dial.raw(agent.address)
    answer = await raw.call(SaslHandshakeRequest(mechanism="GSSAPI\n"), SaslHandshakeResponse, 1)
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    await until(lambda: refused(agent, "none", "mechanism") == 1)
    # no proof at all
    raw = await dial.raw(agent.address)
    await raw.begin(MetadataRequest(topics=None), 1)
    assert await raw.is_closed_by_peer()
    assert refused(agent, "none", "protocol") == 1


async def test_a_connection_that_is_closed_is_counted_once_whatever_it_sent_at_once(
    agent: RunningAgent, dial: Dial
) -> None:
    raw = await dial.raw(agent.address)
    await raw.begin_together([MetadataRequest(topics=None)] * 100, 1)
    assert await raw.is_closed_by_peer()
    assert refused(agent, "none", "protocol") == 1


async def test_while_the_store_is_away_a_refusal_is_no_wrong_password(
    agent: RunningAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    freshness = agent.agent._access.freshness
    assert freshness is not None
    monkeypatch.setattr(freshness, "is_fresh", lambda _: False)
    with pytest.raises(UnavailableError):
        await KafkaClient.connect(agent.address, security=as_ann("PLAIN", "new"))
    assert (refused(agent, "PLAIN", "store_away"), refused(agent, "PLAIN")) == (1, 0)


async def test_a_proof_that_could_not_be_judged_is_counted_as_an_error(
    agent: RunningAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> bool:
        raise RuntimeError("a bug")

    monkeypatch.setattr(PasswordChecks, "is_right", fails)
    raw = await dial.raw(agent.address)
    await raw.call(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
    await raw.begin(SaslAuthenticateRequest(auth_bytes=plain.write("ann", "secret")), 2)
    assert await raw.is_closed_by_peer()
    assert (refused(agent, "PLAIN", "error"), refused(agent, "PLAIN")) == (1, 0)


async def test_a_guesser_that_leaves_before_the_answer_is_counted(agent: RunningAgent) -> None:
    for mechanism, token in (("PLAIN", plain.write("ann", "guess")), ("SCRAM-SHA-256", b"malformed")):
        for _ in range(50):
            raw = await RawConnection.connect(agent.address)
            await raw.call(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse, 1)
            await raw.begin(SaslAuthenticateRequest(auth_bytes=token), 2)
            await asyncio.sleep(0.05)  # more than a check takes, less than a refusal is held back
            await raw.close()
            if refused(agent, mechanism):
                break
        await until(lambda mechanism=mechanism: refused(agent, mechanism) > 0)


@pytest.mark.parametrize(("mode", "code"), [("on", ErrorCode.TOPIC_AUTHORIZATION_FAILED), ("shadow", 0)])
async def test_denials_are_counted_each_time_in_mode_shadow_too(
    start_agent: StartAgent, dial: Dial, mode: str, code: int
) -> None:
    # given a client that may write to one topic, and to another not
    running = await start_agent(acl_mode=mode)
    for name in ("mine", "other"):
        await running.metadata.agents.create_topic(name, partitions=1, configs={})
    await until(lambda: running.agent._topic_cache.topic("other"))
    running.agent.authorizer.change(
        added=[allow(Operation.WRITE, "mine", to=ANONYMOUS), allow(Operation.DESCRIBE, "other", to=ANONYMOUS)]
    )

    # when librdkafka writes to both, more often than the audit log tells it
    def write() -> list[int]:
        codes: list[int] = []
        for _ in range(3):
            # A new one each time: a producer that was refused a topic does not ask again.
            producer = confluent_kafka.Producer({"bootstrap.servers": running.address, "linger.ms": 0})
            for topic in ("mine", "other"):
                producer.produce(topic, b"v", on_delivery=lambda error, _: codes.append(error.code() if error else 0))
                assert producer.flush(60) == 0
        return codes

    codes = await asyncio.to_thread(write)
    assert codes == [0, code] * 3
    # then each is counted
    denied = {"resource_type": "TOPIC", "operation": "WRITE"}
    assert running.metric("acl_denials_total", **denied, mode=mode) >= 3
    other = {"on": "shadow", "shadow": "on"}[mode]
    assert running.metric("acl_denials_total", **denied, mode=other) == 0


async def test_denials_that_the_audit_log_cannot_name_are_counted_as_dropped(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given an audit log that remembers ten kinds, and a log that shows two lines of a kind
    monkeypatch.setattr(audit.Repeats.__init__, "__defaults__", (10,))
    configure("info", "json", burst_lines=2)
    running = await start_agent(acl_mode="on")
    runtime = running.agent._runtime
    raw = await dial.raw(running.address)
    async with log_and_traces(Settings(), role="agent", stopping=asyncio.Event(), runtime=runtime):
        # when one request is about twelve topics that the client may not see
        topics = [MetadataRequestTopic(name=f"t{number}") for number in range(12)]
        answer = await raw.call(MetadataRequest(topics=topics), MetadataResponse, 9)
        assert {each.error_code for each in answer.topics} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    # then each was counted, whether or not a line names it
    denied = {"resource_type": "TOPIC", "operation": "DESCRIBE", "mode": "on"}
    assert running.metric("acl_denials_total", **denied) == 12
    assert metric_value(running.metrics, "audit_events_dropped_total", {"reason": "kinds"}) == 2
    assert metric_value(running.metrics, "audit_events_dropped_total", {"reason": "burst"}) == 8
