"""ListConfigResources 0-1: the topics, and the live agents as brokers and as loggers. No group and no client metrics
subscription has configs (`agents/topics/other_resources.py`)."""

from __future__ import annotations

from agents.broker import Broker
from agents.security.refusals import cluster_refusal
from agents.topics.config_changes import BROKER, TOPIC
from agents.topics.other_resources import BROKER_LOGGER, CLIENT_METRICS, GROUP
from agents.topics.rules import code_of
from agents.yielding import LoopYielder
from runtime.errors import SiltstoneError
from security.acls.values import Operation
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_KNOWN = {TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP}


async def handle(
    broker: Broker, header: RequestHeader, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """No type means all of them, from v1 on; v0 asks for client metrics. A type that Kafka does not list either gets
    UNSUPPORTED_VERSION."""
    if (refused := cluster_refusal(broker.rights(), Operation.DESCRIBE_CONFIGS)) is not None:
        return ListConfigResourcesResponse(error_code=refused.code)
    wanted = {CLIENT_METRICS} if header.api_version == 0 else set(request.resource_types) or _KNOWN
    if not wanted <= _KNOWN:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    resources: list[ConfigResource] = []
    if TOPIC in wanted:
        try:
            await broker.follower.catch_up()
        except SiltstoneError as error:
            return ListConfigResourcesResponse(error_code=code_of(error))
        resources = [
            ConfigResource(resource_name=topic.name, resource_type=TOPIC)
            async for topic in LoopYielder().through(list(broker.topic_cache.topics()))
        ]
    for kind in (BROKER, BROKER_LOGGER):
        if kind in wanted:
            resources += [
                ConfigResource(resource_name=str(agent.writer_id), resource_type=kind)
                for agent in broker.membership.agents
            ]
    return ListConfigResourcesResponse(config_resources=resources)
