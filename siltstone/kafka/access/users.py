"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from security.scram import Mechanism
from siltstone.kafka.access.changes import CHANGE_TIMEOUT_MS, remedy_of
from siltstone.kafka.client import KafkaClient, KafkaError
from wire.messages.scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

LISTING = "list users"
_LISTING_REMEDIES = remedy_of("Describe")
REMEDIES: Mapping[str, str] = {
    **remedy_of("Alter"),  # which implies Describe, by which the commands look first
    "RESOURCE_NOT_FOUND": "`siltstone users list` shows the users",
}


async def describe_users(client: KafkaClient, *, doing: str = LISTING) -> Mapping[str, Mapping[Mechanism, int]]:
    """By user, the iterations of each credential. `doing`: what for, in an error. Raises KafkaError."""
    remedies = _LISTING_REMEDIES if doing == LISTING else REMEDIES
    every = DescribeUserScramCredentialsRequest(users=None)
    answer = await client.call(every, DescribeUserScramCredentialsResponse)
    if answer.error_code:
        raise KafkaError(answer.error_code, doing, answer.error_message, remedies=remedies)
    found: dict[str, Mapping[Mechanism, int]] = {}
    for result in answer.results:
        if result.error_code:
            raise KafkaError(result.error_code, f"user {result.user!r}", result.error_message, remedies=REMEDIES)
        found[result.user] = {Mechanism(each.mechanism): each.iterations for each in result.credential_infos}
    return found


async def alter_users(
    client: KafkaClient,
    *,
    upsertions: Sequence[ScramCredentialUpsertion] = (),
    deletions: Sequence[tuple[str, Mechanism]] = (),
) -> None:
    """Raises KafkaError of the first user that was refused. Others may have been changed."""
    request = AlterUserScramCredentialsRequest(
        upsertions=list(upsertions),
        deletions=[ScramCredentialDeletion(name=name, mechanism=mechanism) for name, mechanism in deletions],
    )
    answer = await client.call(request, AlterUserScramCredentialsResponse, timeout_ms=CHANGE_TIMEOUT_MS)
    for result in answer.results:
        if result.error_code:
            raise KafkaError(result.error_code, f"user {result.user!r}", result.error_message, remedies=REMEDIES)
