"""AlterConfigs 0-2: all configs of a resource at once; a config that is not named goes back to its default
(`agents/topics/config_changes.py`). Clients have replaced it by IncrementalAlterConfigs, because two clients that
alter at once undo each other's changes here: the later request replaces the earlier one as a whole."""

from __future__ import annotations

from collections.abc import Mapping

from agents.broker import Broker
from agents.topics.config_changes import alter, altered, check_once, no_value
from metadata.configs.topic import Config
from wire.api import RequestHeader
from wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(broker: Broker, header: RequestHeader, request: AlterConfigsRequest) -> AlterConfigsResponse:
    async def one(asked: AlterConfigsResource) -> None:
        await _replace(broker, asked, validate_only=request.validate_only)

    return AlterConfigsResponse(responses=await altered(request.resources, one, AlterConfigsResourceResponse))


async def _replace(broker: Broker, asked: AlterConfigsResource, *, validate_only: bool) -> None:
    check_once(config.name for config in asked.configs)
    wanted: dict[str, str | None] = {}
    for config in asked.configs:
        if config.value is None:
            raise no_value(config.name)
        wanted[config.name] = config.value

    def changes_of(
        present: Mapping[str, str], in_force: Mapping[str, str], table: Mapping[str, Config]
    ) -> Mapping[str, str | None]:
        # None = back to the default, for every set config that the request does not name.
        return dict.fromkeys(present, None) | wanted

    await alter(broker, asked.resource_type, asked.resource_name, changes_of, validate_only=validate_only)
