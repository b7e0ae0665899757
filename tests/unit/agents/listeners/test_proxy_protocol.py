"""Headers of the PROXY protocol: those of real balancers, cut anywhere, and bytes that are none."""

from __future__ import annotations

import ipaddress
import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.listeners.proxy_protocol import (
    HEADER_BYTES_MAX,
    SIGNATURE,
    ProxyHeader,
    ProxyHeaderReader,
    ProxyProtocolError,
    TrustedProxies,
)
from tests.fixtures.chance import examples

TLV = b"\xea\x00\x16\x01" + b"vpce-0123456789abcdef"


def header(source: str = "192.0.2.7", port: int = 5_678, *, tlvs: bytes = b"", command: int = 1) -> bytes:
    address = ipaddress.ip_address(source)
    there = ipaddress.ip_address("::1" if address.version == 6 else "127.0.0.1")
    body = address.packed + there.packed + struct.pack(">HH", port, 9_092) + tlvs
    family = 0x21 if address.version == 6 else 0x11
    return SIGNATURE + struct.pack(">BBH", 0x20 | command, family, len(body)) + body


def bare(version_and_command: int, family: int, body: bytes = b"") -> bytes:
    return SIGNATURE + struct.pack(">BBH", version_and_command, family, len(body)) + body


GOOD = (
    (header(), "192.0.2.7", 5_678),
    (header("2001:db8::7", 1), "2001:db8::7", 1),
    (header("::ffff:192.0.2.7"), "192.0.2.7", 5_678),
    (header(tlvs=TLV), "192.0.2.7", 5_678),
    (header(command=0), None, 0),
    (bare(0x20, 0x00), None, 0),
    (bare(0x21, 0x00, b"whatever"), None, 0),
    (bare(0x20, 0x31, b"a path"), None, 0),
)


def test_the_source_is_read_and_what_follows_is_kept_however_it_is_cut() -> None:
    for whole, host, port in GOOD:
        assert ProxyHeaderReader().feed(whole) == ProxyHeader(host, port, b"")
        sent = whole + b"\x00\x00\x00\x10 and more"
        for cut in range(1, len(sent)):
            reader = ProxyHeaderReader()
            found = reader.feed(memoryview(sent)[:cut])
            if cut < len(whole):
                assert found is None
                found = reader.feed(sent[cut:])
                assert found == ProxyHeader(host, port, sent[len(whole) :])
            else:
                assert found == ProxyHeader(host, port, sent[len(whole) : cut])


def test_what_is_no_header_is_refused_at_its_first_wrong_byte() -> None:
    for start, says in (
        (b"PROXY TCP4 192.0.2.7 127.0.0.1 5678 9092\r\n", "version 1"),
        (b"P", "version 1"),
        (b"\x00\x00\x00\x10\x00\x12", "no PROXY header"),
        (b"\x16\x03\x01", "no PROXY header"),
        (SIGNATURE[:-1] + b"x", "no PROXY header"),
        (bare(0x11, 0x11, bytes(12)), "version 1 with"),
        (bare(0x31, 0x11, bytes(12)), "version 3"),
        (bare(0x22, 0x11, bytes(12)), "command 2"),
        (bare(0x21, 0x12, bytes(12)), "not TCP"),
        (bare(0x21, 0x22, bytes(36)), "not TCP"),
        (bare(0x21, 0x31, bytes(216)), "not TCP"),
        (bare(0x21, 0x99, bytes(216)), "not TCP"),
        (bare(0x21, 0x11, bytes(11)), "no room"),
        (bare(0x21, 0x21, bytes(35)), "no room"),
        (SIGNATURE + struct.pack(">BBH", 0x21, 0x11, 65_535), "above"),
        (SIGNATURE + struct.pack(">BBH", 0x21, 0x11, HEADER_BYTES_MAX - 15), "above"),
    ):
        with pytest.raises(ProxyProtocolError) as refused:
            ProxyHeaderReader().feed(start)
        assert says in refused.value.message
    largest = header(tlvs=bytes(HEADER_BYTES_MAX - len(header())))
    assert ProxyHeaderReader().feed(largest) == ProxyHeader("192.0.2.7", 5_678, b"")


def test_only_networks_that_were_named_are_trusted() -> None:
    proxies = TrustedProxies([ipaddress.ip_network(each) for each in ("10.1.0.0/16", "192.0.2.7", "fd00::/8")])
    for host in ("10.1.2.3", "::ffff:10.1.2.3", "192.0.2.7", "fd00::1", "fd00::1%eth0"):
        assert proxies.trust(host), host
    for host in ("10.2.0.1", "192.0.2.8", "fe80::1", "::ffff:10.2.0.1", "?", ""):
        assert not proxies.trust(host), host
    assert not TrustedProxies().trust("10.1.2.3")


@settings(max_examples=examples(400))
@given(st.binary(max_size=300), st.integers(0, 60), st.integers(0, 255))
def test_no_bytes_bring_anything_but_a_refusal(data: bytes, at: int, byte: int) -> None:
    changed = bytearray(header(tlvs=TLV))
    changed[at % len(changed)] = byte
    for sent in (data, SIGNATURE + data, bytes(changed), bytes(changed[:at])):
        reader = ProxyHeaderReader()
        with suppress(ProxyProtocolError):
            for each in sent:
                if reader.feed(bytes([each])) is not None:
                    break
