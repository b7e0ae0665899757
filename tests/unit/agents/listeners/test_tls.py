"""The TLS layer against Python's own client, in memory: every split of the bytes, and peers that do not behave."""

from __future__ import annotations

import random
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.listeners.tls import (
    FEED_BYTES,
    HANDSHAKE_BYTES_MAX,
    JOINED_BYTES,
    SILENT_BYTES_MAX,
    Fault,
    TlsError,
    TlsLayer,
    TlsState,
)
from runtime.clock import SystemClock
from runtime.tls.contexts import server_tls
from runtime.tls.files import ClientAuth, ServerTlsSettings
from tests.fixtures.certificates import Certificates
from tests.fixtures.chance import examples
from tests.fixtures.tls_clients import ALERT, APPLICATION_DATA, Forger, MemoryClient

ROOM_BYTES = 100_000


def settings_of(certificates: Certificates) -> ServerTlsSettings:
    files = certificates.server
    return ServerTlsSettings(listener="public", prefix="listener.public.tls", cert_file=files.cert, key_file=files.key)


def mutual_context(certificates: Certificates, auth: ClientAuth = ClientAuth.REQUIRED) -> ssl.SSLContext:
    of = replace(settings_of(certificates), ca_file=certificates.ca, client_auth=auth)
    return server_tls(of, SystemClock().wall_ms()).context


@pytest.fixture(scope="module")
def context(certificates: Certificates) -> ssl.SSLContext:
    return server_tls(settings_of(certificates), SystemClock().wall_ms()).context


def pieces_of(data: bytes, sizes: Iterator[int]) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = next(sizes)
        yield data[at : at + size]
        at += size


def always(size: int) -> Iterator[int]:
    while True:
        yield size


def fed(layer: TlsLayer, ciphertext: bytes, sizes: Iterator[int] | None = None, room_bytes: int = ROOM_BYTES) -> bytes:
    """The plaintext that the layer makes of it, read as a connection reads it."""
    plaintext = b""
    room = memoryview(bytearray(room_bytes))
    for piece in pieces_of(ciphertext, sizes or always(FEED_BYTES)):
        left = memoryview(piece)
        while left:
            left = left[layer.feed(left) :]
            while count := layer.read_into(room):
                plaintext += bytes(room[:count])
    return plaintext


def shake_hands(layer: TlsLayer, client: MemoryClient, sizes: Iterator[int] | None = None) -> None:
    to_server = client.take()
    for _ in range(10):
        assert fed(layer, to_server, sizes) == b""
        to_server = client.take(layer.take_outgoing())
        if not to_server and client.is_open and layer.state is TlsState.OPEN:
            return
    raise AssertionError("no handshake")


def opened(context: ssl.SSLContext, client_context: ssl.SSLContext) -> tuple[TlsLayer, MemoryClient]:
    layer, client = TlsLayer(context), MemoryClient(client_context)
    shake_hands(layer, client)
    return layer, client


def old(context: ssl.SSLContext) -> ssl.SSLContext:
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def test_bytes_come_through_however_they_are_split(context: ssl.SSLContext, certificates: Certificates) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for client_context in (certificates.client_context(), old(certificates.client_context())):
        for sizes in (always(1), always(7), always(FEED_BYTES), (chance.randint(1, 3_000) for _ in always(1))):
            layer, client = TlsLayer(context), MemoryClient(client_context)
            shake_hands(layer, client, sizes)
            sent = chance.randbytes(50_000)
            assert fed(layer, client.send(sent), sizes, chance.choice((50, 1_000, ROOM_BYTES))) == sent
            answer = chance.randbytes(70_000)
            ciphertext = b"".join(layer.wrap([answer]))
            for piece in pieces_of(ciphertext, sizes):
                client.take(piece)
            assert client.plaintext == answer


def test_the_peer_is_known_after_the_handshake(context: ssl.SSLContext, certificates: Certificates) -> None:
    layer, _ = opened(context, certificates.client_context())
    assert (layer.version, layer.cipher, layer.peer_certificate) == ("TLSv1.3", "TLS_AES_256_GCM_SHA384", None)
    layer, _ = opened(context, old(certificates.client_context()))
    assert layer.version == "TLSv1.2" and layer.cipher.startswith("ECDHE-ECDSA-")
    layer, client = opened(mutual_context(certificates), certificates.client_context(certificates.client))
    assert layer.peer_certificate is not None
    assert ssl.DER_cert_to_PEM_cert(layer.peer_certificate) == certificates.client.cert.read_text()
    assert client.tls.getpeercert(binary_form=True) is not None


