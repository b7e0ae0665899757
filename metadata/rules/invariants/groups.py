"""The invariants of consumer groups in the metadata store. Predicates, as in `metadata/rules/invariants/all_levels.py`.

- GRP-1  a commit of an older owner or generation is refused: every epoch comes from the sequence, and one group has it;
- GRP-2  a committed offset belongs to a group and a partition that exist;
- GRP-3  a group has an `empty_since_ms` if and only if it has no members; member ids and instance ids are unique in the
         group, the leader is a member, and every member knows the protocol.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from metadata.contract.operators import GroupsView
from metadata.groups.contract import GroupRecord, GroupSummary
from metadata.rules.invariants.all_levels import Violation


def check_grp_1(view: GroupsView) -> list[Violation]:
    """Epochs are distinct, and no epoch is above the last one that was given."""
    violations: list[Violation] = []
    epochs = Counter(summary.epoch for summary, _ in view.groups)
    for summary, _ in view.groups:
        if not 0 < summary.epoch <= view.last_epoch:
            message = f"epoch {summary.epoch} was never given; the last epoch is {view.last_epoch}"
            violations.append(_violation("GRP-1", summary.group_id, message))
        if epochs[summary.epoch] > 1:
            violations.append(_violation("GRP-1", summary.group_id, f"another group has epoch {summary.epoch} too"))
    return violations


def check_grp_2(view: GroupsView) -> list[Violation]:
    """No committed offset is left for a group, topic or partition that is gone."""
    known = {summary.group_id for summary, _ in view.groups}
    return [
        _violation(
            "GRP-2",
            stray.group_id,
            f"an offset of partition {stray.place.partition} of topic {stray.place.topic_id}, but there is no such"
            f" {'partition' if stray.group_id in known else 'group'}",
        )
        for stray in view.stray_offsets
    ]


def check_grp_3(view: GroupsView) -> list[Violation]:
    return [
        _violation("GRP-3", summary.group_id, message)
        for summary, record in view.groups
        for message in _contradictions(summary, record)
    ]


def _contradictions(summary: GroupSummary, record: GroupRecord) -> Iterator[str]:
    members = record.members
    # The count is a column of its own, for lists: it must agree with the packed members.
    if summary.members != len(members):
        yield f"counts {summary.members} members but has {len(members)}"
    if (summary.empty_since_ms is None) != bool(members):
        yield f"has {len(members)} members, but its empty_since_ms is {summary.empty_since_ms}"
    for id_ in _repeated(member.member_id for member in members):
        yield f"two members are called {id_!r}"
    for id_ in _repeated(member.instance_id for member in members if member.instance_id is not None):
        yield f"two members have the instance id {id_!r}"
    if not members:
        return
    if record.leader not in {member.member_id for member in members}:
        yield f"its leader {record.leader!r} is no member"
    for member in members:
        if record.protocol not in {name for name, _ in member.protocols}:
            yield f"member {member.member_id!r} does not know the protocol {record.protocol!r}"


def _repeated(ids: Iterable[str]) -> list[str]:
    return [id_ for id_, count in Counter(ids).items() if count > 1]


def _violation(id_: str, group_id: str, message: str) -> Violation:
    return Violation(id=id_, message=f"group {group_id!r}: {message}")
