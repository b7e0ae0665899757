"""IncrementalAlterConfigs 0-1 (KIP-339): SET, DELETE, and APPEND, SUBTRACT on lists, of topics and of the whole cluster
(`agents/topics/config_changes.py`)."""

from __future__ import annotations

from collections.abc import Mapping

from agents.broker import Broker
from agents.topics.config_changes import alter, altered, check_once, no_value
from agents.topics.rules import RequestError
from metadata.configs.topic import Config, ConfigType, as_list
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

SET, DELETE, APPEND, SUBTRACT = range(4)


async def handle(
    broker: Broker, header: RequestHeader, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    async def one(asked: AlterConfigsResource) -> None:
        await _alter(broker, asked, validate_only=request.validate_only)

    return IncrementalAlterConfigsResponse(
        responses=await altered(request.resources, one, AlterConfigsResourceResponse)
    )


async def _alter(broker: Broker, asked: AlterConfigsResource, *, validate_only: bool) -> None:
    check_once(config.name for config in asked.configs)

    def changes_of(
        present: Mapping[str, str], in_force: Mapping[str, str], table: Mapping[str, Config]
    ) -> Mapping[str, str | None]:
        return {
            config.name: _new_value(config, in_force, table.get(config.name))
            for config in asked.configs
            # To delete what is not set changes nothing, whatever its name, as in Kafka.
            if config.config_operation != DELETE or config.name in present
        }

    await alter(broker, asked.resource_type, asked.resource_name, changes_of, validate_only=validate_only)


def _new_value(asked: AlterableConfig, in_force: Mapping[str, str], known: Config | None) -> str | None:
    if asked.config_operation == DELETE:
        return None
    if asked.value is None:
        raise no_value(asked.name)
    if asked.config_operation == SET:
        return asked.value
    if asked.config_operation not in (APPEND, SUBTRACT):
        raise RequestError(ErrorCode.INVALID_REQUEST, f"unknown operation {asked.config_operation}")
    if known is None or known.type is not ConfigType.LIST:
        raise RequestError(ErrorCode.INVALID_CONFIG, f"config {asked.name!r} is not a list; use SET or DELETE")
    present = list(as_list(in_force, asked.name))
    named = as_list({asked.name: asked.value}, asked.name)
    if asked.config_operation == APPEND:
        return ",".join(present + [item for item in named if item not in present])
    return ",".join(item for item in present if item not in named)
