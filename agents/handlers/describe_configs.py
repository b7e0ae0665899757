"""DescribeConfigs 0-4: every topic config with its default, source, synonyms, type and description; the agent's
settings.

A BROKER resource and a BROKER_LOGGER are answered by the agent that they name; the empty name has the cluster-wide
configs that are set. Groups and client metrics subscriptions have no configs.
"""

from __future__ import annotations

import asyncio

from agents.broker import Broker
from agents.handlers.config_entries import (
    DEFAULT,
    ConfigEntry,
    broker_entries,
    cluster_entries,
    logger_entries,
    topic_entries,
)
from agents.security.refusals import check_right
from agents.topics.config_changes import BROKER, TOPIC, resource_of
from agents.topics.other_resources import BROKER_LOGGER, check_other
from agents.topics.present import not_there
from agents.topics.rules import RequestError, code_of
from runtime.errors import SiltstoneError
from security.acls.values import Operation, ResourceType
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

RESOURCES_AT_ONCE = 50
"""Resources described before the event loop gets a turn."""


async def handle(broker: Broker, header: RequestHeader, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    # A resource that is named twice is answered once.
    resources = {(each.resource_type, each.resource_name): each for each in request.resources}.values()
    seen = True
    rights = broker.rights()
    if any(
        each.resource_type == TOPIC
        and broker.topic_cache.topic(each.resource_name) is None
        and rights.sees(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, each.resource_name)
        for each in resources
    ):
        seen = await broker.present_topics.see()
    response = DescribeConfigsResponse()
    for number, asked in enumerate(resources, start=1):
        response.results.append(_describe(broker, header.api_version, asked, request, seen=seen))
        if number % RESOURCES_AT_ONCE == 0:
            await asyncio.sleep(0)
    return response


def _describe(
    broker: Broker,
    version: int,
    asked: DescribeConfigsResource,
    request: DescribeConfigsRequest,
    *,
    seen: bool,
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=asked.resource_type, resource_name=asked.resource_name, error_message=None
    )
    try:
        check_right(broker.rights(), Operation.DESCRIBE_CONFIGS, *resource_of(asked.resource_type, asked.resource_name))
        entries = _entries(broker, asked, seen=seen)
    except SiltstoneError as error:
        result.error_code, result.error_message = code_of(error), str(error)
        return result
    wanted = None if asked.configuration_keys is None else set(asked.configuration_keys)
    result.configs = [_row(entry, version, request) for entry in entries if wanted is None or entry.name in wanted]
    return result


def _entries(broker: Broker, asked: DescribeConfigsResource, *, seen: bool) -> list[ConfigEntry]:
    """`seen`: a topic that is not known does not exist."""
    if asked.resource_type == TOPIC:
        topic = broker.topic_cache.topic(asked.resource_name)
        if topic is None:
            raise not_there(f"topic {asked.resource_name!r}", seen=seen)
        return topic_entries(topic.configs, broker.topic_cache.broker_configs, broker.settings)
    if asked.resource_type == BROKER:
        if asked.resource_name == "":
            return cluster_entries(broker.topic_cache.broker_configs)
        if asked.resource_name != str(broker.membership.node_id):
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                f"this is broker {broker.membership.node_id}; send the request to broker {asked.resource_name!r}",
            )
        return broker_entries(broker.topic_cache.broker_configs, broker.settings)
    check_other(asked.resource_type, asked.resource_name, broker.membership.node_id)
    # Groups and client metrics have none (`agents/topics/other_resources.py`).
    return logger_entries(broker.settings) if asked.resource_type == BROKER_LOGGER else []


def _row(entry: ConfigEntry, version: int, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_default=version == 0 and entry.source == DEFAULT,
        synonyms=[
            DescribeConfigsSynonym(name=name, value=value, source=source) for name, value, source in entry.synonyms
        ]
        if request.include_synonyms
        else [],
        config_type=int(entry.type),
        documentation=entry.doc if request.include_documentation else None,
    )
