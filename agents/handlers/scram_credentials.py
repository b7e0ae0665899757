"""DescribeUserScramCredentials and AlterUserScramCredentials 0 (KIP-554), keys 50 and 51.

A change is answered as one of ACLs is (`acls.py`): when every agent that lives has closed the user's connections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agents.broker import Broker
from agents.request_context import current_request
from agents.security import credentials
from agents.security.changes import tell_changes
from agents.security.refusals import check_cluster_right
from agents.topics.rules import code_of
from agents.yielding import LoopYielder
from metadata.security.contract import UserChange
from runtime.errors import SiltstoneError
from runtime.settings.listeners import listeners_of
from security.acls.values import Operation
from wire.api import RequestHeader
from wire.messages.scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)


async def describe(
    broker: Broker, header: RequestHeader, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    try:
        check_cluster_right(broker.rights(), Operation.DESCRIBE)
        await broker.follower.catch_up()
    except SiltstoneError as error:
        return DescribeUserScramCredentialsResponse(error_code=code_of(error), error_message=str(error))
    return await credentials.describe(broker.security.users, request)


async def alter(
    broker: Broker, header: RequestHeader, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    async def carry_out(changes: Sequence[UserChange]) -> None:
        change_id = await broker.metadata.security.alter_users(changes)
        tell_changes(changes, _told)
        await broker.taken_in_everywhere(change_id)

    asking = current_request()
    try:
        check_cluster_right(broker.rights(), Operation.ALTER)
        await broker.follower.catch_up()
        return await credentials.alter(
            broker.security.users,
            request,
            is_private=asking is not None and credentials.is_private(asking.client, listeners_of(broker.settings)),
            carry_out=carry_out,
        )
    except SiltstoneError as error:
        names = dict.fromkeys([*(each.name for each in request.deletions), *(each.name for each in request.upsertions)])
        return AlterUserScramCredentialsResponse(
            results=[
                AlterUserScramCredentialsResult(user=name, error_code=code_of(error), error_message=str(error))
                async for name in LoopYielder().through(list(names))
            ]
        )


def _told(change: UserChange) -> tuple[str, Mapping[str, str]]:
    """For the audit log."""
    event = "user's credential removed" if change.credential is None else "user's credential set"
    return event, {"user": change.name, "mechanism": change.mechanism.sasl_name}
