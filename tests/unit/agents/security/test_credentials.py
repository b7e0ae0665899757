from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from agents.request_context import ClientConnection
from agents.security.credentials import (
    NOT_PRIVATE,
    TWICE,
    Alterations,
    alter,
    describe,
    described,
    is_private,
)
from metadata.contract.errors import MetadataUnavailableError
from metadata.security.contract import UserChange
from runtime.settings.listeners import ListenerSettings
from security.scram import Mechanism, is_same, salted_password
from tests.unit.agents.security.session_client import SHA_256, SHA_512, Users, credential
from wire.error_codes import ErrorCode
from wire.messages.scram_credentials import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)

SALT = b"saltsaltsaltsalt"


def upsertion(name: str = "new", mechanism: int = SHA_256, **others: object) -> ScramCredentialUpsertion:
    known = Mechanism(mechanism) if mechanism in (1, 2) else SHA_256
    made = ScramCredentialUpsertion(
        name=name,
        mechanism=mechanism,
        iterations=4096,
        salt=SALT,
        salted_password=salted_password(known, "secret", SALT, 4096),
    )
    for field, value in others.items():
        setattr(made, field, value)
    return made


def deletion(name: str = "ann", mechanism: int = SHA_256) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name=name, mechanism=mechanism)


def judged(*asked: ScramCredentialUpsertion | ScramCredentialDeletion, is_private: bool = True) -> Alterations:
    alterations = Alterations(Users().users, is_private=is_private)
    for each in asked:
        if isinstance(each, ScramCredentialDeletion):
            alterations.delete(each)
        else:
            alterations.upsert(each)
    return alterations


def codes(alterations: Alterations) -> Mapping[str, int]:
    return {each.user: each.error_code for each in alterations.answers()}


def test_good_parts_become_changes() -> None:
    alterations = judged(deletion(), upsertion())
    assert codes(alterations) == {"ann": 0, "new": 0}
    gone, made = alterations.changes
    assert (gone.name, gone.mechanism, gone.credential) == ("ann", SHA_256, None)
    assert made.credential is not None and is_same(made.credential, credential())


def test_what_is_wrong_with_one_user_leaves_the_others_alone() -> None:
    for bad, code in (
        (deletion("nobody"), ErrorCode.RESOURCE_NOT_FOUND),
        (deletion("ann", SHA_512), ErrorCode.RESOURCE_NOT_FOUND),
        (deletion("ann", 0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (deletion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("x", 3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (upsertion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("x" * 1025), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("x\0"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("x", iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("x", iterations=16385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("x", salt=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("x", salted_password=b"short"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ):
        alterations = judged(bad, upsertion())
        assert codes(alterations) == {bad.name: code, "new": 0}, bad
        assert [each.name for each in alterations.changes] == ["new"]


def test_a_user_may_stand_in_a_request_once() -> None:
    for parts in (
        (deletion(), deletion()),
        (deletion(), upsertion("ann")),
        (upsertion("ann"), upsertion("ann", SHA_512)),
        (upsertion("ann"), upsertion("ann"), upsertion("ann")),
    ):
        alterations = judged(*parts)
        assert [(each.user, each.error_code, each.error_message) for each in alterations.answers()] == [
            ("ann", ErrorCode.DUPLICATE_RESOURCE, TWICE)
        ]
        assert alterations.changes == []


def test_a_salted_password_is_refused_where_others_can_read_along_and_a_deletion_is_not() -> None:
    alterations = judged(deletion(), upsertion(), is_private=False)
    assert codes(alterations) == {"ann": 0, "new": ErrorCode.UNACCEPTABLE_CREDENTIAL}
    assert NOT_PRIVATE in [each.error_message for each in alterations.answers()]


def test_only_mechanisms_and_iterations_are_told_of_a_user() -> None:
    both = {SHA_512: credential("a", SHA_512), SHA_256: credential()}
    told = described("ann", both, times=1)
    assert [(each.mechanism, each.iterations) for each in told.credential_infos] == [(1, 4096), (2, 4096)]
    assert (told.error_code, told.error_message) == (0, None)
    assert described("ann", both, times=2).error_code == ErrorCode.DUPLICATE_RESOURCE
    assert described("eve", {}, times=1).error_code == ErrorCode.RESOURCE_NOT_FOUND


async def test_all_users_are_described_unless_some_are_named() -> None:
    users = Users().users
    for asked in (None, []):
        answer = await describe(users, DescribeUserScramCredentialsRequest(users=asked))
        assert [(each.user, each.error_code) for each in answer.results] == [("ann", 0), ("bob", 0)]
    named = [UserName(name=each) for each in ("bob", "eve", "ann", "ann")]
    answer = await describe(users, DescribeUserScramCredentialsRequest(users=named))
    assert [(each.user, each.error_code) for each in answer.results] == [("bob", 0), ("eve", 91), ("ann", 92)]


async def test_good_changes_are_carried_out_together_and_bad_ones_not() -> None:
    made: list[Sequence[UserChange]] = []

    async def carry_out(changes: Sequence[UserChange]) -> None:
        made.append(changes)

    request = AlterUserScramCredentialsRequest(deletions=[deletion(), deletion("nobody")], upsertions=[upsertion()])
    answer = await alter(Users().users, request, is_private=True, carry_out=carry_out)
    assert {each.user: each.error_code for each in answer.results} == {"ann": 0, "new": 0, "nobody": 91}
    assert [[each.name for each in changes] for changes in made] == [["ann", "new"]]
    # nothing good, nothing done
    await alter({}, request, is_private=False, carry_out=carry_out)
    assert len(made) == 1


async def test_a_failure_of_the_store_is_no_success() -> None:
    async def carry_out(changes: Sequence[UserChange]) -> None:
        raise MetadataUnavailableError("away")

    request = AlterUserScramCredentialsRequest(deletions=[deletion()])
    with pytest.raises(MetadataUnavailableError):
        await alter(Users().users, request, is_private=True, carry_out=carry_out)


def test_a_connection_is_private_by_tls_or_on_this_machine() -> None:
    listeners = [ListenerSettings(name="default"), ListenerSettings(name="tls", protocol="SASL_SSL")]
    for peer, listener, private in (
        ("10.0.0.7:5", "tls", True),
        ("10.0.0.7:5", "default", False),
        ("127.0.0.1:5", "default", True),
        ("::1:5", "default", True),
        ("::ffff:127.0.0.1:5", "default", True),
        ("::ffff:10.0.0.7:5", "default", False),
        ("?", "default", False),
        ("10.0.0.7:5", "gone", False),
    ):
        assert is_private(ClientConnection(1, peer, listener), listeners) is private, peer
