"""The stored form of a group's members: it reads back unchanged, and no other bytes are taken for members."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.groups.contract import MemberRecord
from metadata.groups.members import BadMembersError, decode_members, encode_members
from tests.contract.groups import STRANGE, member

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=9)
MEMBERS = st.builds(
    MemberRecord,
    member_id=ANY_TEXT,
    instance_id=st.none() | ANY_TEXT,
    client_id=ANY_TEXT,
    client_host=ANY_TEXT,
    session_timeout_ms=st.integers(-(2**31), 2**31 - 1),
    rebalance_timeout_ms=st.integers(-(2**31), 2**31 - 1),
    protocols=st.lists(st.tuples(ANY_TEXT, st.binary(max_size=9)), max_size=3).map(tuple),
    assignment=st.binary(max_size=99),
)
SOME = [member("a", instance_id=STRANGE), member("b", protocols=(), assignment=b"")]


@given(st.lists(MEMBERS, max_size=4))
def test_members_come_out_as_they_went_in(members: list[MemberRecord]) -> None:
    assert decode_members(encode_members(members)) == tuple(members)


def test_no_members_are_what_the_table_has_by_default() -> None:
    assert encode_members([]) == bytes.fromhex("0100000000")


def test_the_stored_form_does_not_change() -> None:
    one = member(
        "m", instance_id="i", client_id="c", client_host="h", protocols=(("r", b"\x07"),), assignment=b"\x08\x09"
    )
    assert encode_members([one]).hex() == (
        "01 00000001 00000001 6d 00000001 69 00000001 63 00000001 68 00002710 0000ea60"
        " 00000001 00000001 72 00000001 07 00000002 0809"
    ).replace(" ", "")


def test_members_that_are_cut_are_refused() -> None:
    whole = encode_members(SOME)
    for end in range(len(whole)):
        with pytest.raises(BadMembersError):
            decode_members(whole[:end])


@pytest.mark.parametrize("data", [encode_members(SOME) + b"\0", b"\2" + encode_members(SOME)[1:]])
def test_bytes_of_another_kind_are_refused(data: bytes) -> None:
    with pytest.raises(BadMembersError):
        decode_members(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_members_or_refused(junk: bytes) -> None:
    try:
        members = decode_members(b"\x01" + junk)
    except BadMembersError:
        return
    assert encode_members(members) == b"\x01" + junk
