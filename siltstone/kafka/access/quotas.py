"""DescribeClientQuotas and AlterClientQuotas (KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from security.quotas.checks import entity_of
from security.quotas.filters import Component, EntityType, part_of
from security.quotas.values import DEFAULT, QuotaEntity
from siltstone.kafka.access.changes import CHANGE_TIMEOUT_MS, remedy_of
from siltstone.kafka.client import KafkaClient, KafkaError
from wire.messages import alter_client_quotas, describe_client_quotas

Quotas = Mapping[QuotaEntity, Mapping[str, float]]
_LISTING_REMEDIES = remedy_of("DescribeConfigs")
REMEDIES = remedy_of("AlterConfigs")


async def describe_quotas(client: KafkaClient, components: Sequence[Component], *, strict: bool) -> Quotas:
    """Raises KafkaError."""
    request = describe_client_quotas.DescribeClientQuotasRequest(
        components=[
            describe_client_quotas.ComponentData(
                entity_type=each.entity_type, match_type=each.match_type, match=each.name or None
            )
            for each in components
        ],
        strict=strict,
    )
    answer = await client.call(request, describe_client_quotas.DescribeClientQuotasResponse)
    if answer.error_code:
        raise KafkaError(answer.error_code, "list quotas", answer.error_message, remedies=_LISTING_REMEDIES)
    return {
        entity_of((part.entity_type, part.entity_name) for part in entry.entity): {
            each.key: each.value for each in entry.values
        }
        for entry in answer.entries or []
    }


async def alter_quotas(
    client: KafkaClient, entity: QuotaEntity, changes: Mapping[str, float | None], *, validate_only: bool = False
) -> None:
    """Set quotas; None removes one. Raises KafkaError."""
    parts = [(each, part_of(entity, each)) for each in EntityType]
    entry = alter_client_quotas.EntryData(
        entity=[
            alter_client_quotas.EntityData(entity_type=kind, entity_name=None if name is DEFAULT else name)
            for kind, name in parts
            if name is not None
        ],
        ops=[
            alter_client_quotas.OpData(key=key, value=value or 0.0, remove=value is None)
            for key, value in changes.items()
        ],
    )
    answer = await client.call(
        alter_client_quotas.AlterClientQuotasRequest(entries=[entry], validate_only=validate_only),
        alter_client_quotas.AlterClientQuotasResponse,
        timeout_ms=CHANGE_TIMEOUT_MS,
    )
    for result in answer.entries:
        if result.error_code:
            raise KafkaError(result.error_code, "alter quotas", result.error_message, remedies=REMEDIES)