def test_small_parts_share_a_record_and_large_ones_are_cut(context: ssl.SSLContext, certificates: Certificates) -> None:
    layer, client = opened(context, certificates.client_context())
    for parts, records in (
        ([], 0),
        ([b""], 0),
        ([b"a"], 1),
        ([b"a"] * 1_000, 1),
        ([b"a" * 1_000] * 16, 1),
        ([b"a" * 1_000] * 17, 2),
        ([b"a" * JOINED_BYTES], 1),
        ([b"a" * (16 << 10)], 1),
        ([b"a" * ((16 << 10) + 1)], 2),
        ([b"ab", memoryview(b"c" * 40_000), b"d", bytearray(b"e")], 5),
    ):
        client.plaintext = b""
        pieces = layer.wrap(parts)
        assert len(pieces) == records
        client.take(b"".join(pieces))
        assert client.plaintext == b"".join(parts)


def test_plaintext_that_came_with_the_last_of_the_handshake_is_not_lost(
    context: ssl.SSLContext, certificates: Certificates
) -> None:
    layer, client = TlsLayer(context), MemoryClient(certificates.client_context())
    layer.feed(client.take())
    finished = client.take(layer.take_outgoing())
    assert fed(layer, finished + client.send(b"at once")) == b"at once"


def test_a_goodbye_ends_what_is_read_and_answers_still_leave(
    context: ssl.SSLContext, certificates: Certificates
) -> None:
    layer, client = opened(context, certificates.client_context())
    assert fed(layer, client.send(b"last") + client.say_goodbye() + b"junk") == b"last"
    assert layer.state is TlsState.PEER_CLOSED and not layer.was_cut
    assert fed(layer, b"more junk") == b""
    assert layer.wrap([b"answer"])
    layer.feed_end()
    assert not layer.was_cut
    layer.close()
    assert layer.state is TlsState.CLOSED
    with pytest.raises(TlsError, match="closed") as refused:
        layer.wrap([b"x"])
    assert refused.value.fault is Fault.OURS


def test_our_goodbye_reaches_the_client(context: ssl.SSLContext, certificates: Certificates) -> None:
    for client_context in (certificates.client_context(), old(certificates.client_context())):
        layer, client = opened(context, client_context)
        client.take(b"".join(layer.wrap([b"answer"])) + layer.close())
        assert client.plaintext == b"answer" and client.saw_goodbye
        assert layer.close() == b""
    assert TlsLayer(context).close() == b""


def test_a_stream_that_is_cut_is_known(context: ssl.SSLContext, certificates: Certificates) -> None:
    layer, client = opened(context, certificates.client_context())
    ciphertext = client.send(b"x" * 1_000)
    assert fed(layer, ciphertext[:-1]) == b""
    layer.feed_end()
    assert layer.was_cut and layer.state is TlsState.PEER_CLOSED
    half = TlsLayer(context)
    half.feed(MemoryClient(certificates.client_context()).take()[:50])
    half.feed_end()
    assert half.was_cut


def failure(layer: TlsLayer, ciphertext: bytes) -> TlsError:
    with pytest.raises(TlsError) as failed:
        fed(layer, ciphertext)
    assert layer.state is TlsState.FAILED
    assert fed(layer, b"more") == b""
    return failed.value


def test_bytes_that_are_no_tls_are_called_what_they_are(context: ssl.SSLContext) -> None:
    for start, says in (
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP without TLS"),
        (b"POST /topics HTTP/1.1\r\n\r\n", "HTTP without TLS"),
        (bytes.fromhex("0000002a0012000300000001"), "Kafka protocol without TLS"),
        (bytes.fromhex("00100000000000090000000100016b"), "Kafka protocol without TLS"),
        (b"\xff\xfe" * 20, "not TLS: it begins with"),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n", "not TLS"),
        (b"\x00" * 100, "Kafka protocol without TLS"),
    ):
        error = failure(TlsLayer(context), start)
        assert says in error.message and error.fault is Fault.PEER and "security.protocol" in error.remedy
        layer = TlsLayer(context)
        with pytest.raises(TlsError, match=says.split()[0]):
            for byte in start:
                layer.feed(bytes([byte]))


