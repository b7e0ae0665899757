"""The answer to a client without the right: Kafka's error for each type of resource."""

from __future__ import annotations

from typing import Final

from agents.security.rights import Rights
from agents.topics.rules import RequestError
from security.acls.values import CLUSTER_NAME, Operation, ResourceType
from wire.error_codes import ErrorCode

NOT_ALLOWED: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_WORDS: Final = {
    ResourceType.TOPIC: "topic",
    ResourceType.GROUP: "group",
    ResourceType.TRANSACTIONAL_ID: "transactional id",
}


def not_allowed(resource_type: ResourceType, name: str) -> RequestError:
    """The text tells nothing that the client did not say itself."""
    what = "the cluster" if resource_type is ResourceType.CLUSTER else f"{_WORDS[resource_type]} {name!r}"
    return RequestError(NOT_ALLOWED[resource_type], f"no right to do this to {what}; an ACL can give it")


def check_right(rights: Rights, operation: Operation, resource_type: ResourceType, name: str) -> None:
    """Raises RequestError."""
    if not rights.allows(operation, resource_type, name):
        raise not_allowed(resource_type, name)


def cluster_refusal(rights: Rights, operation: Operation) -> RequestError | None:
    """Why the whole request is refused; None if it is not."""
    if rights.allows_cluster(operation):
        return None
    return not_allowed(ResourceType.CLUSTER, CLUSTER_NAME)


def check_cluster_right(rights: Rights, operation: Operation) -> None:
    """Raises RequestError."""
    if (refused := cluster_refusal(rights, operation)) is not None:
        raise refused
