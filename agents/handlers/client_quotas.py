"""DescribeClientQuotas and AlterClientQuotas 0-1 (KIP-546), keys 48 and 49."""

from __future__ import annotations

from collections.abc import Mapping

from agents.broker import Broker
from agents.security.changes import tell_changes
from agents.security.refusals import check_cluster_right
from agents.topics.rules import RequestError, code_of
from agents.yielding import LoopYielder
from runtime.errors import BadInputError, SiltstoneError
from security.acls.values import Operation
from security.quotas.checks import QuotaError, check_value, entity_of, entity_type_of, key_of
from security.quotas.filters import Component, EntityType, MatchType, matches, part_of
from security.quotas.values import DEFAULT, QuotaEntity
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredEntryData,
)
from wire.messages.alter_client_quotas import EntityData as AlteredEntityData
from wire.messages.alter_client_quotas import EntryData as AskedEntryData
from wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)


async def describe(
    broker: Broker, header: RequestHeader, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    try:
        check_cluster_right(broker.rights(), Operation.DESCRIBE_CONFIGS)
        components = _components(request)
        await broker.follower.catch_up()
    except SiltstoneError as error:
        return DescribeClientQuotasResponse(error_code=code_of(error), error_message=str(error), entries=None)
    entries = [
        EntryData(
            entity=[
                EntityData(entity_type=kind, entity_name=None if name is DEFAULT else name)
                for kind in EntityType
                if (name := part_of(entity, kind)) is not None
            ],
            values=[ValueData(key=key, value=value) for key, value in sorted(values.items())],
        )
        async for entity, values in LoopYielder().through(list(broker.security.quotas.items()))
        if matches(entity, components, strict=request.strict)
    ]
    return DescribeClientQuotasResponse(error_message=None, entries=entries)


def _components(request: DescribeClientQuotasRequest) -> list[Component]:
    """Raises RequestError."""
    found: dict[EntityType, Component] = {}
    for asked in request.components:
        component = _component(asked)
        if component.entity_type in found:
            raise RequestError(ErrorCode.INVALID_REQUEST, f"the filter names {asked.entity_type!r} twice")
        found[component.entity_type] = component
    if EntityType.IP in found and len(found) > 1:
        raise RequestError(ErrorCode.INVALID_REQUEST, "an ip cannot be combined with a user or a client-id")
    return list(found.values())


def _component(asked: ComponentData) -> Component:
    try:
        entity_type = entity_type_of(asked.entity_type)
    except QuotaError as error:
        # Kafka's code for an entity type that it does not know.
        code = ErrorCode.UNSUPPORTED_VERSION if asked.entity_type else ErrorCode.INVALID_REQUEST
        raise RequestError(code, str(error)) from error
    try:
        match_type = MatchType(asked.match_type)
    except ValueError:
        raise RequestError(ErrorCode.INVALID_REQUEST, f"there is no match type {asked.match_type}") from None
    if (asked.match is not None) is not (match_type is MatchType.EXACT):
        raise RequestError(ErrorCode.INVALID_REQUEST, "a name belongs to an exact match, and to no other")
    return Component(entity_type=entity_type, match_type=match_type, name=asked.match or "")


async def alter(broker: Broker, header: RequestHeader, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
    """All entities that can be altered, or none if the store fails; what is wrong with one leaves the others alone."""
    entries: list[AlteredEntryData] = []
    changes: dict[QuotaEntity, Mapping[str, float | None]] = {}
    good: list[AlteredEntryData] = []
    try:
        check_cluster_right(broker.rights(), Operation.ALTER_CONFIGS)
        async for asked in LoopYielder().through(request.entries):
            entry = AlteredEntryData(entity=_same(asked), error_message=None)
            entries.append(entry)
            try:
                entity, values = _change(asked)
                if entity in changes:
                    raise QuotaError("the request alters this entity twice")
                changes[entity] = values
                good.append(entry)
            except BadInputError as error:
                entry.error_code, entry.error_message = ErrorCode.INVALID_REQUEST, str(error)
        if changes and not request.validate_only:
            change_id = await broker.metadata.security.alter_quotas(changes)
            tell_changes(list(changes.items()), lambda change: ("quotas altered", _facts(*change)))
            await broker.taken_in_everywhere(change_id)
    except SiltstoneError as error:
        if not entries:  # the request was refused before its entries were looked at
            entries = good = [_refused(asked) for asked in request.entries]
        for entry in good:
            entry.error_code, entry.error_message = code_of(error), str(error)
    return AlterClientQuotasResponse(entries=entries)


def _change(asked: AskedEntryData) -> tuple[QuotaEntity, Mapping[str, float | None]]:
    """Raises QuotaError."""
    entity = entity_of((part.entity_type, part.entity_name) for part in asked.entity)
    values: dict[str, float | None] = {}
    for op in asked.ops:
        key = key_of(entity, op.key)
        if key in values:
            raise QuotaError(f"{key} is altered twice")
        if not op.remove:
            check_value(key, op.value)
        values[key] = None if op.remove else op.value
    return entity, values


def _facts(entity: QuotaEntity, values: Mapping[str, float | None]) -> Mapping[str, str]:
    """For the audit log. The entity is one fact: `client_id` in a line is that of the client that asks."""
    parts = [(kind.replace("-", "_"), part_of(entity, kind)) for kind in EntityType]
    named = (f"{kind}={'<default>' if name is DEFAULT else name}" for kind, name in parts if name is not None)
    changes = {str(key): "removed" if value is None else f"{value:.15g}" for key, value in sorted(values.items())}
    return {"entity": " ".join(named), **changes}


def _same(asked: AskedEntryData) -> list[AlteredEntityData]:
    return [AlteredEntityData(entity_type=part.entity_type, entity_name=part.entity_name) for part in asked.entity]


def _refused(asked: AskedEntryData) -> AlteredEntryData:
    return AlteredEntryData(entity=_same(asked), error_message=None)
