"""Which credentials one request may alter, by the rules of Kafka's `ScramControlManager`, and what is told of them.

A user may stand in a request once, whatever the mechanism. What is wrong with one user leaves the others alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agents.request_context import ClientConnection
from agents.yielding import LoopYielder
from metadata.security.contract import UserChange
from runtime.settings.addresses import is_loopback
from runtime.settings.listeners import ListenerSettings
from security.acls.checks import canonical_host
from security.scram import CredentialError, Mechanism, ScramCredential, check_name, credential_of_salted
from wire.error_codes import ErrorCode
from wire.messages.scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

Users = Mapping[str, Mapping[Mechanism, ScramCredential]]

TWICE: Final = "A user credential cannot be altered twice in the same request"
NOT_PRIVATE: Final = (
    "a salted password is as good as the password, and this connection is not encrypted: connect by TLS, or from"
    " loopback"
)


@dataclass(frozen=True, slots=True)
class _Refusal:
    code: ErrorCode
    said: str


class Alterations:
    """Takes the parts of one request in order, then gives the changes to make and the answers."""

    def __init__(self, users: Users, *, is_private: bool) -> None:
        """`users`: at least those whose deletion is asked for. `is_private`: nobody can read along."""
        self._users, self._is_private = users, is_private
        self._changes: dict[str, UserChange] = {}
        self._refused: dict[str, _Refusal] = {}

    def delete(self, asked: ScramCredentialDeletion) -> None:
        self._take(asked.name, self._deletion(asked))

    def upsert(self, asked: ScramCredentialUpsertion) -> None:
        self._take(asked.name, self._upsertion(asked))

    @property
    def changes(self) -> Sequence[UserChange]:
        return list(self._changes.values())

    def answers(self) -> Iterator[AlterUserScramCredentialsResult]:
        for name in self._changes:
            yield AlterUserScramCredentialsResult(user=name, error_code=0, error_message=None)
        for name, refusal in self._refused.items():
            yield AlterUserScramCredentialsResult(user=name, error_code=refusal.code, error_message=refusal.said)

    def _take(self, name: str, judged: UserChange | _Refusal) -> None:
        if name in self._refused:
            return
        if self._changes.pop(name, None) is not None:
            self._refused[name] = _Refusal(ErrorCode.DUPLICATE_RESOURCE, TWICE)
        elif isinstance(judged, _Refusal):
            self._refused[name] = judged
        else:
            self._changes[name] = judged

    def _deletion(self, asked: ScramCredentialDeletion) -> UserChange | _Refusal:
        mechanism = _mechanism(asked.name, asked.mechanism)
        if isinstance(mechanism, _Refusal):
            return mechanism
        if mechanism not in self._users.get(asked.name, {}):
            said = "Attempt to delete a user credential that does not exist"
            return _Refusal(ErrorCode.RESOURCE_NOT_FOUND, said)
        return UserChange(name=asked.name, mechanism=mechanism, credential=None)

    def _upsertion(self, asked: ScramCredentialUpsertion) -> UserChange | _Refusal:
        mechanism = _mechanism(asked.name, asked.mechanism)
        if isinstance(mechanism, _Refusal):
            return mechanism
        if not self._is_private:
            return _Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, NOT_PRIVATE)
        try:
            credential = credential_of_salted(
                mechanism, bytes(asked.salted_password), salt=bytes(asked.salt), iterations=asked.iterations
            )
        except CredentialError as error:
            return _Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, str(error))
        return UserChange(name=asked.name, mechanism=mechanism, credential=credential)


def _mechanism(name: str, number: int) -> Mechanism | _Refusal:
    if not name:
        return _Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    try:
        check_name(name)
    except CredentialError as error:
        return _Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, str(error))
    try:
        return Mechanism(number)
    except ValueError:
        return _Refusal(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")


def described(
    name: str, credentials: Mapping[Mechanism, ScramCredential], *, times: int
) -> DescribeUserScramCredentialsResult:
    """The answer about a user who was named so many times: never more than mechanisms and iterations."""
    if times > 1:
        code, said = (
            ErrorCode.DUPLICATE_RESOURCE,
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}",
        )
    elif not credentials:
        code, said = (
            ErrorCode.RESOURCE_NOT_FOUND,
            f"Attempt to describe a user credential that does not exist: {name}",
        )
    else:
        infos = [
            CredentialInfo(mechanism=mechanism, iterations=credentials[mechanism].iterations)
            for mechanism in sorted(credentials)
        ]
        return DescribeUserScramCredentialsResult(user=name, error_code=0, error_message=None, credential_infos=infos)
    return DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=said)


async def describe(users: Users, asked: DescribeUserScramCredentialsRequest) -> DescribeUserScramCredentialsResponse:
    """Describes the users named, or all of them."""
    named = Counter(each.name for each in asked.users or [])
    if not named:
        named = Counter(users.keys())
    results = [
        described(name, users.get(name, {}), times=times)
        async for name, times in LoopYielder().through(list(named.items()))
    ]
    return DescribeUserScramCredentialsResponse(error_message=None, results=results)


async def alter(
    users: Users,
    asked: AlterUserScramCredentialsRequest,
    *,
    is_private: bool,
    carry_out: Callable[[Sequence[UserChange]], Awaitable[None]],
) -> AlterUserScramCredentialsResponse:
    """`carry_out` makes all changes or none, and returns once they are known; what it raises goes on."""
    alterations, turns = Alterations(users, is_private=is_private), LoopYielder()
    async for deletion in turns.through(asked.deletions):
        alterations.delete(deletion)
    async for upsertion in turns.through(asked.upsertions):
        alterations.upsert(upsertion)
    if changes := alterations.changes:
        await carry_out(changes)
    return AlterUserScramCredentialsResponse(results=[each async for each in turns.through(alterations.answers())])


def is_private(client: ClientConnection, listeners: Sequence[ListenerSettings]) -> bool:
    """Nobody can read along: the client's listener encrypts, or the client is on this machine."""
    if any(each.encrypts for each in listeners if each.name == client.listener):
        return True
    return is_loopback(canonical_host(client.host))
