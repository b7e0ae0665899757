"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): the credentials that a server keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 16_384
"""Kafka's bounds (`ScramMechanism`, `ScramCredentialUtils`)."""


class Mechanism(IntEnum):
    """The numbers are those of KIP-554, in requests and in the metadata store."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return self.name.replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """All that a server keeps of a password. The keys are never shown: `server_key` lets its reader pose as an agent,
    and a short password can be guessed from either."""

    mechanism: Mechanism
    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
