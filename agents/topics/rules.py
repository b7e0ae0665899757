"""Rules about topics that several APIs share: names, counts, and reading back a change. Pure except for `admin`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from metadata.configs.topic import InvalidConfigError, validate_overrides
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.topics import InvalidPartitionsError, TooManyPartitionsError, TopicExistsError, UnknownTopicError
from runtime.errors import BadInputError, SiltstoneError
from wire.error_codes import ErrorCode

NAME_CHARACTERS_MAX = 249
"""Kafka's `Topic.MAX_NAME_LENGTH`."""
PARTITIONS_MAX = 100_000
"""Partitions of one topic. A request for more is a mistake, and would hold the store's locks for seconds."""

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
"""Kafka's `Topic.INTERNAL_TOPICS` without `__share_group_state`, which no tool reads."""

_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class RequestError(SiltstoneError):
    """A part of a request that is refused with a Kafka error of its own."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def check_name(name: str) -> None:
    """Kafka's `Topic.validate`. Raises RequestError(INVALID_TOPIC_EXCEPTION)."""
    if not name:
        reason = "is empty"
    elif name in (".", ".."):
        reason = 'may not be "." or ".."'
    elif len(name) > NAME_CHARACTERS_MAX:
        reason = f"is longer than {NAME_CHARACTERS_MAX} characters"
    elif not _NAME.fullmatch(name):
        reason = "may hold ASCII letters, digits, '.', '_' and '-' only"
    else:
        return
    raise RequestError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic name {name[:64]!r} {reason}")


def check_new_name(name: str) -> None:
    """The name of a topic to be created. Raises RequestError(INVALID_TOPIC_EXCEPTION).

    Tools would read a topic with the name of an internal one as Kafka's own state, and find none
    (docs/decisions/0030). A topic that has such a name from before stays usable.
    """
    check_name(name)
    if name in INTERNAL_TOPICS:
        raise RequestError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{name} is the name of an internal topic of Kafka; here committed offsets lie in Postgres, and admin APIs"
            " such as OffsetFetch and ListGroups read them",
        )


def check_partitions(count: int) -> None:
    if not 1 <= count <= PARTITIONS_MAX:
        raise RequestError(
            ErrorCode.INVALID_PARTITIONS, f"{count} partitions asked for; allowed are 1 to {PARTITIONS_MAX}"
        )


def assigned_replicas(assignments: Sequence[Sequence[int]]) -> int:
    """The number of replicas that a manual assignment gives to every partition.

    Raises RequestError(INVALID_REPLICA_ASSIGNMENT) for what Kafka refuses too: no replicas, one broker twice,
    negative ids, or partitions with different numbers of replicas.
    """
    for number, broker_ids in enumerate(assignments):
        if not broker_ids:
            reason = "has no replicas"
        elif len(set(broker_ids)) < len(broker_ids):
            reason = "names a broker twice"
        elif min(broker_ids) < 0:
            reason = "names a negative broker id"
        elif len(broker_ids) != len(assignments[0]):
            reason = f"has {len(broker_ids)} replicas, the first one {len(assignments[0])}"
        else:
            continue
        raise RequestError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"assignment {number} {reason}")
    return len(assignments[0])


def check_configs(
    configs: Mapping[str, str], defaults: Mapping[str, str], present: Mapping[str, str] | None = None
) -> None:
    """The topic's configs over the cluster-wide defaults, instead of `present`. Raises RequestError(INVALID_CONFIG)."""
    try:
        validate_overrides(configs, defaults, present)
    except InvalidConfigError as error:
        raise RequestError(ErrorCode.INVALID_CONFIG, str(error)) from error


def code_of(error: SiltstoneError) -> ErrorCode:
    """The Kafka error that tells a client about one of our errors."""
    match error:
        case RequestError():
            return error.code
        case TopicExistsError():
            return ErrorCode.TOPIC_ALREADY_EXISTS
        case UnknownTopicError():
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        case InvalidPartitionsError():
            return ErrorCode.INVALID_PARTITIONS
        case TooManyPartitionsError():
            # As Kafka's controller refuses an excessive number of partitions: clients show it with our message.
            return ErrorCode.POLICY_VIOLATION
        case InvalidConfigError():
            return ErrorCode.INVALID_CONFIG
        case MetadataUnavailableError():
            # Retriable everywhere, and true: the store did not answer in time.
            return ErrorCode.REQUEST_TIMED_OUT
        case BadInputError():
            return ErrorCode.INVALID_REQUEST
        case _:
            return ErrorCode.UNKNOWN_SERVER_ERROR
