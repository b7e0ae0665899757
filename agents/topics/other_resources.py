"""Resources other than topics and brokers that Kafka keeps configs of: the loggers of a broker, groups, and client
metrics subscriptions. Pure.

An agent has one logger, `root`, whose level is its setting `log.level`. Kafka's configs of groups belong to the group
protocols of KIP-848 and later, and those of client metrics to KIP-714; agents serve neither, so both kinds are empty.
A change that changes nothing succeeds; the rest is refused in words.
"""

from __future__ import annotations

from agents.topics.rules import RequestError
from wire.error_codes import ErrorCode

BROKER_LOGGER, CLIENT_METRICS, GROUP = 8, 16, 32
"""DescribeConfigsRequest's types of resources, beside topics (2) and brokers (4)."""
ROOT = "root"
_NAMED = {
    BROKER_LOGGER: "Broker id must not be empty",
    CLIENT_METRICS: "Client metrics subscription name must not be empty",
    GROUP: "Group name must not be empty",
}
LEVELS = {"debug": "DEBUG", "info": "INFO", "warning": "WARN", "error": "ERROR"}
"""Levels of `log.level` in Kafka's words."""


def check_other(resource_type: int, resource_name: str, node_id: int) -> None:
    """Raises RequestError for a resource that is none of these, that has no name, or that is another broker's."""
    if resource_type not in _NAMED:
        raise RequestError(ErrorCode.INVALID_REQUEST, f"resource type {resource_type} has no configs")
    if not resource_name:
        raise RequestError(ErrorCode.INVALID_REQUEST, _NAMED[resource_type])
    if resource_type == BROKER_LOGGER and resource_name != str(node_id):
        raise RequestError(
            ErrorCode.INVALID_REQUEST, f"this is broker {node_id}; send the request to broker {resource_name!r}"
        )


def check_change(resource_type: int, name: str, value: str | None, log_level: str) -> None:
    """Refuse a change of one config, unless it changes nothing; `value` None deletes. Raises RequestError."""
    if resource_type == BROKER_LOGGER:
        if name != ROOT:
            raise RequestError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist: agents have one, {ROOT!r}")
        if value != LEVELS[log_level]:
            raise RequestError(
                ErrorCode.INVALID_REQUEST, "the level of an agent's log is its setting log.level, read at its start"
            )
    elif value is not None:
        what = "groups" if resource_type == GROUP else "client metrics subscriptions"
        raise RequestError(ErrorCode.INVALID_CONFIG, f"unknown config {name!r}: agents have no configs of {what}")
