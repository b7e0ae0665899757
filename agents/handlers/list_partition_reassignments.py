"""ListPartitionReassignments 0 (KIP-455): there are no replicas, so none is ever being moved."""

from __future__ import annotations

from agents.broker import Broker
from agents.security.refusals import cluster_refusal
from security.acls.values import Operation
from wire.api import RequestHeader
from wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


def handle(
    broker: Broker, header: RequestHeader, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    if (refused := cluster_refusal(broker.rights(), Operation.DESCRIBE)) is not None:
        return ListPartitionReassignmentsResponse(error_code=refused.code, error_message=str(refused))
    return ListPartitionReassignmentsResponse(error_message=None)
