"""DescribeCluster 0-1 (KIP-700): the same agents and cluster id as in Metadata. There are none of endpoint type 2
(controllers)."""

from __future__ import annotations

from agents.broker import Broker
from agents.handlers.metadata_api import NOT_ASKED
from agents.listeners.endpoints import reachable
from agents.request_context import client_listener
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.describe_cluster import DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse

BROKERS = 1


def handle(broker: Broker, header: RequestHeader, request: DescribeClusterRequest) -> DescribeClusterResponse:
    if request.endpoint_type != BROKERS:
        error = (
            ErrorCode.MISMATCHED_ENDPOINT_TYPE if request.endpoint_type == 2 else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        )
        return DescribeClusterResponse(
            error_code=error,
            error_message=f"endpoint type {request.endpoint_type} is not supported; ask for brokers (1)",
            endpoint_type=request.endpoint_type,
        )
    agents = reachable(broker.membership.agents, client_listener())
    return DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=agents[0][0].writer_id if agents else -1,
        brokers=[
            DescribeClusterBroker(
                broker_id=agent.writer_id,
                host=endpoint.host,
                port=endpoint.port,
                rack=agent.address.zone or None,
            )
            for agent, endpoint in agents
        ],
        cluster_authorized_operations=(
            broker.rights().cluster_mask() if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )
