"""The checks of a group before its machine is asked; and topics by the names that commits use.

This agent may hear late that another agent created, deleted or re-created a topic, or added partitions to one. So it
never answers from memory that a partition does not exist or that nothing is committed for it: `Present` looks first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from agents.groups.coordinator import GroupCoordinator
from agents.groups.held import GroupRefusedError
from agents.security.rights import Rights
from agents.topics.present import PresentTopics
from agents.topics.topic_cache import TopicCache
from agents.yielding import chunks_with_yields
from metadata.contract.errors import MetadataUnavailableError
from metadata.groups.contract import GroupIdTooLongError, OffsetPlace, check_group_id
from security.acls.values import Operation, ResourceType
from wire.error_codes import ErrorCode

LOOKED_FOR_SINGLY = 20
"""Shorter lists of names are asked for one by one: one more statement would save little."""


def check_id(group_id: str, *, may_be_empty: bool = False) -> None:
    """Raises GroupRefusedError(INVALID_GROUP_ID). Members need a group name; offsets alone are kept for "" too."""
    if not group_id and not may_be_empty:
        raise GroupRefusedError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
    try:
        check_group_id(group_id)
    except GroupIdTooLongError as error:
        raise GroupRefusedError(ErrorCode.INVALID_GROUP_ID, str(error)) from error


def check_allowed(rights: Rights, operation: Operation, group_id: str) -> None:
    """Raises GroupRefusedError(GROUP_AUTHORIZATION_FAILED)."""
    if not rights.allows(operation, ResourceType.GROUP, group_id):
        raise GroupRefusedError(
            ErrorCode.GROUP_AUTHORIZATION_FAILED, f"no right to do this to group {group_id!r}; an ACL can give it"
        )


def is_id(group_id: str) -> bool:
    """The store can have a group of this name; "" is one."""
    try:
        check_group_id(group_id)
    except GroupIdTooLongError:
        return False
    return True


def place_of(topic_cache: TopicCache, topic_name: str, partition: int) -> OffsetPlace | None:
    """None if there is no such partition."""
    topic = topic_cache.topic(topic_name)
    if topic is None or not 0 <= partition < len(topic.partition_ids):
        return None
    return OffsetPlace(topic.topic_id, partition)


async def unknown_groups(coordinator: GroupCoordinator, group_ids: Sequence[str]) -> Collection[str]:
    """The groups among these that belong to this agent and do not exist, found in a few statements to the store. The
    caller asks for each of the others by itself. A short list of names is not looked up at all.

    Raises GroupRefusedError if the store does not answer.
    """
    if len(group_ids) <= LOOKED_FOR_SINGLY:
        return ()
    unknown: set[str] = set()
    try:
        async for some in chunks_with_yields(group_ids):
            # Groups of other owners stay out: asked for one by one they get NOT_COORDINATOR, not "no such group".
            ours = [each for each in some if is_id(each) and coordinator.owns(each)]
            unknown.update(ours)
            unknown.difference_update(await coordinator.metadata.known_groups(ours))
    except MetadataUnavailableError as error:
        raise GroupRefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
    return unknown


class Present:
    """One request's look at the topics in the store when something is missing: at most one."""

    def __init__(self, present_topics: PresentTopics) -> None:
        self._present_topics = present_topics
        self.seen: bool | None = None
        """None: not looked yet."""

    async def see(self) -> bool:
        """Returns True if the topic cache now holds all that was committed before this request. Topic ids do not come
        back: a partition that is missing by the same topic id after the look was missing before it."""
        if self.seen is None:
            self.seen = await self._present_topics.see()
        return self.seen
