"""The words of each client that is not let in, or may not do something: of its error, and of the lines its library
logs meanwhile. A client that says nothing of the kind, and goes on trying in silence, fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Words:
    """Regular expressions."""

    password: str
    """A wrong password, or no such user."""
    server: str
    """The client does not trust the agent's certificate."""
    certificate: str
    """The agent does not trust the client's certificate."""
    topic: str
    group: str


_LIBRDKAFKA = Words(
    password="SASL authentication error: Authentication failed: invalid credentials",
    server="certificate verify failed",
    certificate="tlsv1 alert unknown ca|SSL alert number 48",
    topic="Topic authorization failed|TOPIC_AUTHORIZATION_FAILED",
    group="Group authorization failed|GROUP_AUTHORIZATION_FAILED",
)

WORDS: Mapping[str, Words] = {
    "confluent-kafka": _LIBRDKAFKA,
    "kcat": _LIBRDKAFKA,
    "aiokafka": Words(
        password=r"SaslAuthenticationFailed: Authentication failed(.|\n)*Unable to bootstrap",
        server=r"CERTIFICATE_VERIFY_FAILED(.|\n)*Unable to bootstrap",
        certificate=r"closed(.|\n)*Unable to bootstrap",
        topic="TopicAuthorizationFailedError|is not authorized for this client",
        group="GroupAuthorizationFailedError",
    ),
    "kafka-python": Words(
        password=r"SaslAuthenticationFailedError: Authentication failed(.|\n)*Unable to bootstrap",
        server=r"CERTIFICATE_VERIFY_FAILED(.|\n)*Unable to bootstrap",
        certificate=r"disconnected(.|\n)*Unable to bootstrap",
        topic="TopicAuthorizationFailedError|is not authorized for this client",
        group="GroupAuthorizationFailedError",
    ),
    "Java client": Words(
        password="SaslAuthenticationException: Authentication failed: invalid credentials",
        server="SslAuthenticationException: SSL handshake failed",
        certificate="SslAuthenticationException: Failed to process post-handshake messages",
        topic="TopicAuthorizationException",
        group="GroupAuthorizationException",
    ),
    "franz-go": Words(
        password="SASL_AUTHENTICATION_FAILED",
        server="certificate signed by unknown authority",
        certificate="unknown certificate authority|bad certificate",
        topic="TOPIC_AUTHORIZATION_FAILED",
        group="GROUP_AUTHORIZATION_FAILED",
    ),
    "sarama": Words(
        password="SASL Authentication failed|Authentication failed: invalid credentials",
        server="certificate signed by unknown authority",
        certificate="unknown certificate authority|bad certificate|broken pipe|connection reset",
        topic="not authorized to access this topic",
        group="not authorized to access this group",
    ),
}
