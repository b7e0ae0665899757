"""Altering configs of topics and of the whole cluster, as AlterConfigs and IncrementalAlterConfigs both do it. All or
nothing per resource.

Cluster-wide broker configs are those of the broker with the empty name. One agent's own are its settings, read when it
starts: altering them is refused, not ignored. Codes are Kafka's: what a broker config may not be is INVALID_REQUEST
(KAFKA-13609), what a topic config may not be INVALID_CONFIG.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from agents.broker import Broker
from agents.topics import RequestError, check_configs
from metadata.broker_configs import BROKER_CONFIGS, check_topics, topic_defaults, validate_broker_configs
from metadata.topic_configs import TOPIC_CONFIGS, Config, InvalidConfigError
from siltstone.logging import get_logger
from wire.error_codes import ErrorCode

TOPIC, BROKER = 2, 4

ChangesOf = Callable[[Mapping[str, str], Mapping[str, str], Mapping[str, Config]], Mapping[str, str | None]]
"""(what is set, what is in force, the table of known configs) -> what changes; None = back to the default."""

_log = get_logger(__name__)


def check_once(names: Iterable[str]) -> None:
    """Raises RequestError(INVALID_REQUEST) for a config that is named twice."""
    for name, count in Counter(names).items():
        if count > 1:
            raise RequestError(ErrorCode.INVALID_REQUEST, f"config {name!r} is named more than once")


def no_value(name: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, f"config {name!r} needs a value")


async def alter(
    broker: Broker, resource_type: int, resource_name: str, changes_of: ChangesOf, *, validate_only: bool
) -> None:
    """Raises RequestError, and what the metadata store raises."""
    if resource_type == TOPIC:
        # What changes depends on what is there: see the present first.
        await broker.follower.catch_up()
        await _alter_topic(broker, resource_name, changes_of, validate_only=validate_only)
    elif resource_type == BROKER:
        if resource_name:
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                f"configs of broker {resource_name!r} alone are the settings it starts with; "
                "what can be altered is altered for all brokers, with the empty name",
            )
        await broker.follower.catch_up()
        await _alter_cluster(broker, changes_of, validate_only=validate_only)
    else:
        raise RequestError(
            ErrorCode.INVALID_REQUEST,
            f"resource type {resource_type} has no configs here; topics (2) and brokers (4) have",
        )


async def _alter_topic(broker: Broker, name: str, changes_of: ChangesOf, *, validate_only: bool) -> None:
    topic = broker.catalog.topic(name)
    if topic is None:
        raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {name!r}")
    changes = changes_of(topic.configs, broker.catalog.configs(topic), TOPIC_CONFIGS)
    wanted = _merged(topic.configs, changes)
    check_configs(wanted, topic_defaults(broker.catalog.broker_configs), topic.configs)
    if validate_only or not changes:
        return
    await broker.metadata.alter_configs(topic.topic_id, changes)
    await broker.follower.catch_up()


async def _alter_cluster(broker: Broker, changes_of: ChangesOf, *, validate_only: bool) -> None:
    present = broker.catalog.broker_configs
    in_force = {name: config.default for name, config in BROKER_CONFIGS.items()} | dict(present)
    changes = changes_of(present, in_force, BROKER_CONFIGS)
    wanted = _merged(present, changes)
    try:
        validate_broker_configs(changes, wanted)
        check_topics(present, wanted, ((topic.name, topic.configs) for topic in broker.catalog.topics()))
    except InvalidConfigError as error:
        code = ErrorCode.INVALID_REQUEST if error.name in BROKER_CONFIGS else ErrorCode.INVALID_CONFIG
        raise RequestError(code, str(error)) from error
    if validate_only or not changes:
        return
    await broker.metadata.alter_broker_configs(changes)
    _log.info("cluster-wide broker configs altered", changes=dict(changes))
    await broker.follower.catch_up()


def _merged(present: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in {**present, **changes}.items() if value is not None}
