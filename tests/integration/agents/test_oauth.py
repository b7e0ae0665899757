"""OAUTHBEARER against a running agent: an issuer of keys over TLS, our own messages, and librdkafka."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import confluent_kafka
import pytest

from agents.security import gate
from agents.security.oauth import keys as issuer_keys
from agents.security.session import REFUSED
from runtime.settings.listeners import ListenerSettings
from tests.fixtures.agents import RawConnection, RunningAgent, StartAgent
from tests.fixtures.certificates import Certificates
from tests.fixtures.log_lines import LogLines
from tests.fixtures.token_issuer import AUDIENCE, ISSUER, TokenIssuer, new_key
from wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


@pytest.fixture(autouse=True)
def refused_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "REFUSED_STAYS_MS", 0.0)


def listener(issuer: TokenIssuer, certificates: Certificates, **members: Any) -> ListenerSettings:
    given = {
        "protocol": "SASL_PLAINTEXT",
        "sasl_mechanisms": "OAUTHBEARER",
        "sasl_oauthbearer_jwks_endpoint_url": issuer.keys_url,
        "sasl_oauthbearer_jwks_ca_file": str(certificates.ca),
        "sasl_oauthbearer_expected_issuer": ISSUER,
        "sasl_oauthbearer_expected_audience": AUDIENCE,
        **members,
    }
    return ListenerSettings(name="default", address="127.0.0.1:0", **given)


@pytest.fixture
async def agent(start_agent: StartAgent, issuer: TokenIssuer, certificates: Certificates) -> RunningAgent:
    return await start_agent(listen="", listeners=(listener(issuer, certificates),), acl_mode="off")


async def came_in(agent: RunningAgent, token: str) -> SaslAuthenticateResponse | None:
    """The answer to a good token; None if it was refused."""
    raw = await RawConnection.connect(agent.address)
    try:
        shaken = await raw.call(SaslHandshakeRequest(mechanism="OAUTHBEARER"), SaslHandshakeResponse, 1)
        assert (shaken.error_code, shaken.mechanisms) == (0, ["OAUTHBEARER"])
        message = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
        answer = await raw.call(SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse, 2)
        assert not answer.auth_bytes
        if answer.error_code == 0:
            return answer
        assert (answer.error_code, answer.error_message) == (58, REFUSED)
        assert await raw.is_closed_by_peer()
        return None
    finally:
        await raw.close()


async def test_a_good_token_comes_in_for_as_long_as_it_is_good(
    agent: RunningAgent, issuer: TokenIssuer, log_lines: LogLines
) -> None:
    answer = await came_in(agent, issuer.token(exp=time.time() + 60))
    assert answer is not None and 20_000 < answer.session_lifetime_ms <= 60_000
    for bad, reason in (
        (issuer.token(aud="other"), "the token is not valid: InvalidAudienceError"),
        (issuer.token(exp=time.time() - 60), "the token has expired"),
        (issuer.token("unknown"), "the token is signed by a key that the issuer does not list"),
        ("x.y.z", "the token cannot be read"),
    ):
        assert await came_in(agent, bad) is None
        assert log_lines.named("client not authenticated")[-1]["reason"] == reason
    refused = {"mechanism": "OAUTHBEARER", "reason": "credentials"}
    assert agent.metric("authentications_refused_total", **refused) == 4
    assert agent.metric("authentications_total", mechanism="OAUTHBEARER") == 1


async def test_new_keys_are_fetched_when_a_token_names_them_but_not_for_every_token(
    agent: RunningAgent, issuer: TokenIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = issuer.asked
    for _ in range(20):
        assert await came_in(agent, issuer.token("unknown")) is None
    assert issuer.asked <= asked + 3, "at most once in ten seconds"
    monkeypatch.setattr(issuer_keys, "RETRY_MS", 0.0)
    issuer.keys["two"] = new_key()
    assert await came_in(agent, issuer.token("two")) is not None
    # An issuer that fails takes nothing away.
    issuer.status = 500
    assert await came_in(agent, issuer.token("unknown")) is None
    assert await came_in(agent, issuer.token("two")) is not None


async def test_librdkafka_comes_in_by_a_token(agent: RunningAgent, issuer: TokenIssuer) -> None:
    def give(_: str) -> tuple[str, float]:
        return issuer.token(), time.time() + 60

    def work() -> list[Any]:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": agent.address,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanisms": "OAUTHBEARER",
                "oauth_cb": give,
            }
        )
        delivered: list[Any] = []
        producer.produce("t", b"v", on_delivery=lambda error, _: delivered.append(error))
        producer.flush(30)
        return delivered

    assert await asyncio.to_thread(work) == [None]


async def test_an_issuer_that_is_away_lets_the_agent_start_and_nobody_in(
    start_agent: StartAgent, issuer: TokenIssuer, certificates: Certificates
) -> None:
    issuer.status = 503
    agent = await start_agent(listen="", listeners=(listener(issuer, certificates),), acl_mode="off")
    assert await came_in(agent, issuer.token()) is None
