"""DescribeCluster, key 60 (KIP-700)."""

from __future__ import annotations

from wire.schema import Message, Struct, array, boolean, field, int8, int16, int32, message, string, struct


@message(api_key=60, kind="request", versions="0-1", flexible="0+")
class DescribeClusterRequest(Message):
    include_cluster_authorized_operations: bool = field(boolean, "0+")
    endpoint_type: int = field(int8, "1+", default=1)


@struct
class DescribeClusterBroker(Struct):
    broker_id: int = field(int32, "0+")
    host: str = field(string, "0+")
    port: int = field(int32, "0+")
    rack: str | None = field(string, "0+", nullable="0+", default=None)


@message(api_key=60, kind="response", versions="0-1", flexible="0+")
class DescribeClusterResponse(Message):
    throttle_time_ms: int = field(int32, "0+")
    error_code: int = field(int16, "0+")
    error_message: str | None = field(string, "0+", nullable="0+", default=None)
    endpoint_type: int = field(int8, "1+", default=1)
    cluster_id: str = field(string, "0+")
    controller_id: int = field(int32, "0+", default=-1)
    brokers: list[DescribeClusterBroker] = field(array(DescribeClusterBroker), "0+")
    cluster_authorized_operations: int = field(int32, "0+", default=-0x80000000)
