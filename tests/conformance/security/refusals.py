"""The words of each client that is not let in, or may not do something: of its error, and of the lines its library
logs meanwhile. A client that says nothing of the kind, and goes on trying in silence, fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Words:
    """Regular expressions."""

    proof: str
    """A wrong password, no such user, or a token that is not good."""
    server: str
    """The client does not trust the agent's certificate."""
    certificate: str
    """The agent does not trust the client's certificate."""
    topic: str
    group: str
    expired: str = ""
    """A token that has expired, if the client looks at its time by itself."""


_LIBRDKAFKA = Words(
    proof="SASL authentication error: Authentication failed: invalid credentials",
    server="certificate verify failed",
    certificate="tlsv1 alert unknown ca|SSL alert number 48",
    topic="Topic authorization failed|TOPIC_AUTHORIZATION_FAILED",
    group="Group authorization failed|GROUP_AUTHORIZATION_FAILED",
    expired="Failed to acquire SASL OAUTHBEARER token: Must supply an unexpired token",
)

WORDS: Mapping[str, Words] = {
    "confluent-kafka": _LIBRDKAFKA,
    # It shows the agent's text instead of the name of the error.
    "kcat": replace(_LIBRDKAFKA, group="no right to do this to group '.+'; an ACL can give it"),
    "aiokafka": Words(
        proof=r"SaslAuthenticationFailed: Authentication failed(.|\n)*Unable to bootstrap",
        server=r"CERTIFICATE_VERIFY_FAILED(.|\n)*Unable to bootstrap",
        certificate=r"closed(.|\n)*Unable to bootstrap",
        topic="TopicAuthorizationFailedError|is not authorized for this client",
        group="GroupAuthorizationFailedError",
    ),
    "kafka-python": Words(
        proof=r"SaslAuthenticationFailedError: Authentication failed(.|\n)*Unable to bootstrap",
        server=r"CERTIFICATE_VERIFY_FAILED(.|\n)*Unable to bootstrap",
        certificate=r"disconnected(.|\n)*Unable to bootstrap",
        topic="TopicAuthorizationFailedError|is not authorized for this client",
        group="GroupAuthorizationFailedError",
    ),
    "Java client": Words(
        proof="SaslAuthenticationException: Authentication failed: invalid credentials",
        server="SslAuthenticationException: SSL handshake failed",
        certificate="SslAuthenticationException: Failed to process post-handshake messages",
        topic="TopicAuthorizationException",
        group="GroupAuthorizationException",
    ),
    "franz-go": Words(
        proof="SASL_AUTHENTICATION_FAILED",
        server="certificate signed by unknown authority",
        certificate="unknown certificate authority|bad certificate",
        topic="TOPIC_AUTHORIZATION_FAILED",
        group="GROUP_AUTHORIZATION_FAILED",
    ),
    "sarama": Words(
        proof="SASL Authentication failed|Authentication failed: invalid credentials",
        server="certificate signed by unknown authority",
        certificate="unknown certificate authority|bad certificate|broken pipe|connection reset",
        topic="not authorized to access this topic",
        group="not authorized to access this group",
    ),
}
