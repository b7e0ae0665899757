"""Every invariant of groups holds on good ones, and names the fault of a bad one."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from metadata.contract.operators import GroupsView, StrayOffset
from metadata.groups.contract import GroupRecord, GroupSummary, OffsetPlace
from metadata.rules.invariants.groups import check_grp_1, check_grp_2, check_grp_3
from tests.contract.groups import member, record

LAST_EPOCH = 9
PLACE = OffsetPlace(uuid.UUID(int=5), 3)


def group(group_id: str, epoch: int, saved: GroupRecord | None = None, **more: Any) -> tuple[GroupSummary, GroupRecord]:
    saved = record(member("m")) if saved is None else saved
    values: dict[str, Any] = {
        "owner_id": 1,
        "protocol_type": saved.protocol_type,
        "generation": saved.generation,
        "members": len(saved.members),
        "empty_since_ms": None if saved.members else 1000,
        "offsets": 0,
        **more,
    }
    return GroupSummary(group_id=group_id, epoch=epoch, **values), saved


def view(*groups: tuple[GroupSummary, GroupRecord], stray: tuple[StrayOffset, ...] = ()) -> GroupsView:
    return GroupsView(groups=groups, last_epoch=LAST_EPOCH, stray_offsets=stray)


def said(found: GroupsView) -> list[str]:
    return [f"{each.id} {each.message}" for check in (check_grp_1, check_grp_2, check_grp_3) for each in check(found)]


def test_groups_as_they_should_be_break_nothing() -> None:
    two = record(member("a", instance_id="i"), member("b", instance_id="j"), member("c"))
    assert said(view(group("a", 1), group("b", LAST_EPOCH, two), group("c", 2, record()))) == []


@pytest.mark.parametrize("epoch", [0, -1, LAST_EPOCH + 1])
def test_an_epoch_that_was_never_given_is_named(epoch: int) -> None:
    assert said(view(group("a", epoch))) == [f"GRP-1 group 'a': epoch {epoch} was never given; the last epoch is 9"]


def test_an_epoch_that_two_groups_have_is_named() -> None:
    found = said(view(group("a", 4), group("b", 4), group("c", 5)))
    assert found == [f"GRP-1 group {id_!r}: another group has epoch 4 too" for id_ in "ab"]


def test_an_offset_without_its_group_or_its_partition_is_named() -> None:
    stray = (StrayOffset("a", PLACE), StrayOffset("gone", PLACE))
    partition, gone = said(view(group("a", 1), stray=stray))
    assert partition.startswith("GRP-2 group 'a': an offset of partition 3 of topic 00000000-")
    assert partition.endswith("there is no such partition")
    assert gone.startswith("GRP-2 group 'gone': ")
    assert gone.endswith("there is no such group")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (group("a", 1, members=2, empty_since_ms=None), "counts 2 members but has 1"),
        (group("a", 1, empty_since_ms=5), "has 1 members, but its empty_since_ms is 5"),
        (group("a", 1, record(), empty_since_ms=None), "has 0 members, but its empty_since_ms is None"),
        (group("a", 1, record(member("m"), member("m"))), "two members are called 'm'"),
        (
            group("a", 1, record(member("m", instance_id="i"), member("n", instance_id="i"))),
            "two members have the instance id 'i'",
        ),
        (
            group("a", 1, GroupRecord(protocol="range", leader="x", members=(member("m"),))),
            "its leader 'x' is no member",
        ),
        (
            group("a", 1, record(member("m"), member("n", protocols=(("sticky", b""),)))),
            "member 'n' does not know the protocol 'range'",
        ),
    ],
)
def test_a_group_that_contradicts_itself_is_named(bad: tuple[GroupSummary, GroupRecord], message: str) -> None:
    assert said(view(bad)) == [f"GRP-3 group 'a': {message}"]
