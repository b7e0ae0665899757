"""Clients that prove who they are, against a running agent: our own, librdkafka, aiokafka and kafka-python."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import pytest

from agents.connections.long_messages import LongMessages
from agents.request_context import ClientConnection
from agents.security import gate
from metadata.security.contract import UserChange
from runtime.clock import Clock
from runtime.errors import UnavailableError
from runtime.settings.listeners import ListenerSettings
from security.sasl import plain
from security.scram import Mechanism, ScramCredential
from siltstone.kafka.client import PROOF_SHARE, ConnectionLostError, KafkaClient, connected
from siltstone.kafka.security.authenticating import LoginError
from siltstone.kafka.security.values import ClientSecurity
from tests.fixtures.agents import RawConnection, RunningAgent, StartAgent
from tests.fixtures.ahead_clock import AheadClock
from tests.fixtures.waiting import until
from tests.unit.agents.security.session_client import credential
from wire.compiler.compile import Steps
from wire.error_codes import ErrorCode
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.messages.metadata import MetadataRequest
from wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
REFUSED_AFTER_MS = 100
HOUR_MS = 3_600_000
ANN = {each: credential("secret", each) for each in Mechanism}


@dataclass
class SaslAgent:
    running: RunningAgent

    @property
    def address(self) -> str:
        return self.running.address

    @property
    def principals(self) -> list[str]:
        server = self.running.agent._server
        assert server is not None
        return [each.client.principal for each in server.talking()]

    async def set_user(self, name: str, credentials: Mapping[Mechanism, ScramCredential]) -> None:
        """These and no others."""
        changes = [UserChange(name=name, mechanism=each, credential=credentials.get(each)) for each in Mechanism]
        await self.running.metadata.security.alter_users(changes)
        await self.running.agent._follower.catch_up()


def sasl_listener(**members: Any) -> ListenerSettings:
    given = {"protocol": "SASL_PLAINTEXT", "sasl_mechanisms": ",".join(MECHANISMS), **members}
    return ListenerSettings(name="default", address="127.0.0.1:0", **given)


@pytest.fixture
def start_sasl_agent(start_agent: StartAgent) -> Callable[..., Awaitable[SaslAgent]]:
    """An agent whose listener has SASL; ann has a password for each mechanism, and everybody may do everything."""

    async def start(*, clock: Clock | None = None, **members: Any) -> SaslAgent:
        listeners = (sasl_listener(**members),)
        agent = SaslAgent(await start_agent(listen="", listeners=listeners, acl_mode="off", clock=clock))
        await agent.set_user("ann", ANN)
        return agent

    return start


@pytest.fixture
async def agent(start_sasl_agent: Callable[..., Awaitable[SaslAgent]]) -> SaslAgent:
    return await start_sasl_agent()


def as_ann(mechanism: str = "SCRAM-SHA-512", password: str = "secret", username: str = "ann") -> ClientSecurity:
    return ClientSecurity(
        protocol="SASL_PLAINTEXT", mechanism=mechanism, username=username, password=password, source="client.properties"
    )


async def test_our_client_comes_in_by_every_mechanism_and_works(agent: SaslAgent) -> None:
    for mechanism in MECHANISMS:
        async with connected(agent.address, security=as_ann(mechanism)) as client:
            await client.create_topic(mechanism, partitions=1)
            assert (await client.topic(mechanism)).name == mechanism
            assert agent.principals == ["User:ann"]


async def test_a_wrong_password_is_the_clients_own_error_and_is_answered_late(agent: SaslAgent) -> None:
    loop = asyncio.get_running_loop()
    for mechanism in MECHANISMS:
        for security in (as_ann(mechanism, "Secret"), as_ann(mechanism, username="nobody")):
            begun_s = loop.time()
            with pytest.raises(LoginError, match="invalid credentials") as caught:
                await KafkaClient.connect(agent.address, security=security)
            assert loop.time() - begun_s >= REFUSED_AFTER_MS / 1000 - 0.01
            assert "ecret" not in str(caught.value)
    await until(lambda: not agent.principals)


async def test_a_refused_client_has_time_to_read_the_answer_before_the_end_and_is_asked_nothing_more(
    agent: SaslAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stays_ms in (3_600_000.0, 0.0):
        monkeypatch.setattr(gate, "REFUSED_STAYS_MS", stays_ms)
        raw = await RawConnection.connect(agent.address)
        await raw.call(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
        request = SaslAuthenticateRequest(auth_bytes=plain.write("ann", "wrong"))
        refused = await raw.call(request, SaslAuthenticateResponse, 2)
        assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        # A better proof comes too late; and others come in meanwhile.
        await raw.begin(SaslAuthenticateRequest(auth_bytes=plain.write("ann", "secret")), 2)
        async with connected(agent.address, security=as_ann()) as client:
            await client.metadata([])
        reading = asyncio.ensure_future(raw.is_closed_by_peer())
        if stays_ms:
            server = agent.running.agent._server
            assert server is not None and server._admission.unproved == 1, "it has a stranger's place"
            await asyncio.wait([reading], timeout=0.3)
            assert not reading.done()
            reading.cancel()
        else:
            assert await reading
        await raw.close()


async def test_without_acls_too_nobody_hears_of_a_wrong_password_from_an_agent_that_may_know_an_old_one(
    agent: SaslAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given an agent whose lease is over, while the store does not answer
    freshness = agent.running.agent._access.freshness
    assert freshness is not None
    monkeypatch.setattr(freshness, "is_fresh", lambda _: False)
    for mechanism in MECHANISMS:
        # then the client tries again, here or elsewhere
        with pytest.raises(UnavailableError, match="closed the connection"):
            await KafkaClient.connect(agent.address, security=as_ann(mechanism, "new"))


async def test_a_client_that_proves_nothing_reaches_no_handler(agent: SaslAgent) -> None:
    # our client, without credentials
    async with connected(agent.address) as client:
        with pytest.raises(ConnectionLostError):
            await client.metadata()
    # a Metadata request as the first one
    raw = await RawConnection.connect(agent.address)
    await raw.begin(MetadataRequest(topics=None), 1)
    assert await raw.is_closed_by_peer()
    await raw.close()
    assert agent.running.metric("requests_total", api="Metadata") == 0


async def test_frames_are_bounded_before_the_proof_and_not_after(agent: SaslAgent) -> None:
    host, _, port = agent.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write((65_537).to_bytes(4, "big"))
    async with asyncio.timeout(20):
        assert await reader.read() == b""
    writer.close()
    async with connected(agent.address, security=as_ann()) as client:
        topics = ["x" * 200 + f"{number:04}" for number in range(400)]
        assert len((await client.metadata(topics)).topics) == 400


async def test_the_connections_of_a_user_who_is_altered_or_deleted_close_and_no_others(agent: SaslAgent) -> None:
    await agent.set_user("bob", {Mechanism.SCRAM_SHA_256: credential("b")})
    bob = as_ann("SCRAM-SHA-256", "b", "bob")
    for change in ({}, {Mechanism.SCRAM_SHA_512: credential("new", Mechanism.SCRAM_SHA_512)}):
        await agent.set_user("ann", ANN)
        async with (
            connected(agent.address, security=as_ann()) as ann,
            connected(agent.address, security=bob) as other,
        ):
            await ann.create_topic(f"t{len(change)}", partitions=1)
            waiting = asyncio.ensure_future(ann.fetch(f"t{len(change)}", 0, 0, max_wait_ms=30_000))
            await until(lambda: agent.running.agent._parked_readers._waiting)
            # when
            await agent.set_user("ann", change)
            # then the parked fetch ends at once
            async with asyncio.timeout(20):
                with pytest.raises(ConnectionLostError):
                    await waiting
            assert (await other.metadata([])).brokers
    with pytest.raises(LoginError):
        await KafkaClient.connect(agent.address, security=as_ann())


async def test_our_client_proves_itself_again_before_its_proof_expires(
    start_sasl_agent: Callable[..., Awaitable[SaslAgent]],
) -> None:
    # given proofs that count for an hour, by a clock that only the agent goes by
    agent_clock, loop = AheadClock(), asyncio.get_running_loop()
    agent = await start_sasl_agent(connections_max_reauth_ms=HOUR_MS, clock=agent_clock)
    before_s = loop.time()
    async with connected(agent.address, security=as_ann()) as client:
        soon_s = PROOF_SHARE * HOUR_MS / 1000
        assert before_s + soon_s <= client._prove_again_s <= loop.time() + soon_s
        for _ in range(3):
            # when the client's time has come, which is before the hour is over
            agent_clock.ahead_ms += PROOF_SHARE * HOUR_MS
            client._prove_again_s = loop.time() - 1
            # then the same connection goes on, in sum for longer than one proof counts
            assert (await client.metadata([])).brokers
            assert client._prove_again_s > loop.time()
        assert agent.principals == ["User:ann"]
        # and without another proof it ends
        agent_clock.ahead_ms += HOUR_MS
        with pytest.raises(ConnectionLostError):
            await client.metadata([])


async def test_a_long_request_does_not_begin_once_the_proof_has_expired(
    start_sasl_agent: Callable[..., Awaitable[SaslAgent]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may wait, decoded, until rights are known again, for longer than the proof counts."""
    clock = AheadClock()
    agent = await start_sasl_agent(connections_max_reauth_ms=HOUR_MS, clock=clock)
    server, freshness = agent.running.agent._server, agent.running.agent._access.freshness
    assert server is not None and freshness is not None
    finish = LongMessages.finish

    async def lost_meanwhile(self: LongMessages, steps: Steps[object], client: ClientConnection) -> object:
        monkeypatch.setattr(freshness, "holds", lambda *_: True)
        return await finish(self, steps, client)

    monkeypatch.setattr(LongMessages, "finish", lost_meanwhile)
    raw = await RawConnection.connect(agent.address)
    await raw.call(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
    proof = SaslAuthenticateRequest(auth_bytes=plain.write("ann", "secret"))
    assert (await raw.call(proof, SaslAuthenticateResponse, 2)).error_code == 0
    await raw.begin(FindCoordinatorRequest(coordinator_keys=["group"] * 20_000), 4)
    await until(lambda: any(each._decoded for each in server.talking()))
    clock.ahead_ms += HOUR_MS
    server._pump_all()
    assert await raw.is_closed_by_peer(), "and nothing was answered"
    refused = agent.running.metric("authentications_refused_total", mechanism="PLAIN", reason="expired")
    assert refused == 1
    await raw.close()


async def test_tokens_after_the_proof_are_out_of_place(agent: SaslAgent) -> None:
    async with connected(agent.address, security=as_ann()) as client:
        answer = await client.call(SaslAuthenticateRequest(auth_bytes=b"x"), SaslAuthenticateResponse)
        assert answer.error_code == 34
        assert (await client.metadata([])).brokers


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_librdkafka_comes_in_and_hears_of_a_wrong_password(agent: SaslAgent, mechanism: str) -> None:
    config = {
        "bootstrap.servers": agent.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": mechanism,
        "sasl.username": "ann",
    }

    def work() -> tuple[list[Any], list[Any]]:
        producer = confluent_kafka.Producer({**config, "sasl.password": "secret"})
        delivered: list[Any] = []
        producer.produce("rdkafka", b"v", on_delivery=lambda error, _: delivered.append(error))
        producer.flush(30)
        errors: list[Any] = []
        refused = confluent_kafka.Producer({**config, "sasl.password": "wrong", "error_cb": errors.append})
        for _ in range(300):
            refused.poll(0.1)
            if any(each.code() == confluent_kafka.KafkaError._AUTHENTICATION for each in errors):
                break
        return delivered, errors

    delivered, errors = await asyncio.to_thread(work)
    assert delivered == [None]
    assert confluent_kafka.KafkaError._AUTHENTICATION in [each.code() for each in errors]


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_aiokafka_comes_in_and_hears_of_a_wrong_password(agent: SaslAgent, mechanism: str) -> None:
    made = partial(
        aiokafka.AIOKafkaProducer,
        bootstrap_servers=agent.address,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username="ann",
    )
    async with made(sasl_plain_password="secret") as producer:
        await producer.send_and_wait("aiokafka", b"v")
    refused = made(sasl_plain_password="wrong")
    with pytest.raises(aiokafka.errors.KafkaError):
        await refused.start()
    await refused.stop()


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_kafka_python_comes_in(agent: SaslAgent, mechanism: str) -> None:
    # A producer of it that is refused tries for 30 s, and leaves its sockets to the garbage collector.
    config = {
        "bootstrap_servers": agent.address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "ann",
    }

    def work() -> None:
        producer = kafka.KafkaProducer(**config, sasl_plain_password="secret")
        producer.send("kafka-python", b"v").get(30)
        producer.close()

    await asyncio.to_thread(work)
