"""The rules for what AlterClientQuotas may set (Kafka's `ClientQuotaControlManager` and `QuotaConfig`)."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Sequence

from runtime.errors import BadInputError
from security.quotas.filters import EntityType
from security.quotas.values import DEFAULT, Named, QuotaEntity, QuotaKey

NAME_BYTES_MAX = 249
"""Bytes of a user's or client's name in UTF-8."""
_INT63_MAX = 2**63 - 1
_INT31_MAX = 2**31 - 1
_WHOLE = {
    QuotaKey.PRODUCER_BYTE_RATE: _INT63_MAX,
    QuotaKey.CONSUMER_BYTE_RATE: _INT63_MAX,
    QuotaKey.CONNECTION_CREATION_RATE: _INT31_MAX,
}
"""The keys that take whole numbers, and the largest."""


class QuotaError(BadInputError):
    """The entity, the key or the value is not one that can be set. Nothing was changed."""


def entity_of(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """The entity of pairs (type, name); a name of None is the default. Raises QuotaError."""
    found: dict[EntityType, Named] = {}
    for kind, name in parts:
        entity_type = entity_type_of(kind)
        if entity_type in found:
            raise QuotaError(f"the entity names {kind!r} twice")
        if name is not None:
            _check_name(entity_type, name)
        found[entity_type] = DEFAULT if name is None else name
    if not found:
        raise QuotaError(
            "the entity is empty",
            remedy="name a user, a client-id, both, or an ip: --user, --client, --ip, or one of their defaults",
        )
    if EntityType.IP in found and len(found) > 1:
        raise QuotaError("an ip cannot be combined with a user or a client-id")
    return QuotaEntity(
        user=found.get(EntityType.USER), client_id=found.get(EntityType.CLIENT_ID), ip=found.get(EntityType.IP)
    )


def entity_type_of(kind: str) -> EntityType:
    """Raises QuotaError."""
    try:
        return EntityType(kind)
    except ValueError:
        raise QuotaError(f"there is no entity type {kind!r}", remedy="the types are user, client-id and ip") from None


def key_of(entity: QuotaEntity, text: str) -> QuotaKey:
    """The key, if it can be set for this entity. Raises QuotaError."""
    allowed = keys_of(entity)
    if text not in allowed:
        of = "an ip" if entity.ip is not None else "a user or client-id"
        raise QuotaError(f"the quota {text!r} cannot be set for {of}", remedy=f"those are {', '.join(allowed)}")
    return QuotaKey(text)


def keys_of(entity: QuotaEntity) -> Sequence[QuotaKey]:
    by_ip = [QuotaKey.CONNECTION_CREATION_RATE]
    return by_ip if entity.ip is not None else [key for key in QuotaKey if key not in by_ip]


def check_value(key: QuotaKey, value: float) -> None:
    """Raises QuotaError."""
    if not math.isfinite(value) or value <= 0:
        raise QuotaError(f"{key} must be above 0, not {value}", remedy=f"--delete {key} lifts it")
    most = _WHOLE.get(key)
    if most is not None and (not value.is_integer() or value > most):
        raise QuotaError(f"{key} must be a whole number of at most {most}, not {value}")


def _check_name(entity_type: EntityType, name: str) -> None:
    if not name:
        raise QuotaError(f"the name of the {entity_type} is empty", remedy="leave the name out for the default")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise QuotaError(f"the name of the {entity_type} has more than {NAME_BYTES_MAX} bytes")
    if "\0" in name:
        raise QuotaError(f"the name of the {entity_type} holds a zero byte")
    if entity_type is EntityType.IP:
        try:
            ipaddress.ip_address(name)
        except ValueError:
            raise QuotaError(
                f"{name!r} is not an IP address", remedy="name one address; networks and names of hosts have no quotas"
            ) from None
