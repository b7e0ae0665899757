"""The APIs that agents serve, and requests and responses as whole frames.

Callers pass a frame in without its length prefix and get it back with it. A request header holds the API key, version,
correlation id and client id (never compact), and tagged fields when the request's version is flexible. A response
header holds the correlation id, and tagged fields when the response's version is flexible. ApiVersions is the
exception: its response header never has tagged fields, because a client that does not know our versions must be able to
read it (KIP-511).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from runtime.errors import BadInputError
from wire.compiler.compile import Steps, decode, decode_in_steps, encode, encode_in_steps, encode_short
from wire.compiler.primitives import skip_tagged_fields
from wire.errors import EncodingError, MalformedMessageError, UnknownApiError
from wire.messages.acls import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from wire.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from wire.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from wire.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from wire.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from wire.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from wire.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from wire.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from wire.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from wire.messages.fetch import FetchRequest, FetchResponse
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from wire.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from wire.messages.metadata import MetadataRequest, MetadataResponse
from wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from wire.messages.produce import ProduceRequest, ProduceResponse
from wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from wire.messages.scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from wire.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from wire.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from wire.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from wire.schema import Message, Octets, message_table

API_VERSIONS: Final = 18


@dataclass(frozen=True, slots=True)
class Api:
    """One API and its two ranges of versions, ends included: those told to clients, and those accepted from them."""

    key: int
    name: str
    request: type[Message]
    response: type[Message]
    advertised: tuple[int, int]
    accepted: tuple[int, int]


def _api(
    request: type[Message],
    response: type[Message],
    advertised: tuple[int, int],
    accepted: tuple[int, int] | None = None,
) -> Api:
    name = request.__name__.removesuffix("Request")
    return Api(message_table(request).api_key, name, request, response, advertised, accepted or advertised)


APIS: Final[Mapping[int, Api]] = MappingProxyType(
    {
        api.key: api
        for api in (
            # librdkafka before 2.11.1 sends uncompressed to a broker that does not list Produce 0 (issue 4956).
            _api(ProduceRequest, ProduceResponse, (0, 13), (3, 13)),
            _api(FetchRequest, FetchResponse, (4, 16)),
            _api(ListOffsetsRequest, ListOffsetsResponse, (0, 9)),
            _api(MetadataRequest, MetadataResponse, (0, 13)),
            _api(OffsetCommitRequest, OffsetCommitResponse, (1, 9)),
            _api(OffsetFetchRequest, OffsetFetchResponse, (1, 9)),
            _api(FindCoordinatorRequest, FindCoordinatorResponse, (0, 5)),
            _api(JoinGroupRequest, JoinGroupResponse, (0, 9)),
            _api(HeartbeatRequest, HeartbeatResponse, (0, 4)),
            _api(LeaveGroupRequest, LeaveGroupResponse, (0, 5)),
            _api(SyncGroupRequest, SyncGroupResponse, (0, 5)),
            _api(DescribeGroupsRequest, DescribeGroupsResponse, (0, 6)),
            _api(ListGroupsRequest, ListGroupsResponse, (0, 5)),
            _api(SaslHandshakeRequest, SaslHandshakeResponse, (0, 1)),
            _api(ApiVersionsRequest, ApiVersionsResponse, (0, 4)),
            _api(CreateTopicsRequest, CreateTopicsResponse, (2, 7)),
            _api(DeleteTopicsRequest, DeleteTopicsResponse, (1, 6)),
            _api(DeleteRecordsRequest, DeleteRecordsResponse, (0, 2)),
            _api(InitProducerIdRequest, InitProducerIdResponse, (0, 5)),
            _api(OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, (2, 4)),
            # Versions 4 and 5 are between brokers, and some clients would take them for the newest of their own.
            _api(AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, (0, 3)),
            _api(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, (0, 4)),
            _api(EndTxnRequest, EndTxnResponse, (0, 5)),
            _api(WriteTxnMarkersRequest, WriteTxnMarkersResponse, (1, 2)),
            _api(TxnOffsetCommitRequest, TxnOffsetCommitResponse, (0, 5)),
            _api(DescribeAclsRequest, DescribeAclsResponse, (1, 3)),
            _api(CreateAclsRequest, CreateAclsResponse, (1, 3)),
            _api(DeleteAclsRequest, DeleteAclsResponse, (1, 3)),
            _api(DescribeConfigsRequest, DescribeConfigsResponse, (0, 4)),
            _api(AlterConfigsRequest, AlterConfigsResponse, (0, 2)),
            _api(AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse, (1, 2)),
            _api(DescribeLogDirsRequest, DescribeLogDirsResponse, (1, 4)),
            _api(SaslAuthenticateRequest, SaslAuthenticateResponse, (0, 2)),
            _api(CreatePartitionsRequest, CreatePartitionsResponse, (0, 3)),
            _api(CreateDelegationTokenRequest, CreateDelegationTokenResponse, (1, 3)),
            _api(RenewDelegationTokenRequest, RenewDelegationTokenResponse, (1, 2)),
            _api(ExpireDelegationTokenRequest, ExpireDelegationTokenResponse, (1, 2)),
            _api(DescribeDelegationTokenRequest, DescribeDelegationTokenResponse, (1, 3)),
            _api(DeleteGroupsRequest, DeleteGroupsResponse, (0, 2)),
            _api(ElectLeadersRequest, ElectLeadersResponse, (0, 2)),
            _api(IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse, (0, 1)),
            _api(AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse, (0, 1)),
            _api(ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse, (0, 0)),
            _api(OffsetDeleteRequest, OffsetDeleteResponse, (0, 0)),
            _api(DescribeClientQuotasRequest, DescribeClientQuotasResponse, (0, 1)),
            _api(AlterClientQuotasRequest, AlterClientQuotasResponse, (0, 1)),
            _api(DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse, (0, 0)),
            _api(AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse, (0, 0)),
            _api(UpdateFeaturesRequest, UpdateFeaturesResponse, (0, 2)),
            _api(DescribeClusterRequest, DescribeClusterResponse, (0, 1)),
            _api(DescribeProducersRequest, DescribeProducersResponse, (0, 0)),
            _api(UnregisterBrokerRequest, UnregisterBrokerResponse, (0, 0)),
            _api(DescribeTransactionsRequest, DescribeTransactionsResponse, (0, 0)),
            _api(ListTransactionsRequest, ListTransactionsResponse, (0, 2)),
            _api(ListConfigResourcesRequest, ListConfigResourcesResponse, (0, 1)),
        )
    }
)
"""The APIs by key."""


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """The fields that stand before every request body."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


