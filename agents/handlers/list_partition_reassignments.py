"""ListPartitionReassignments 0 (KIP-455): there are no replicas, so none is ever being moved."""

from __future__ import annotations

from agents.broker import Broker
from wire.api import RequestHeader
from wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


def handle(
    broker: Broker, header: RequestHeader, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_message=None)
