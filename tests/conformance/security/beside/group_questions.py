"""Questions about groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tests.conformance.security.beside.sides import DOOMED_GROUPS, Side
from wire.messages.delete_groups import DeleteGroupsRequest
from wire.messages.describe_groups import DescribeGroupsRequest
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.messages.heartbeat import HeartbeatRequest
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from wire.messages.list_groups import ListGroupsRequest
from wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from wire.schema import Message

Ask = Callable[[int, Side], Iterator[tuple[str, Message]]]
NAMED = ("g1", "gone")


def _partitions(version: int) -> list[int]:
    return [0] if version % 2 else [0, 7]


def _find_coordinator(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    kinds = ((0, ("g1", "g2", "gone")), (1, ("tx1", "tx2")))
    for kind, keys in kinds[: 2 if version else 1]:
        if version >= 4:
            yield f"type {kind}", FindCoordinatorRequest(key_type=kind, coordinator_keys=list(keys))
        else:
            for key in keys:
                yield f"type {kind} {key}", FindCoordinatorRequest(key_type=kind, key=key)


def _join_group(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    # The timeout is refused, so that the group stays as it is.
    for name in (*NAMED, ""):
        yield (
            repr(name),
            JoinGroupRequest(
                group_id=name,
                session_timeout_ms=1,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=b"any")],
            ),
        )


def _sync_group(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    parts = [SyncGroupRequestAssignment(member_id="stranger", assignment=b"any")]
    for name in NAMED:
        yield (
            name,
            SyncGroupRequest(
                group_id=name,
                generation_id=1,
                member_id="stranger",
                protocol_type="consumer",
                protocol_name="range",
                assignments=list(parts),
            ),
        )


def _heartbeat(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    for name in NAMED:
        yield name, HeartbeatRequest(group_id=name, generation_id=1, member_id="stranger")


def _leave_group(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    for name in NAMED:
        if version < 3:
            yield name, LeaveGroupRequest(group_id=name, member_id="stranger")
        else:
            yield name, LeaveGroupRequest(group_id=name, members=[MemberIdentity(member_id="stranger")])


def _describe_groups(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    yield (
        "all",
        DescribeGroupsRequest(groups=["g1", "g2", "gone", ""], include_authorized_operations=version >= 3),
    )


def _list_groups(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    yield "all", ListGroupsRequest()


def _offset_commit(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    parts = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=0, committed_metadata="")
        for index in _partitions(version)
    ]
    for name in ("g1", "g2"):
        topics = [
            OffsetCommitRequestTopic(name=topic, partitions=list(parts)) for topic in ("t1", "t2", "team-a", "absent")
        ]
        yield name, OffsetCommitRequest(group_id=name, topics=topics)


def _offset_fetch(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    wanted = ("t1", "t2", "team-a", "absent")
    if version >= 8:
        named = [OffsetFetchRequestTopics(name=topic, partition_indexes=_partitions(version)) for topic in wanted]
        for label, topics in (("named", named), ("all", None)):
            groups = [OffsetFetchRequestGroup(group_id=group, topics=topics) for group in ("g1", "g2", "gone")]
            yield label, OffsetFetchRequest(groups=groups)
        return
    for group in ("g1", "g2", "gone"):
        topics = [OffsetFetchRequestTopic(name=topic, partition_indexes=_partitions(version)) for topic in wanted]
        yield f"{group} named", OffsetFetchRequest(group_id=group, topics=topics)
        if version >= 2:
            yield f"{group} all", OffsetFetchRequest(group_id=group, topics=None)


def _offset_delete(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    parts = [OffsetDeleteRequestPartition(partition_index=index) for index in _partitions(version)]
    for group in ("g1", "gone"):
        topics = [OffsetDeleteRequestTopic(name=topic, partitions=list(parts)) for topic in ("t1", "t2", "absent")]
        yield group, OffsetDeleteRequest(group_id=group, topics=topics)


def _delete_groups(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    yield "one and none", DeleteGroupsRequest(groups_names=[*DOOMED_GROUPS, "gone"])


GROUP_QUESTIONS: Mapping[int, tuple[Ask, ...]] = {
    8: (_offset_commit,),
    9: (_offset_fetch,),
    10: (_find_coordinator,),
    11: (_join_group,),
    12: (_heartbeat,),
    13: (_leave_group,),
    14: (_sync_group,),
    15: (_describe_groups,),
    16: (_list_groups,),
    42: (_delete_groups,),
    47: (_offset_delete,),
}
"""By API key."""