class UnsupportedVersionError(BadInputError):
    """A request for a version outside the accepted range.

    Attributes:
        header: the request's header. An ApiVersions request in a version newer than ours has one too; its body must not
            be read.
        position: where the body starts, for versions that can be decoded though they are not accepted (Produce 0-2).
    """

    def __init__(self, message: str, header: RequestHeader, position: int) -> None:
        super().__init__(message)
        self.header = header
        self.position = position


_request_head = struct.Struct(">hhih")
_frame_head = struct.Struct(">ii")
_INT32 = struct.Struct(">i")


def read_request_header(frame: memoryview) -> tuple[RequestHeader, int]:
    """Read the header of a request; returns it and the position of the body.

    Raises MalformedMessageError, UnknownApiError, and UnsupportedVersionError with the header. For the last one the
    server answers an ApiVersions request with error 35 in version 0, and closes the connection on all other APIs.
    """
    if len(frame) < _request_head.size:
        raise MalformedMessageError(f"request of {len(frame)} bytes is shorter than a request header")
    api_key, version, correlation_id, client_id_size = _request_head.unpack_from(frame)
    position = _request_head.size
    api = APIS.get(api_key)
    if api is None:
        raise UnknownApiError(api_key)
    client_id: str | None = None
    if client_id_size >= 0:
        if client_id_size > len(frame) - position:
            raise MalformedMessageError("client id is longer than the request")
        try:
            client_id = str(frame[position : position + client_id_size], "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedMessageError(f"client id is not UTF-8: {error}") from error
        position += client_id_size
    elif client_id_size < -1:
        raise MalformedMessageError(f"client id has the length {client_id_size}")
    header = RequestHeader(api_key, version, correlation_id, client_id)
    table = message_table(api.request)
    # Only in a declared version: in any other, the bytes after the client id mean nothing to us.
    if version in table.versions and version in table.flexible:
        try:
            position, _ = skip_tagged_fields(frame, position)
        except IndexError as error:
            raise MalformedMessageError("request header ends early") from error
    # Last: the error carries the whole header, which an answer to ApiVersions needs.
    low, high = api.accepted
    if not low <= version <= high:
        raise UnsupportedVersionError(f"{api.name} v{version}, but only v{low} to v{high} are served", header, position)
    return header, position


def decode_request(header: RequestHeader, frame: memoryview, position: int) -> Message:
    """Read the body that starts at `position`. Raises MalformedMessageError.

    Bytes after the body are ignored, as in Kafka. Clients rely on it: to ask for all topics, librdkafka (2.16) writes
    the null list of Metadata v12 as four bytes instead of one.
    """
    body, _ = decode(APIS[header.api_key].request, header.api_version, frame, position)
    return body


def decode_request_in_steps(header: RequestHeader, frame: memoryview, position: int) -> Steps[Message]:
    """The same, in steps: for a frame that may hold very many elements."""
    body, _ = yield from decode_in_steps(APIS[header.api_key].request, header.api_version, frame, position)
    return body


def encode_response(header: RequestHeader, body: Message) -> list[Octets]:
    """Write the whole response to the request with this header, length prefix first. The caller sends the parts in
    order.

    An ApiVersions request in an undeclared version gets a response in version 0. Raises EncodingError.
    """
    head, version = _begun(header, body)
    return _framed(encode(body, version, head), head)


def encode_short_response(header: RequestHeader, body: Message) -> list[Octets] | None:
    """The same; None if it has more elements than a step may have."""
    head, version = _begun(header, body)
    parts = encode_short(body, version, head)
    return None if parts is None else _framed(parts, head)


def encode_response_in_steps(header: RequestHeader, body: Message) -> Steps[list[Octets]]:
    head, version = _begun(header, body)
    parts = yield from encode_in_steps(body, version, head)
    return _framed(parts, head)


def _begun(header: RequestHeader, body: Message) -> tuple[bytearray, int]:
    """The head of the response, and the version that it is written in."""
    table = message_table(APIS[header.api_key].response)
    version = header.api_version
    if header.api_key == API_VERSIONS and version not in table.versions:
        version = 0
    if type(body) is not table.struct_class:
        raise EncodingError(f"a {type(body).__name__} cannot answer API key {header.api_key}")
    # The length is not known yet: `_framed` writes it over these four bytes.
    head = bytearray(_frame_head.pack(0, header.correlation_id))
    # One zero byte: no tagged fields.
    if version in table.flexible and header.api_key != API_VERSIONS:
        head.append(0)
    return head, version


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, body: Message
) -> list[Octets]:
    """Write a whole request, length prefix first. The caller sends the parts in order. Raises EncodingError."""
    table = message_table(APIS[api_key].request)
    if type(body) is not table.struct_class:
        raise EncodingError(f"a {type(body).__name__} cannot be sent as API key {api_key}")
    client = b"" if client_id is None else client_id.encode()
    try:
        head = bytearray(4) + _request_head.pack(
            api_key, version, correlation_id, -1 if client_id is None else len(client)
        )
    except struct.error as error:
        raise EncodingError(f"request header cannot be written: {error}") from error
    head += client
    if version in table.flexible:
        head.append(0)
    return _framed(encode(body, version, head), head)


def decode_response(api_key: int, version: int, frame: memoryview) -> tuple[int, Message]:
    """Read a whole response; returns its correlation id and body. Raises MalformedMessageError."""
    response = APIS[api_key].response
    try:
        (correlation_id,) = _INT32.unpack_from(frame)
        position = _INT32.size
        if version in message_table(response).flexible and api_key != API_VERSIONS:
            position, _ = skip_tagged_fields(frame, position)
    except (struct.error, IndexError) as error:
        raise MalformedMessageError("response header ends early") from error
    body, end = decode(response, version, frame, position)
    if end != len(frame):
        raise MalformedMessageError(f"{response.__name__} v{version} leaves {len(frame) - end} bytes of its frame")
    return correlation_id, body


def _framed(parts: list[Octets], head: bytearray) -> list[Octets]:
    size = sum(len(part) for part in parts) - _INT32.size
    try:
        _INT32.pack_into(head, 0, size)
    except struct.error as error:
        raise EncodingError(f"a frame of {size} bytes is too large for its length prefix") from error
    return parts
