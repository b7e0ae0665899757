"""Alters configs of topics and of the whole cluster, for AlterConfigs and IncrementalAlterConfigs. All or nothing per
resource.

The metadata store decides and checks a change against the values that are set there, under a lock
(`metadata/configs/changes.py`), so of simultaneous changes through several agents each builds on the one before. This
agent checks which topics a cluster-wide config would contradict. A topic and the cluster that are altered at the same
time may therefore come to contradict each other; the next client that alters one of these configs gets the error.

Cluster-wide broker configs are those of the broker with the empty name. An agent's own configs are its settings, read
at its start: a request to alter them is refused, not ignored, as are changes of loggers, groups and client metrics
(`agents/topics/other_resources.py`). Codes are Kafka's: an invalid broker config is
INVALID_REQUEST (KAFKA-13609), an invalid topic config INVALID_CONFIG.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from agents.broker import Broker
from agents.security.refusals import check_right
from agents.topics.other_resources import GROUP, check_change, check_other
from agents.topics.rules import RequestError, check_configs, code_of
from agents.yielding import LoopYielder
from metadata.configs.broker import BROKER_CONFIGS, check_topics, topic_defaults, validate_broker_configs
from metadata.configs.changes import Changes, changed
from metadata.configs.topic import TOPIC_CONFIGS, Config, InvalidConfigError, resolve
from runtime.errors import SiltstoneError
from runtime.logging import get_logger
from security.acls.values import CLUSTER_NAME, Operation, ResourceType
from wire.error_codes import ErrorCode

TOPIC, BROKER = 2, 4

ChangesOf = Callable[[Mapping[str, str], Mapping[str, str], Mapping[str, Config]], Changes]
"""(values set, values in force, the table of known configs) -> the changes; None = back to the default."""

_log = get_logger(__name__)


def check_once(names: Iterable[str]) -> None:
    """Raises RequestError(INVALID_REQUEST) for a config that is named twice."""
    for name, count in Counter(names).items():
        if count > 1:
            raise RequestError(ErrorCode.INVALID_REQUEST, f"config {name!r} is named more than once")


def resource_of(resource_type: int, resource_name: str) -> tuple[ResourceType, str]:
    """The resource whose ACLs say who may see and alter these configs. Brokers, their loggers and client metrics are
    the cluster's."""
    if resource_type == TOPIC:
        return ResourceType.TOPIC, resource_name
    if resource_type == GROUP:
        return ResourceType.GROUP, resource_name
    return ResourceType.CLUSTER, CLUSTER_NAME


def no_value(name: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, f"config {name!r} needs a value")


class Resource(Protocol):
    """A topic or a broker, as both APIs name it."""

    resource_type: int
    resource_name: str


R = TypeVar("R", bound=Resource)
Answer = TypeVar("Answer")


async def altered(
    resources: Sequence[R], alter_one: Callable[[R], Awaitable[None]], answer: Callable[..., Answer]
) -> list[Answer]:
    """The `answer` of each resource after `alter_one`, with Kafka's error code and message."""
    named = Counter((each.resource_type, each.resource_name) for each in resources)
    answers: list[Answer] = []
    async for asked in LoopYielder().through(resources):
        code, said = 0, None
        try:
            # Two alterations of one resource in one request could undo each other.
            if named[asked.resource_type, asked.resource_name] > 1:
                raise RequestError(ErrorCode.INVALID_REQUEST, f"{asked.resource_name!r} is named more than once")
            await alter_one(asked)
        except SiltstoneError as error:
            code, said = code_of(error), str(error)
        answers.append(
            answer(
                error_code=code,
                error_message=said,
                resource_type=asked.resource_type,
                resource_name=asked.resource_name,
            )
        )
    return answers


async def alter(
    broker: Broker, resource_type: int, resource_name: str, changes_of: ChangesOf, *, validate_only: bool
) -> None:
    """Raises RequestError and the errors of the metadata store."""
    check_right(broker.rights(), Operation.ALTER_CONFIGS, *resource_of(resource_type, resource_name))
    if resource_type == TOPIC:
        await broker.follower.catch_up()
        await _alter_topic(broker, resource_name, changes_of, validate_only=validate_only)
    elif resource_type == BROKER:
        if resource_name:
            _check_unchanged(resource_name, broker, changes_of)
        else:
            await broker.follower.catch_up()
            await _alter_cluster(broker, changes_of, validate_only=validate_only)
    else:
        check_other(resource_type, resource_name, broker.membership.node_id)
        for name, value in changes_of({}, {}, {}).items():
            check_change(resource_type, name, value, broker.settings.log_level)


def _check_unchanged(node_id: str, broker: Broker, changes_of: ChangesOf) -> None:
    """An agent's own configs are its settings, so only a request that changes none of them succeeds: Kafka's tools
    delete throttles that nobody set."""
    in_force = {name: config.default for name, config in BROKER_CONFIGS.items()} | dict(
        broker.topic_cache.broker_configs
    )
    if changes_of({}, in_force, BROKER_CONFIGS):
        raise RequestError(
            ErrorCode.INVALID_REQUEST,
            f"the configs of broker {node_id!r} are its settings, which cannot be altered; "
            "cluster-wide configs are altered under the empty broker name",
        )


async def _alter_topic(broker: Broker, name: str, changes_of: ChangesOf, *, validate_only: bool) -> None:
    topic = broker.topic_cache.topic(name)
    if topic is None:
        raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {name!r}")

    def decide(present: Mapping[str, str], of_cluster: Mapping[str, str]) -> Changes:
        defaults = topic_defaults(of_cluster)
        changes = changes_of(present, resolve({**defaults, **present}), TOPIC_CONFIGS)
        check_configs(changed(present, changes), defaults, present)
        return changes

    if validate_only:
        decide(topic.configs, broker.topic_cache.broker_configs)
        return
    await broker.metadata.agents.alter_configs(topic.topic_id, decide)
    await _see_own_writes(broker)


async def _alter_cluster(broker: Broker, changes_of: ChangesOf, *, validate_only: bool) -> None:
    topics = [(topic.name, topic.configs) for topic in broker.topic_cache.topics()]

    def decide(present: Mapping[str, str]) -> Changes:
        in_force = {name: config.default for name, config in BROKER_CONFIGS.items()} | dict(present)
        changes = changes_of(present, in_force, BROKER_CONFIGS)
        wanted = changed(present, changes)
        try:
            validate_broker_configs(changes, wanted, present)
            check_topics(present, wanted, topics)
        except InvalidConfigError as error:
            # Kafka's codes differ by kind, and a broker config may fail as the default of a topic config.
            code = ErrorCode.INVALID_REQUEST if error.name in BROKER_CONFIGS else ErrorCode.INVALID_CONFIG
            raise RequestError(code, str(error)) from error
        return changes

    if validate_only:
        decide(broker.topic_cache.broker_configs)
        return
    configs = await broker.metadata.agents.alter_broker_configs(decide)
    _log.info("cluster-wide broker configs altered", configs=dict(configs))
    await _see_own_writes(broker)


async def _see_own_writes(broker: Broker) -> None:
    """A client that produces through this agent meets the new configs as soon as it has its answer, and one of another
    agent soon."""
    await broker.hint_others()
    with suppress(SiltstoneError):  # altered all the same; the follower sees it when the store answers again
        await broker.follower.catch_up()
