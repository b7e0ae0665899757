"""A client of a few lines over a blocking socket: what it costs an agent to let somebody in, and to answer."""

from __future__ import annotations

import secrets
import socket
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from typing import TypeVar

from security.sasl import plain
from security.sasl.scram_client import ScramClient
from security.scram import Mechanism
from wire.api import decode_response, encode_request
from wire.messages.api_versions import ApiVersionsRequest
from wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from wire.schema import Message

API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36
TIMEOUT_S = 30.0
CLIENT_ID = "bench"

Response = TypeVar("Response", bound=Message)


class RawClient:
    """Raises OSError when the agent closes the connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = b""

    def send(self, api_key: int, version: int, request: Message) -> None:
        self._connection.sendall(b"".join(encode_request(api_key, version, 0, CLIENT_ID, request)))

    def receive(self) -> memoryview:
        size = int.from_bytes(self._exactly(4), "big")
        return memoryview(self._exactly(size))

    def ask(self, api_key: int, version: int, request: Message, response: type[Response]) -> Response:
        self.send(api_key, version, request)
        _, answer = decode_response(api_key, version, self.receive())
        assert isinstance(answer, response)
        return answer

    def api_versions(self) -> None:
        self.send(API_VERSIONS, 3, ApiVersionsRequest(client_software_name="bench", client_software_version="1"))
        self.receive()

    def log_in(self, mechanism: str, name: str, password: str) -> None:
        self.ask(SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse)
        if mechanism == "PLAIN":
            self._prove(plain.write(name, password))
            return
        kind = next(each for each in Mechanism if each.sasl_name == mechanism)
        scram = ScramClient(kind, name, password, nonce=secrets.token_urlsafe(24))
        scram.check(self._prove(scram.prove(self._prove(scram.first()))))

    def _prove(self, token: bytes) -> bytes:
        asked = SaslAuthenticateRequest(auth_bytes=token)
        answer = self.ask(SASL_AUTHENTICATE, 2, asked, SaslAuthenticateResponse)
        if answer.error_code:
            raise ConnectionRefusedError(answer.error_message)
        return bytes(answer.auth_bytes)

    def _exactly(self, size: int) -> bytes:
        while len(self._received) < size:
            more = self._connection.recv(256 << 10)
            if not more:
                raise ConnectionResetError("the agent has closed the connection")
            self._received += more
        taken, self._received = self._received[:size], self._received[size:]
        return taken


@contextmanager
def connected(address: str, context: ssl.SSLContext | None = None) -> Generator[RawClient]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as plain_socket:
        plain_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is None:
            yield RawClient(plain_socket)
            return
        with context.wrap_socket(plain_socket, server_hostname=host) as encrypted:
            yield RawClient(encrypted)
