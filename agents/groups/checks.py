"""What may be asked of a group at all, before its machine is asked; and topics by the name that commits use.

`look_up` is not pure: a name that this agent has not heard of is looked for in the store, once for all of a request.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from uuid import UUID

from agents.catalog import Catalog
from agents.follower import Follower
from agents.groups.held import GroupRefusedError
from metadata.groups import GroupIdTooLongError, OffsetPlace, check_group_id
from siltstone.errors import SiltstoneError
from wire.error_codes import ErrorCode


def check_id(group_id: str, *, may_be_empty: bool = False) -> None:
    """Raises GroupRefusedError(INVALID_GROUP_ID). Members need a name; offsets alone are kept for "" too."""
    if not group_id and not may_be_empty:
        raise GroupRefusedError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
    try:
        check_group_id(group_id)
    except GroupIdTooLongError as error:
        raise GroupRefusedError(ErrorCode.INVALID_GROUP_ID, str(error)) from error


def place_of(catalog: Catalog, topic_name: str, partition: int) -> OffsetPlace | None:
    """None when there is no such partition."""
    topic = catalog.topic(topic_name)
    if topic is None or not 0 <= partition < len(topic.partition_ids):
        return None
    return OffsetPlace(topic.topic_id, partition)


async def look_up(catalog: Catalog, follower: Follower, names: Collection[str]) -> None:
    """Hear of topics that were made a moment ago, if one of these is not known."""
    if any(catalog.topic(name) is None for name in names):
        with suppress(SiltstoneError):  # without it we answer what we know
            await follower.catch_up()


async def look_up_ids(catalog: Catalog, follower: Follower, topic_ids: Collection[UUID]) -> None:
    if any(catalog.topic_by_id(topic_id) is None for topic_id in topic_ids):
        with suppress(SiltstoneError):
            await follower.catch_up()
