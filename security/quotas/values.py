"""Whom a quota binds (KIP-546) and the keys that it may set."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final, Literal, TypeAlias


class Default(Enum):
    """Stands for everybody of a kind who has no quota of his own."""

    DEFAULT = "default"


DEFAULT: Final = Default.DEFAULT
Named: TypeAlias = str | Literal[Default.DEFAULT] | None
"""A name, the default of its kind, or None: this kind plays no part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaEntity:
    """A user, a client id, both, or an address. At least one part is given, and `ip` stands alone."""

    user: Named = None
    client_id: Named = None
    ip: Named = None


class QuotaKey(StrEnum):
    """Kafka's names, and `producer_id_rate`, which is ours: new producer ids a second."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    REQUEST_PERCENTAGE = "request_percentage"
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    CONNECTION_CREATION_RATE = "connection_creation_rate"
    PRODUCER_ID_RATE = "producer_id_rate"
