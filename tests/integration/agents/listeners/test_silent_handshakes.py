"""Strangers who stop in the middle of what comes before a request: of TLS, of a proof, of a load balancer's header."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agents.listeners import proxied
from runtime.settings.listeners import ListenerSettings
from security.sasl import plain
from tests.fixtures.agents import RawConnection, RunningAgent, StartAgent
from tests.fixtures.certificates import Certificates
from tests.fixtures.loop_stalls import LoopStalls, assert_holds_up_nobody, loop_stalls
from tests.fixtures.tls_clients import MemoryClient
from tests.fixtures.waiting import until
from tests.integration.agents.listeners.strangers import Strangers
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

STRANGERS = 2_000
HONEST = "127.0.0.2"
HALF_HEADER = b"\r\n\r\n\0\r\nQUIT"
"""The first bytes of a PROXY header, version 2."""


@pytest.fixture
def strangers() -> Iterator[Strangers]:
    opened = Strangers()
    yield opened
    opened.close()


def listener(certificates: Certificates, protocol: str, **members: Any) -> ListenerSettings:
    tls = {"tls_cert_file": str(certificates.server.cert), "tls_key_file": str(certificates.server.key)}
    given = {**(tls if "SSL" in protocol else {}), **members}
    return ListenerSettings(name="default", address="127.0.0.1:0", protocol=protocol, **given)


async def is_served(running: RunningAgent, context: ssl.SSLContext | None, *, by_sasl: bool) -> None:
    """As far as a client gets without a user: its requests are answered, until the proof is refused."""
    host, _, port = running.address.rpartition(":")
    raw = RawConnection(
        *await asyncio.open_connection(host, int(port), local_addr=(HONEST, 0), ssl=context, server_hostname=None)
    )
    try:
        answer = await raw.call(ApiVersionsRequest(), ApiVersionsResponse, 0)
        assert not answer.error_code
        if by_sasl:
            await raw.call(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
            token = SaslAuthenticateRequest(auth_bytes=plain.write("nobody", "no password"))
            assert (await raw.call(token, SaslAuthenticateResponse, 2)).error_code
    finally:
        await raw.close()


@pytest.mark.parametrize(
    ("protocol", "says"),
    [("SSL", "nothing"), ("SSL", "half"), ("SASL_SSL", "hello"), ("SASL_SSL", "trickle"), ("PLAINTEXT", "header")],
)
async def test_whoever_stops_half_way_takes_no_time_and_no_place_of_others(
    protocol: str,
    says: str,
    start_agent: StartAgent,
    strangers: Strangers,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxied, "HEADER_MS", 600_000)
    context = certificates.client_context() if "SSL" in protocol else None
    members: dict[str, Any] = {"sasl_mechanisms": "PLAIN"} if "SASL" in protocol else {}
    if says == "header":
        members = {"proxy_protocol_from": "127.0.0.1/32"}
    running = await start_agent(
        listen="",
        listeners=(listener(certificates, protocol, **members),),
        acl_mode="off",
        preauth_timeout_ms=600_000,
        connection_creation_rate=1_000,
    )
    hello = MemoryClient(certificates.client_context()).take()
    said = {"nothing": b"", "half": hello[:100], "hello": hello, "trickle": hello[:1], "header": HALF_HEADER}[says]
    server = running.agent._server
    assert server is not None

    async def invaded() -> LoopStalls:
        strangers.close()
        # when 2,000 come as fast as they can
        with loop_stalls() as stalls:
            storm = threading.Thread(target=strangers.come, args=(running.address, STRANGERS), kwargs={"says": said})
            storm.start()
            served = 0
            while storm.is_alive() or served < 2:
                # then others are served meanwhile, each at its first try
                async with asyncio.timeout(60):
                    await is_served(running, context, by_sasl="SASL" in protocol)
                served += 1
                # and the strangers hold no more than their share
                assert server._admission.unproved <= 200
                if says == "trickle":
                    await asyncio.to_thread(strangers.say, hello[served : served + 1])
            await asyncio.to_thread(storm.join)
            await is_served(running, context, by_sasl="SASL" in protocol)
        return stalls

    await assert_holds_up_nobody(invaded)
    waiting = sum(len(each._waiting) for each in server._proxied)
    await until(lambda: running.metric("connections") <= 201)
    assert waiting <= 1_000 and (waiting > 0) == (says == "header")
