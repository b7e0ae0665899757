"""A listener behind a load balancer: the client's address is that of the PROXY header, which the balancer alone may
send."""

from __future__ import annotations

import ipaddress
import socket
import struct
from contextlib import closing

import pytest

from agents.listeners import proxied
from agents.listeners.proxy_protocol import SIGNATURE
from runtime.settings.listeners import ListenerSettings
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent
from tests.fixtures.waiting import until
from wire.messages.metadata import MetadataRequest, MetadataResponse

EVERYBODY_HERE = ListenerSettings(name="default", address="127.0.0.1:0", proxy_protocol_from="127.0.0.0/8")
NOBODY_HERE = ListenerSettings(name="default", address="127.0.0.1:0", proxy_protocol_from="10.0.0.0/8")


def header(host: str, port: int, command: int = 1) -> bytes:
    source = ipaddress.ip_address(host)
    there = ipaddress.ip_address("::1" if source.version == 6 else "127.0.0.1")
    body = source.packed + there.packed + struct.pack(">HH", port, 9092)
    return SIGNATURE + struct.pack(">BBH", 0x20 | command, 0x21 if source.version == 6 else 0x11, len(body)) + body


def peers(agent: RunningAgent) -> set[str]:
    server = agent.agent._server
    assert server is not None
    return {each.client.peer for each in server.talking()}


def waiting(agent: RunningAgent) -> int:
    server = agent.agent._server
    assert server is not None
    return sum(len(each._waiting) for each in server._proxied)


async def answers(raw: RawConnection) -> bool:
    answer = await raw.call(MetadataRequest(topics=[]), MetadataResponse, 12)
    return len(answer.brokers) == 1


@pytest.fixture
async def behind(start_agent: StartAgent) -> RunningAgent:
    return await start_agent(listen="", listeners=(EVERYBODY_HERE,))


async def test_the_client_is_who_the_header_says_and_its_requests_are_answered(
    behind: RunningAgent, dial: Dial
) -> None:
    for host, port, peer in (("192.0.2.7", 5678, "192.0.2.7:5678"), ("2001:db8::7", 1, "2001:db8::7:1")):
        raw = await dial.raw(behind.address)
        await raw.send(header(host, port))
        assert await answers(raw)
        assert peer in peers(behind)
    server = behind.agent._server
    assert server is not None
    assert {each.client.host for each in server.talking()} == {"192.0.2.7", "2001:db8::7"}


async def test_a_header_may_come_byte_by_byte_and_together_with_the_first_request(
    behind: RunningAgent, dial: Dial
) -> None:
    raw = await dial.raw(behind.address)
    for byte in header("192.0.2.7", 5678):
        await raw.send(bytes([byte]))
    assert await answers(raw)
    together = await dial.raw(behind.address)
    sent = together.writer.write
    with pytest.MonkeyPatch.context() as patch:
        # the header and the request leave in one segment
        patch.setattr(together.writer, "write", lambda data: sent(header("192.0.2.8", 1) + data))
        await together.begin(MetadataRequest(topics=[]), 12)
    assert len((await together.answer(MetadataResponse, 12)).brokers) == 1
    assert peers(behind) == {"192.0.2.7:5678", "192.0.2.8:1"}


async def test_a_balancer_that_speaks_for_itself_has_its_own_address(behind: RunningAgent, dial: Dial) -> None:
    raw = await dial.raw(behind.address)
    await raw.send(header("192.0.2.7", 5678, command=0))
    assert await answers(raw)
    [peer] = peers(behind)
    assert peer.startswith("127.0.0.1:")


async def test_without_its_header_a_connection_from_there_is_closed_and_counted(
    behind: RunningAgent, dial: Dial
) -> None:
    for start in (b"PROXY TCP4 192.0.2.7 127.0.0.1 1 2\r\n", b"\x00\x00\x00\x10\x00\x12\x00\x03"):
        raw = await dial.raw(behind.address)
        await raw.send(start)
        assert await raw.is_closed_by_peer()
    assert behind.metric("protocol_errors_total", reason="proxy_header") == 2
    assert peers(behind) == set()


async def test_from_other_addresses_no_header_is_believed(start_agent: StartAgent, dial: Dial) -> None:
    agent = await start_agent(listen="", listeners=(NOBODY_HERE,))
    honest = await dial.raw(agent.address)
    assert await answers(honest)
    forged = await dial.raw(agent.address)
    await forged.send(header("10.1.2.3", 1))
    assert await forged.is_closed_by_peer()
    assert all(peer.startswith("127.0.0.1:") for peer in peers(agent))


async def test_a_connection_that_sends_no_header_in_time_is_closed(
    behind: RunningAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxied, "HEADER_MS", 50)
    silent, half = await dial.raw(behind.address), await dial.raw(behind.address)
    await half.send(header("192.0.2.7", 1)[:20])
    assert await silent.is_closed_by_peer() and await half.is_closed_by_peer()
    assert waiting(behind) == 0 and peers(behind) == set()


async def test_of_too_many_that_send_no_header_the_oldest_goes(
    behind: RunningAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxied, "WAITING_MAX", 2)
    first = await dial.raw(behind.address)
    await until(lambda: waiting(behind) == 1)
    later = [await dial.raw(behind.address) for _ in range(2)]
    assert await first.is_closed_by_peer()
    for raw in later:
        await raw.send(header("192.0.2.7", 1))
        assert await answers(raw)


async def test_a_stop_closes_those_that_wait_for_their_header(behind: RunningAgent, dial: Dial) -> None:
    raw = await dial.raw(behind.address)
    await until(lambda: waiting(behind) == 1)
    await behind.agent.stop()
    assert await raw.is_closed_by_peer()


async def test_a_health_check_that_connects_and_leaves_ends_quietly(behind: RunningAgent) -> None:
    host, _, port = behind.address.rpartition(":")
    with closing(socket.create_connection((host, int(port)))):
        await until(lambda: waiting(behind) == 1)
    await until(lambda: waiting(behind) == 0)
    assert behind.metric("protocol_errors_total", reason="proxy_header") == 0
