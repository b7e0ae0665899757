"""IncrementalAlterConfigs 0-1 (KIP-339): SET, DELETE, and APPEND, SUBTRACT on lists, of topics. All or nothing per
topic.

Broker configs are settings and not alterable over the protocol; asking is refused, not ignored.
"""

from __future__ import annotations

from collections import Counter

from agents.broker import Broker
from agents.topics import RequestError, check_configs, code_of
from metadata.service import Topic
from metadata.topic_configs import TOPIC_CONFIGS, ConfigType, as_list
from siltstone.errors import SiltstoneError
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

TOPIC = 2
SET, DELETE, APPEND, SUBTRACT = range(4)


async def handle(
    broker: Broker, header: RequestHeader, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    named = Counter((each.resource_type, each.resource_name) for each in request.resources)
    answers: list[AlterConfigsResourceResponse] = []
    for asked in request.resources:
        answer = AlterConfigsResourceResponse(
            resource_type=asked.resource_type, resource_name=asked.resource_name, error_message=None
        )
        try:
            if named[asked.resource_type, asked.resource_name] > 1:
                raise RequestError(ErrorCode.INVALID_REQUEST, f"{asked.resource_name!r} is named more than once")
            await _alter(broker, asked, validate_only=request.validate_only)
        except SiltstoneError as error:
            answer.error_code, answer.error_message = code_of(error), str(error)
        answers.append(answer)
    return IncrementalAlterConfigsResponse(responses=answers)


async def _alter(broker: Broker, asked: AlterConfigsResource, *, validate_only: bool) -> None:
    if asked.resource_type != TOPIC:
        raise RequestError(
            ErrorCode.INVALID_REQUEST,
            f"only topics (2) can be altered here, not resource type {asked.resource_type}; "
            "an agent's settings are read when it starts",
        )
    # APPEND and SUBTRACT build on what is there: see the present first.
    await broker.follower.catch_up()
    topic = broker.catalog.topic(asked.resource_name)
    if topic is None:
        raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {asked.resource_name!r}")
    changes = _changes(broker, topic, asked.configs)
    after = {**topic.configs, **changes}
    check_configs({name: value for name, value in after.items() if value is not None})
    if validate_only or not changes:
        return
    await broker.metadata.alter_configs(topic.topic_id, changes)
    await broker.follower.catch_up()


def _changes(broker: Broker, topic: Topic, configs: list[AlterableConfig]) -> dict[str, str | None]:
    changes: dict[str, str | None] = {}
    for config in configs:
        if config.name in changes:
            raise RequestError(ErrorCode.INVALID_REQUEST, f"config {config.name!r} is named more than once")
        changes[config.name] = _new_value(broker, topic, config)
    return changes


def _new_value(broker: Broker, topic: Topic, config: AlterableConfig) -> str | None:
    known = TOPIC_CONFIGS.get(config.name)
    if config.config_operation == DELETE:
        if known is None:
            raise RequestError(ErrorCode.INVALID_CONFIG, f"unknown topic config {config.name!r}")
        return None
    if config.value is None:
        raise RequestError(ErrorCode.INVALID_CONFIG, f"config {config.name!r} needs a value")
    if config.config_operation == SET:
        return config.value
    if config.config_operation not in (APPEND, SUBTRACT):
        raise RequestError(ErrorCode.INVALID_REQUEST, f"unknown operation {config.config_operation}")
    if known is None or known.type is not ConfigType.LIST:
        raise RequestError(ErrorCode.INVALID_CONFIG, f"{config.name!r} is not a list: only set or delete it")
    present = list(as_list(broker.catalog.configs(topic), config.name))
    named = as_list({config.name: config.value}, config.name)
    if config.config_operation == APPEND:
        return ",".join(present + [item for item in named if item not in present])
    return ",".join(item for item in present if item not in named)
