"""The other end of a `Session`, in memory: frames to give it, and its answers read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from agents.features import Features
from agents.security.session import CheckPassword, Reply, Session, Step
from security.sasl import plain
from security.sasl.scram_client import ScramClient
from security.scram import Mechanism, ScramCredential, credential_of, is_password_of
from wire.api import decode_response, encode_request
from wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from wire.schema import Message, message_table

Answer = TypeVar("Answer", bound=Message)
SHA_256, SHA_512 = Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512
METADATA = (3).to_bytes(2, "big") + bytes(30)
"""Begins as a Metadata request; the rest is not one."""
ALL = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")


def credential(password: str = "secret", mechanism: Mechanism = SHA_256) -> ScramCredential:
    return credential_of(mechanism, password, salt=b"saltsaltsaltsalt")


@dataclass
class Users:
    users: dict[str, Mapping[Mechanism, ScramCredential]] = field(
        default_factory=lambda: {"ann": {SHA_256: credential()}, "bob": {SHA_512: credential("b", SHA_512)}}
    )
    cluster_secret: bytes = b"k" * 32
    stale_ms: float = 0.0


def session(users: Users | None = None, *, reauthenticate_ms: int = 0, receive_bytes_max: int = 65_536) -> Session:
    numbers = iter(range(1_000))
    return Session(
        users or Users(),
        (*ALL, "OAUTHBEARER"),
        features=Features(),
        nonce=lambda: f"server{next(numbers):020}",
        reauthenticate_ms=reauthenticate_ms,
        receive_bytes_max=receive_bytes_max,
    )


def frame(request: Message, version: int) -> memoryview:
    return memoryview(b"".join(encode_request(message_table(type(request)).api_key, version, 7, "c", request)))[4:]


def answer_in(step: Step, response: type[Answer], version: int) -> Answer:
    assert isinstance(step, Reply)
    correlation_id, answer = decode_response(
        message_table(response).api_key, version, memoryview(b"".join(step.parts))[4:]
    )
    assert correlation_id == 7 and isinstance(answer, response)
    return answer


def shake(ours: Session, mechanism: str, version: int = 1, *, now_ms: float = 0) -> SaslHandshakeResponse:
    step = ours.receive(frame(SaslHandshakeRequest(mechanism=mechanism), version), now_ms)
    return answer_in(step, SaslHandshakeResponse, version)


def settled(ours: Session, step: Step, now_ms: float) -> Reply:
    """Do what the step asks for."""
    if isinstance(step, CheckPassword):
        return ours.judged(is_password_of(step.credential, step.password), now_ms)
    assert isinstance(step, Reply)
    return step


def send(ours: Session, token: bytes, *, version: int = 2, now_ms: float = 0) -> tuple[Reply, SaslAuthenticateResponse]:
    step = settled(ours, ours.receive(frame(SaslAuthenticateRequest(auth_bytes=token), version), now_ms), now_ms)
    return step, answer_in(step, SaslAuthenticateResponse, version)


def authenticate(
    ours: Session,
    name: str = "ann",
    password: str = "secret",
    mechanism: str = "SCRAM-SHA-256",
    *,
    version: int = 2,
    now_ms: float = 0,
) -> tuple[Reply, SaslAuthenticateResponse]:
    """From the handshake to the last answer, good or bad."""
    assert shake(ours, mechanism, now_ms=now_ms).error_code == 0
    if mechanism == "PLAIN":
        return send(ours, plain.write(name, password), version=version, now_ms=now_ms)
    theirs = ScramClient(Mechanism[mechanism.replace("-", "_")], name, password, nonce="client" * 4)
    step, answer = send(ours, theirs.first(), version=version, now_ms=now_ms)
    if answer.error_code:
        return step, answer
    step, answer = send(ours, theirs.prove(bytes(answer.auth_bytes)), version=version, now_ms=now_ms)
    if not answer.error_code:
        theirs.check(bytes(answer.auth_bytes))
    return step, answer