def test_a_client_that_cannot_be_let_in_is_told_and_named(certificates: Certificates) -> None:
    required = mutual_context(certificates)
    nobody = certificates.client_context()
    stranger = certificates.client_context(certificates.client_of_other)
    late = certificates.client_context(certificates.client_expired)
    distrusting = certificates.client_context(ca=certificates.other_ca)
    elsewhere = certificates.client_context()
    for client_context, name, says, fault in (
        (nobody, "localhost", "shows no certificate", Fault.PEER),
        (old(certificates.client_context()), "localhost", "shows no certificate", Fault.PEER),
        (stranger, "localhost", "certificate is refused", Fault.PEER),
        (late, "localhost", "certificate is refused: certificate has expired", Fault.PEER),
        (distrusting, "localhost", "does not trust our certificate", Fault.OURS),
        (elsewhere, "elsewhere.invalid", "refuses our certificate", Fault.OURS),
    ):
        layer, client = TlsLayer(required), MemoryClient(client_context, name)
        layer.feed(client.take())
        try:
            to_server = client.take(layer.take_outgoing())
        except ssl.SSLError:
            to_server = client.take_rest()
        with pytest.raises(TlsError) as failed:
            for _ in range(4):
                fed(layer, to_server)
                to_server = client.take(layer.take_outgoing())
        assert says in failed.value.message and failed.value.fault is fault
        if fault is Fault.PEER:
            # then the alert tells the client
            with pytest.raises(ssl.SSLError):
                client.take(layer.take_outgoing())


def test_old_versions_are_refused(context: ssl.SSLContext, certificates: Certificates) -> None:
    client_context = certificates.client_context()
    client_context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        client_context.minimum_version = client_context.maximum_version = ssl.TLSVersion.TLSv1_1
    error = failure(TlsLayer(context), MemoryClient(client_context).take())
    assert "too old" in error.message


def test_a_handshake_is_bounded(context: ssl.SSLContext, certificates: Certificates) -> None:
    """Messages that begin and never end, whole records of them."""
    # a ClientHello that claims 16 MiB, and then as much of it as we take
    record = b"\x16\x03\x01\x40\x00" + b"\x01\xff\xff\xff" + b"\x00" * (16_384 - 4)
    error = failure(TlsLayer(context), record * 40)
    assert error.fault is Fault.PEER
    # a good ClientHello, and then nothing but changes of cipher, which TLS 1.3 has to ignore
    layer = TlsLayer(context)
    layer.feed(MemoryClient(certificates.client_context()).take())
    failure(layer, b"\x14\x03\x03\x00\x01\x01" * HANDSHAKE_BYTES_MAX)


def test_a_record_that_is_too_long_is_refused_by_its_header(
    context: ssl.SSLContext, certificates: Certificates
) -> None:
    """However the header arrives: else a client could let us hold 64 KiB of each record."""
    for sizes in (always(FEED_BYTES), always(1), always(3)):
        layer, _ = opened(context, certificates.client_context())
        with pytest.raises(TlsError, match="too long"):
            fed(layer, b"\x17\x03\x03\xff\xff" + bytes(10), sizes)


def test_only_records_whose_end_has_come_are_asked_for(context: ssl.SSLContext, certificates: Certificates) -> None:
    """Python's `ssl` answers for a part of one by an exception, which costs as much as decrypting it."""
    layer, client = opened(context, certificates.client_context())
    wanted: list[int] = []

    class Asked(ssl.SSLObject):
        def read(self, len: int = 1024, buffer: bytearray | None = None) -> Any:
            try:
                return super().read(len, buffer)
            except ssl.SSLWantReadError:
                wanted.append(len)
                raise

    layer._object.__class__ = Asked  # pyright: ignore[reportPrivateUsage]
    sent = bytes(100_000)
    for sizes in (always(10_000), always(FEED_BYTES), always(7)):
        assert fed(layer, client.send(sent), sizes) == sent
    assert not wanted


def forger(context: ssl.SSLContext, certificates: Certificates, path: Path) -> tuple[TlsLayer, MemoryClient, Forger]:
    client_context = certificates.client_context()
    client_context.keylog_filename = str(path / "keys")
    layer, client = opened(context, client_context)
    return layer, client, Forger(path / "keys")


