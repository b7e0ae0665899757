"""Every API in every version that is accepted gives an answer that its client can read, for good input and for bad."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from uuid import UUID

import pytest

from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent
from tests.fixtures.messages import MESSAGES
from tests.fixtures.transaction_requests import TRANSACTION_REQUESTS
from wire.api import APIS
from wire.compiler.compile import decode, encode
from wire.error_codes import ErrorCode
from wire.messages import alter_configs
from wire.messages.acls import AclCreation, CreateAclsRequest, DeleteAclsFilter, DeleteAclsRequest, DescribeAclsRequest
from wire.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData
from wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from wire.messages.api_versions import ApiVersionsRequest
from wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from wire.messages.delegation_tokens import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from wire.messages.delete_groups import DeleteGroupsRequest
from wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from wire.messages.describe_cluster import DescribeClusterRequest
from wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from wire.messages.describe_groups import DescribeGroupsRequest
from wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from wire.messages.describe_transactions import DescribeTransactionsRequest
from wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.messages.heartbeat import HeartbeatRequest
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from wire.messages.init_producer_id import InitProducerIdRequest
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from wire.messages.list_config_resources import ListConfigResourcesRequest
from wire.messages.list_groups import ListGroupsRequest
from wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from wire.messages.list_transactions import ListTransactionsRequest
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from wire.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from wire.messages.scram_credentials import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from wire.messages.unregister_broker import UnregisterBrokerRequest
from wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from wire.records import NewRecord, build_batch
from wire.schema import Message, message_table

STRANGER = UUID(int=12345)


@pytest.fixture
async def served(dial: Dial, start_agent: StartAgent) -> AsyncIterator[tuple[RawConnection, UUID]]:
    """A connection to an agent, and the id of its topic "t"."""
    running: RunningAgent = await start_agent()
    client = await dial.kafka(running.address)
    await client.create_topic("t", partitions=2)
    yield await dial.raw(running.address), (await client.topic("t")).topic_id


def _produce(version: int) -> Message:
    good = build_batch([NewRecord(int(time.time() * 1000), b"k", b"v")])
    parts = [
        PartitionProduceData(index=index, records=records) for index, records in ((0, good), (1, b"junk"), (7, good))
    ]
    unknown = TopicProduceData(
        name="nope", topic_id=STRANGER, partition_data=[PartitionProduceData(index=0, records=good)]
    )
    topics = [TopicProduceData(name="t", partition_data=parts), unknown]
    return ProduceRequest(acks=-1, timeout_ms=5000, topic_data=topics)


def _fetch(version: int) -> Message:
    asked = [(0, 0), (1, 999), (7, 0)]
    parts = [FetchPartition(partition=n, fetch_offset=offset, partition_max_bytes=1000) for n, offset in asked]
    unknown = FetchTopic(
        topic="nope", topic_id=STRANGER, partitions=[FetchPartition(partition=0, partition_max_bytes=1)]
    )
    return FetchRequest(
        max_wait_ms=1, min_bytes=0, isolation_level=1, topics=[FetchTopic(topic="t", partitions=parts), unknown]
    )


def _list_offsets(version: int) -> Message:
    parts = [
        ListOffsetsPartition(partition_index=index, timestamp=timestamp)
        for index, timestamp in ((0, -1), (1, -2), (7, -1))
    ]
    unknown = ListOffsetsTopic(name="nope", partitions=[ListOffsetsPartition(partition_index=0, timestamp=5)])
    by_time = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=5)])
    topics = [ListOffsetsTopic(name="t", partitions=parts), unknown]
    return ListOffsetsRequest(replica_id=-1, topics=[by_time] if version % 2 else topics)


def _metadata(version: int) -> Message:
    wanted = [MetadataRequestTopic(name="t"), MetadataRequestTopic(name="bad name")]
    if version >= 12:
        wanted.append(MetadataRequestTopic(name=None, topic_id=STRANGER))
    return MetadataRequest(
        topics=wanted,
        include_topic_authorized_operations=version >= 8,
        include_cluster_authorized_operations=8 <= version <= 10,
    )


def _create_topics(version: int) -> Message:
    topics = [
        CreatableTopic(
            name=name,
            num_partitions=1,
            replication_factor=1,
            configs=[CreatableTopicConfig(name="retention.ms", value="5")],
        )
        for name in ("t", f"new-{version}", "bad name")
    ]
    return CreateTopicsRequest(topics=topics, timeout_ms=1000)


def _delete_topics(version: int) -> Message:
    if version < 6:
        return DeleteTopicsRequest(topic_names=["nope", "t"], timeout_ms=1000)
    states = [DeleteTopicState(name="t"), DeleteTopicState(name=None, topic_id=STRANGER)]
    return DeleteTopicsRequest(topics=states, timeout_ms=1000)


def _delete_records(version: int) -> Message:
    parts = [
        DeleteRecordsPartition(partition_index=index, offset=offset) for index, offset in ((0, -1), (1, 9), (7, 0))
    ]
    return DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=name, partitions=parts) for name in ("t", "nope")], timeout_ms=1000
    )


def _find_coordinator(version: int) -> Message:
    return FindCoordinatorRequest(coordinator_keys=["g", "h"]) if version >= 4 else FindCoordinatorRequest(key="g")


def _describe_configs(version: int) -> Message:
    resources = [
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        for kind, name in (
            (2, "t"),
            (2, "nope"),
            (4, "1"),
            (4, ""),
            (8, "1"),
            (16, "s"),
            (32, "g"),
            (77, "x"),
        )
    ]
    return DescribeConfigsRequest(
        resources=resources, include_synonyms=version >= 1, include_documentation=version >= 3
    )


def _alter_configs(version: int) -> Message:
    resources = [
        AlterConfigsResource(
            resource_type=2, resource_name=name, configs=[AlterableConfig(name="retention.ms", value="7")]
        )
        for name in ("t", "nope")
    ]
    return IncrementalAlterConfigsRequest(resources=resources)


def _create_partitions(version: int) -> Message:
    return CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=3, assignments=None) for name in ("t", "nope")], timeout_ms=1000
    )


def _offset_commit(version: int) -> Message:
    topics = [
        OffsetCommitRequestTopic(
            name=name,
            partitions=[
                OffsetCommitRequestPartition(partition_index=index, committed_offset=0, committed_metadata=metadata)
                for index, metadata in ((0, None), (1, "x" * 5_000), (7, "m"))
            ],
        )
        for name in ("t", "nope")
    ]
    return OffsetCommitRequest(group_id="" if version % 2 else "g", topics=topics)


def _offset_fetch(version: int) -> Message:
    if version < 8:
        asked = [OffsetFetchRequestTopic(name=name, partition_indexes=[0, 7]) for name in ("t", "nope")]
        return OffsetFetchRequest(group_id="g", topics=None if version >= 2 and version % 2 else asked)
    named = [OffsetFetchRequestTopics(name=name, partition_indexes=[0, 7]) for name in ("t", "nope")]
    groups = [OffsetFetchRequestGroup(group_id=name, topics=topics) for name in ("g", "") for topics in (named, None)]
    return OffsetFetchRequest(groups=groups, require_stable=True)


def _offset_delete(version: int) -> Message:
    parts = [OffsetDeleteRequestPartition(partition_index=index) for index in (0, 7)]
    return OffsetDeleteRequest(
        group_id="g", topics=[OffsetDeleteRequestTopic(name=name, partitions=parts) for name in ("t", "nope")]
    )


def _join_group(version: int) -> Message:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000 if version >= 4 else 1,  # below v4 a good one waits until the group is complete
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"any")],
    )


def _sync_group(version: int) -> Message:
    parts = [SyncGroupRequestAssignment(member_id="stranger", assignment=b"any")]
    return SyncGroupRequest(group_id="g", generation_id=1, member_id="stranger", assignments=parts)


def _leave_group(version: int) -> Message:
    if version < 3:
        return LeaveGroupRequest(group_id="g", member_id="stranger")
    members = [MemberIdentity(member_id="stranger"), MemberIdentity(group_instance_id="i", reason="test")]
    return LeaveGroupRequest(group_id="g", members=members)


def _list_groups(version: int) -> Message:
    return ListGroupsRequest(
        states_filter=["Stable", "nonsense"] if version >= 4 else [], types_filter=["classic"] if version >= 5 else []
    )


def _offset_for_leader_epoch(version: int) -> Message:
    parts = [OffsetForLeaderPartition(partition=index, leader_epoch=0) for index in (0, 7)]
    topics = [OffsetForLeaderTopic(topic=name, partitions=parts) for name in ("t", "nope")]
    return OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)


def _alter_all_configs(version: int) -> Message:
    resources = [
        alter_configs.AlterConfigsResource(
            resource_type=2,
            resource_name=name,
            configs=[alter_configs.AlterableConfig(name="retention.ms", value="7")],
        )
        for name in ("t", "nope")
    ]
    return alter_configs.AlterConfigsRequest(resources=resources)


def _describe_log_dirs(version: int) -> Message:
    topics = [DescribableLogDirTopic(topic=name, partitions=[0, 7]) for name in ("t", "nope")]
    return DescribeLogDirsRequest(topics=None if version % 2 else topics)


def _elect_leaders(version: int) -> Message:
    topics = [TopicPartitions(topic=name, partitions=[0, 7]) for name in ("t", "nope")]
    return ElectLeadersRequest(topic_partitions=None if version % 2 else topics)


def _list_partition_reassignments(version: int) -> Message:
    topics = [ListPartitionReassignmentsTopics(name=name, partition_indexes=[0, 7]) for name in ("t", "nope")]
    return ListPartitionReassignmentsRequest(topics=topics)


def _describe_producers(version: int) -> Message:
    return DescribeProducersRequest(
        topics=[TopicRequest(name=name, partition_indexes=[0, 7]) for name in ("t", "nope")]
    )


def _create_acls(version: int) -> Message:
    acl = AclCreation(resource_type=2, resource_name="t", principal="User:a", host="*", operation=3, permission_type=3)
    return CreateAclsRequest(creations=[acl, acl])


def _delete_acls(version: int) -> Message:
    every = DeleteAclsFilter(resource_name_filter=None, principal_filter=None, host_filter=None)
    return DeleteAclsRequest(filters=[every])


def _describe_acls(version: int) -> Message:
    return DescribeAclsRequest(resource_name_filter=None, principal_filter=None, host_filter="*")


def _alter_quotas(version: int) -> Message:
    entity = [EntityData(entity_type="user", entity_name=None)]
    ops = [OpData(key="producer_byte_rate", value=7e12), OpData(key="consumer_byte_rate", remove=True)]
    return AlterClientQuotasRequest(entries=[EntryData(entity=entity, ops=[op]) for op in ops])


def _alter_credentials(version: int) -> Message:
    return AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name="a", mechanism=1)],
        upsertions=[ScramCredentialUpsertion(name="b", mechanism=2, iterations=4096, salt=b"s", salted_password=b"p")],
    )


def _reassign(version: int) -> Message:
    parts = [ReassignablePartition(partition_index=index, replicas=nodes) for index, nodes in ((0, [1]), (1, [9]))]
    parts += [ReassignablePartition(partition_index=0, replicas=None), ReassignablePartition(partition_index=7)]
    return AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=name, partitions=parts) for name in ("t", "nope")]
    )


def _move_log_dirs(version: int) -> Message:
    topics = [AlterReplicaLogDirTopic(name=name, partitions=[0, 7]) for name in ("t", "nope")]
    return AlterReplicaLogDirsRequest(
        dirs=[AlterReplicaLogDir(path=path, topics=topics) for path in ("object-store", "/var")]
    )


def _create_token(version: int) -> Message:
    renewers = [CreatableRenewers(principal_type="User", principal_name="a")]
    return CreateDelegationTokenRequest(
        owner_principal_type=None if version >= 3 else "",
        owner_principal_name=None if version >= 3 else "",
        renewers=renewers,
        max_lifetime_ms=1000,
    )


REQUESTS: dict[int, Callable[[int], Message]] = {
    0: _produce,
    1: _fetch,
    2: _list_offsets,
    3: _metadata,
    8: _offset_commit,
    9: _offset_fetch,
    10: _find_coordinator,
    11: _join_group,
    12: lambda version: HeartbeatRequest(group_id="g", generation_id=1, member_id="stranger"),
    13: _leave_group,
    14: _sync_group,
    15: lambda version: DescribeGroupsRequest(groups=["g", ""], include_authorized_operations=version >= 3),
    16: _list_groups,
    17: lambda version: SaslHandshakeRequest(mechanism="PLAIN"),
    18: lambda version: (
        ApiVersionsRequest(client_software_name="x", client_software_version="1")
        if version >= 3
        else ApiVersionsRequest()
    ),
    19: _create_topics,
    20: _delete_topics,
    21: _delete_records,
    22: lambda version: InitProducerIdRequest(transactional_id="tx" if version % 2 else None),
    23: _offset_for_leader_epoch,
    **TRANSACTION_REQUESTS,
    29: _describe_acls,
    30: _create_acls,
    31: _delete_acls,
    32: _describe_configs,
    33: _alter_all_configs,
    34: _move_log_dirs,
    35: _describe_log_dirs,
    36: lambda version: SaslAuthenticateRequest(auth_bytes=b"\0a\0b"),
    37: _create_partitions,
    38: _create_token,
    39: lambda version: RenewDelegationTokenRequest(hmac=b"h", renew_period_ms=1),
    40: lambda version: ExpireDelegationTokenRequest(hmac=b"h", expiry_time_period_ms=1),
    41: lambda version: DescribeDelegationTokenRequest(owners=None),
    42: lambda version: DeleteGroupsRequest(groups_names=["g", "nope", ""]),
    43: _elect_leaders,
    44: _alter_configs,
    45: _reassign,
    46: _list_partition_reassignments,
    47: _offset_delete,
    48: lambda version: DescribeClientQuotasRequest(
        components=[ComponentData(entity_type="user", match_type=2, match=None)]
    ),
    49: _alter_quotas,
    50: lambda version: DescribeUserScramCredentialsRequest(users=[UserName(name=name) for name in "aab"]),
    51: _alter_credentials,
    57: lambda version: UpdateFeaturesRequest(
        feature_updates=[FeatureUpdateKey(feature="metadata.version", max_version_level=7)]
    ),
    60: lambda version: DescribeClusterRequest(endpoint_type=2 if version else 1),
    61: _describe_producers,
    64: lambda version: UnregisterBrokerRequest(broker_id=1),
    65: lambda version: DescribeTransactionsRequest(transactional_ids=["tx"]),
    66: lambda version: ListTransactionsRequest(state_filters=["Ongoing", "nonsense"]),
    74: lambda version: ListConfigResourcesRequest(resource_types=[2, 4, 8, 16, 32] if version else []),
}


def test_no_api_is_forgotten_here() -> None:
    declared = {message_table(found).api_key for found in MESSAGES}
    assert REQUESTS.keys() == declared
    assert APIS.keys() <= declared


@pytest.mark.parametrize("key", REQUESTS)
def test_every_request_here_can_be_written_in_every_declared_version(key: int) -> None:
    message_class = next(found for found in MESSAGES if message_table(found).api_key == key)
    for version in message_table(message_class).versions:
        request = REQUESTS[key](version)
        assert type(request) is message_class
        data = memoryview(b"".join(encode(request, version)))
        assert decode(message_class, version, data)[1] == len(data)


@pytest.mark.parametrize(
    ("key", "version"),
    [(key, version) for key, api in APIS.items() for version in range(api.accepted[0], api.accepted[1] + 1)],
)
async def test_every_accepted_version_is_answered(served: tuple[RawConnection, UUID], key: int, version: int) -> None:
    raw, topic_id = served
    request = REQUESTS[key](version)
    if isinstance(request, ProduceRequest):
        request.topic_data[0].topic_id = topic_id
    if isinstance(request, FetchRequest):
        request.topics[0].topic_id = topic_id
    answer = await raw.call(request, APIS[key].response, version)
    codes = _error_codes(answer)
    assert all(code in ErrorCode._value2member_map_ for code in codes)
    assert ErrorCode.UNKNOWN_SERVER_ERROR not in codes


def _error_codes(value: object) -> set[int]:
    """Every error code anywhere in a message."""
    found: set[int] = set()
    for name in getattr(value, "__slots__", ()):
        inner = getattr(value, name)
        if name == "error_code":
            found.add(inner)
        elif isinstance(inner, list):
            for each in inner:
                found |= _error_codes(each)
    return found
