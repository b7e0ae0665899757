"""What may be asked of a group at all, before its machine is asked; and topics by the name that commits use.

This agent may hear late of a topic that another made, deleted, made anew or added partitions to. So that a partition
does not exist, or that nothing is committed for it, is never said from memory: `Present` looks first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress

from agents.groups.coordinator import GroupCoordinator
from agents.groups.held import GroupRefusedError
from agents.tail.follower import Follower
from agents.topics.topic_cache import TopicCache
from agents.topics.topic_ids import LOOK_MS_MAX
from agents.yielding import chunks_with_yields
from metadata.contract.groups import GroupIdTooLongError, OffsetPlace, check_group_id
from metadata.contract.service import MetadataUnavailableError
from runtime.errors import SiltstoneError
from wire.error_codes import ErrorCode

LOOKED_FOR_SINGLY = 20


def check_id(group_id: str, *, may_be_empty: bool = False) -> None:
    """Raises GroupRefusedError(INVALID_GROUP_ID). Members need a name; offsets alone are kept for "" too."""
    if not group_id and not may_be_empty:
        raise GroupRefusedError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
    try:
        check_group_id(group_id)
    except GroupIdTooLongError as error:
        raise GroupRefusedError(ErrorCode.INVALID_GROUP_ID, str(error)) from error


def is_id(group_id: str) -> bool:
    """Whether the store may have a group of this name, "" included."""
    try:
        check_group_id(group_id)
    except GroupIdTooLongError:
        return False
    return True


def place_of(topic_cache: TopicCache, topic_name: str, partition: int) -> OffsetPlace | None:
    """None when there is no such partition."""
    topic = topic_cache.topic(topic_name)
    if topic is None or not 0 <= partition < len(topic.partition_ids):
        return None
    return OffsetPlace(topic.topic_id, partition)


async def unknown_groups(coordinator: GroupCoordinator, group_ids: Sequence[str]) -> Collection[str]:
    """Those of these groups that are ours to answer for and that do not exist, by the store's word in few statements;
    each that is not among them is to be asked for by itself. Of a few names none is looked for.

    Raises GroupRefusedError when the store does not answer.
    """
    if len(group_ids) <= LOOKED_FOR_SINGLY:
        return ()
    unknown: set[str] = set()
    try:
        async for some in chunks_with_yields(group_ids):
            ours = [each for each in some if is_id(each) and coordinator.owns(each)]
            unknown.update(ours)
            unknown.difference_update(await coordinator.metadata.known_groups(ours))
    except MetadataUnavailableError as error:
        raise GroupRefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
    return unknown


async def look_up(topic_cache: TopicCache, follower: Follower, names: Collection[str]) -> None:
    """Hear of topics that were made a moment ago, if one of these is not known."""
    if any(topic_cache.topic(name) is None for name in names):
        with suppress(SiltstoneError):  # without it we answer what we know
            await follower.catch_up()


class Present:
    """One request's look at the topics as they are in the store, when something is missing: one at most."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self.seen: bool | None = None
        """None: not looked yet."""

    async def see(self) -> bool:
        """Whether the topic cache now holds all that was committed before this request. Ids do not come back: what is
        missing by the same topic id after the look was missing before it."""
        if self.seen is None:
            try:
                async with asyncio.timeout(LOOK_MS_MAX / 1000):
                    await self._follower.catch_up()
                self.seen = True
            except (SiltstoneError, TimeoutError):
                self.seen = False
        return self.seen