def test_the_forger_speaks_as_the_client_would(
    context: ssl.SSLContext, certificates: Certificates, tmp_path: Path
) -> None:
    layer, client, forged = forger(context, certificates, tmp_path)
    assert fed(layer, forged.record(b"one", APPLICATION_DATA)) == b"one"
    assert fed(layer, forged.key_update() + forged.record(b"two", APPLICATION_DATA)) == b"two"
    client.take(layer.take_outgoing() + b"".join(layer.wrap([b"answer"])))
    assert client.plaintext == b"answer"


def test_a_flood_of_key_updates_is_cut_and_fills_no_memory(
    context: ssl.SSLContext, certificates: Certificates, tmp_path: Path
) -> None:
    layer, _, forged = forger(context, certificates, tmp_path)
    flood = b"".join(forged.key_update() for _ in range(10_000))
    outgoing = fed_bytes = 0
    with pytest.raises(TlsError, match=r"carry no data|TLS says"):
        for piece in pieces_of(flood, always(1_000)):
            fed(layer, piece)
            fed_bytes += len(piece)
            outgoing += len(layer.take_outgoing())
    assert fed_bytes <= SILENT_BYTES_MAX + 2 * FEED_BYTES
    assert outgoing <= SILENT_BYTES_MAX + 2 * FEED_BYTES


def test_a_flood_of_empty_records_is_cut(context: ssl.SSLContext, certificates: Certificates, tmp_path: Path) -> None:
    layer, _, forged = forger(context, certificates, tmp_path)
    failure(layer, b"".join(forged.record(b"", APPLICATION_DATA) for _ in range(10_000)))


def test_alerts_and_messages_out_of_place_end_the_connection(
    context: ssl.SSLContext, certificates: Certificates, tmp_path: Path
) -> None:
    for number, (content, kind) in enumerate(
        (
            (b"\x02\x28", ALERT),  # handshake_failure, fatal
            (b"\x01\x00\x00\x00", 22),  # ClientHello: a renegotiation, which TLS 1.3 does not have
            (b"\x04" + (40).to_bytes(3, "big") + bytes(40), 22),  # a session ticket, which only servers send
            (b"\x0d\x00\x00\x03\x00\x00\x00", 22),  # CertificateRequest
            (b"\x18\x00\x00\x01\x07", 22),  # a key update of an unknown kind
            (b"x", 99),
        )
    ):
        path = tmp_path / str(number)
        path.mkdir()
        layer, _, forged = forger(context, certificates, path)
        failure(layer, forged.record(content, kind))


def test_a_record_that_was_changed_on_its_way_ends_the_connection(
    context: ssl.SSLContext, certificates: Certificates
) -> None:
    for client_context in (certificates.client_context(), old(certificates.client_context())):
        layer, client = opened(context, client_context)
        record = bytearray(client.send(b"x" * 100))
        record[50] ^= 1
        assert "damaged" in failure(layer, bytes(record)).message


def test_a_second_hello_in_the_clear_ends_the_connection(context: ssl.SSLContext, certificates: Certificates) -> None:
    layer, _ = opened(context, old(certificates.client_context()))
    failure(layer, MemoryClient(old(certificates.client_context())).take())


@settings(max_examples=examples(400))
@given(data=st.binary(max_size=400), cut=st.integers(0, 600), flips=st.lists(st.integers(0, 4_000), max_size=3))
def test_no_bytes_bring_anything_but_a_tls_error(
    context: ssl.SSLContext, certificates: Certificates, data: bytes, cut: int, flips: Sequence[int]
) -> None:
    """Garbage; a hello that is cut, changed and followed by garbage; an open connection that turns to garbage."""
    client = MemoryClient(certificates.client_context())
    hello = bytearray(client.take())
    for flip in flips:
        hello[flip % len(hello)] ^= 1 << flip % 8
    for start in (data, b"\x16\x03\x01" + data, bytes(hello[:cut]) + data):
        layer = TlsLayer(context)
        try:
            assert fed(layer, start) == b""
        except TlsError as error:
            assert layer.state is TlsState.FAILED and error.message
        assert len(layer.take_outgoing()) < 8_000
    layer, client = opened(context, certificates.client_context())
    try:
        assert fed(layer, data) == b""
    except TlsError:
        assert layer.state is TlsState.FAILED
