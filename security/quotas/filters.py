"""Which quotas a DescribeClientQuotas asks for (KIP-546, Kafka's `ClientQuotasImage.describe`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from security.quotas.values import DEFAULT, Named, QuotaEntity


class EntityType(StrEnum):
    USER = "user"
    CLIENT_ID = "client-id"
    IP = "ip"


class MatchType(IntEnum):
    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """Entities with this part: of this name, of the default, or of any (SPECIFIED)."""

    entity_type: EntityType
    match_type: MatchType
    name: str = ""

    def matches(self, entity: QuotaEntity) -> bool:
        given = part_of(entity, self.entity_type)
        if self.match_type is MatchType.EXACT:
            return given == self.name
        return given is DEFAULT if self.match_type is MatchType.DEFAULT else given is not None


def matches(entity: QuotaEntity, components: Sequence[Component], *, strict: bool) -> bool:
    """`strict`: the entity has no other parts than those asked for."""
    if not all(component.matches(entity) for component in components):
        return False
    if not strict:
        return True
    asked = {component.entity_type for component in components}
    return all(part_of(entity, each) is None for each in EntityType if each not in asked)


def part_of(entity: QuotaEntity, entity_type: EntityType) -> Named:
    match entity_type:
        case EntityType.USER:
            return entity.user
        case EntityType.CLIENT_ID:
            return entity.client_id
        case EntityType.IP:
            return entity.ip
