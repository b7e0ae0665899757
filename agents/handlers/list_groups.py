"""ListGroups 0-5: the groups of this agent alone, because clients ask every agent and join the answers.

The list comes from the store, so it includes groups that no client has asked for since their owner changed. A group
that is not held here is Stable or Empty, as it was stored. Filters ignore upper and lower case, as in Kafka.
"""

from __future__ import annotations

from agents.broker import Broker
from agents.groups.events import GroupState
from metadata.contract.errors import MetadataUnavailableError
from metadata.groups.contract import GroupSummary
from security.acls.values import Operation, ResourceType
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

CLASSIC = "classic"
PAGE_GROUPS = 10_000


async def handle(broker: Broker, header: RequestHeader, request: ListGroupsRequest) -> ListGroupsResponse:
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    if types and CLASSIC not in types:
        return ListGroupsResponse()
    # With an outdated list of agents, groups would be missing from every answer, or stand in two.
    if not broker.groups.lease_runs:
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    rights = broker.rights()
    every = rights.sees_cluster(Operation.DESCRIBE)
    found: list[ListedGroup] = []
    after: str | None = None
    try:
        while True:
            page = await broker.metadata.groups.list_groups(after=after, limit=PAGE_GROUPS)
            for group in page:
                if broker.groups.owns(group.group_id) and (
                    every or rights.sees(Operation.DESCRIBE, ResourceType.GROUP, group.group_id)
                ):
                    listed = _listed(broker, group)
                    if not states or listed.group_state.lower() in states:
                        found.append(listed)
            if len(page) < PAGE_GROUPS:
                return ListGroupsResponse(groups=found)
            after = page[-1].group_id
    except MetadataUnavailableError:
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)


def _listed(broker: Broker, group: GroupSummary) -> ListedGroup:
    stored = GroupState.STABLE if group.members else GroupState.EMPTY
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=group.protocol_type,
        group_state=broker.groups.state_of(group.group_id) or stored,
        group_type=CLASSIC,
    )
