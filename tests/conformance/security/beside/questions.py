"""Questions about topics and the cluster: for each API and version, requests that differ in what they name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from uuid import UUID

from security.acls.values import AclFilter, Operation, PatternType, ResourceType
from siltstone.kafka.access.acls import creation_of, deletion_of, description_of
from tests.conformance.security.beside.group_questions import GROUP_QUESTIONS
from tests.conformance.security.beside.sides import DOOMED_TOPICS, Side
from tests.fixtures.acls import allow
from tests.integration.agents.test_every_version import REQUESTS
from wire.messages import alter_configs, incremental_alter_configs
from wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
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
from wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from wire.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from wire.messages.describe_cluster import DescribeClusterRequest
from wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from wire.messages.describe_transactions import DescribeTransactionsRequest
from wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from wire.messages.end_txn import EndTxnRequest
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wire.messages.init_producer_id import InitProducerIdRequest
from wire.messages.list_config_resources import ListConfigResourcesRequest
from wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from wire.messages.list_transactions import ListTransactionsRequest
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from wire.messages.scram_credentials import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from wire.messages.unregister_broker import UnregisterBrokerRequest
from wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from wire.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from wire.records import NewRecord, ProducerStamp, build_batch
from wire.schema import Message

STRANGER = UUID(int=12345)
MADE_BY_READING = "absent"
"""A topic that a question may bring about."""
ACKS_0 = "acks 0"
SESSION = "session"
"""The question is about the second fetch of a session, which names nothing."""
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
"""Types of resources that have configs."""
Ask = Callable[[int, Side], Iterator[tuple[str, Message]]]
NOBODYS_ID = 2**60
"""A producer id that no server has given."""


def _partitions(version: int) -> list[int]:
    """One that is there, and one that is not: only in some versions, because an agent of ours then looks again."""
    return [0] if version % 2 else [0, 7]


def _produce(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    records = [NewRecord(int(time.time() * 1000), b"k", b"v")]
    batch = build_batch(records)
    # Of a producer that the transaction's coordinator does not know.
    in_transaction = build_batch(records, producer=ProducerStamp(77_777, 0, 0), transactional=True)

    def request(*names: str, acks: int = 1, transactional_id: str | None = None) -> ProduceRequest:
        data = batch if transactional_id is None else in_transaction
        topics = [
            TopicProduceData(
                name=name,
                topic_id=side.ids.get(name, STRANGER),
                partition_data=[PartitionProduceData(index=index, records=data) for index in _partitions(version)],
            )
            for name in names
        ]
        return ProduceRequest(acks=acks, timeout_ms=5_000, transactional_id=transactional_id, topic_data=topics)

    yield "several topics", request("t1", "t2", "absent")
    yield "one topic", request("team-a")
    for transactional_id in ("tx1", "tx2"):
        yield transactional_id, request("t1", "absent", acks=-1, transactional_id=transactional_id)
    for name in ("t1", "t2"):
        single = request(name, acks=0)
        del single.topic_data[0].partition_data[1:]
        yield f"{ACKS_0} {name}", single


def _fetch(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    parts = [
        FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1_000) for number in _partitions(version)
    ]
    for label, names in (("several topics", ("t1", "t2", "absent")), ("one topic", ("team-a",))):
        topics = [
            FetchTopic(topic=name, topic_id=side.ids.get(name, STRANGER), partitions=list(parts)) for name in names
        ]
        yield label, FetchRequest(max_wait_ms=0, min_bytes=0, topics=topics)
        if version >= 7:
            yield f"{SESSION} {label}", FetchRequest(max_wait_ms=0, min_bytes=0, session_epoch=0, topics=topics)


def _list_offsets(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    for label, timestamp in (("latest", -1), ("earliest", -2)):
        parts = [ListOffsetsPartition(partition_index=index, timestamp=timestamp) for index in _partitions(version)]
        topics = [ListOffsetsTopic(name=name, partitions=list(parts)) for name in ("t1", "t2", "team-a", "absent")]
        yield label, ListOffsetsRequest(replica_id=-1, topics=topics)


def _epochs(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    parts = [OffsetForLeaderPartition(partition=index, leader_epoch=0) for index in _partitions(version)]
    topics = [OffsetForLeaderTopic(topic=name, partitions=list(parts)) for name in ("t1", "t2", "team-a", "absent")]
    yield "topics", OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)


def _metadata(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    def request(wanted: list[MetadataRequestTopic] | None, *, may_make: bool = False) -> MetadataRequest:
        return MetadataRequest(
            topics=wanted,
            allow_auto_topic_creation=may_make or version < 4,
            include_topic_authorized_operations=version >= 8,
            include_cluster_authorized_operations=8 <= version <= 10,
        )

    def named(*names: str) -> list[MetadataRequestTopic]:
        return [MetadataRequestTopic(name=name) for name in names]

    yield "all", request([] if version == 0 else None)
    yield "named", request(named("t1", "t2", "team-a"))
    if version:
        yield "none", request([])
    if version >= 4:
        yield "named, one absent", request(named("t1", "absent", "t9"))
    if version in (1, 5, 12):
        yield "made by reading", request(named("t1", MADE_BY_READING), may_make=True)
    if version >= 12:
        ids = [side.ids["t1"], STRANGER, side.ids["team-a"]]
        yield "by id", request([MetadataRequestTopic(name=None, topic_id=each) for each in ids])


def _create_topics(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    configs = [CreatableTopicConfig(name="retention.ms", value="86400000")]
    topics = [
        CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=list(configs))
        for name in ("t1", "absent", "t9", "team-b", "bad name")
    ]
    yield "old and new", CreateTopicsRequest(topics=topics, timeout_ms=5_000, validate_only=True)


def _delete_topics(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    names = (*DOOMED_TOPICS, "absent")
    if version < 6:
        yield "by name", DeleteTopicsRequest(topic_names=list(names), timeout_ms=10_000)
        return
    states = [DeleteTopicState(name=name) for name in names]
    yield "by name", DeleteTopicsRequest(topics=states, timeout_ms=10_000)


def _delete_topics_by_id(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    if version >= 6:
        ids = [*(side.ids[name] for name in DOOMED_TOPICS), STRANGER]
        states = [DeleteTopicState(name=None, topic_id=each) for each in ids]
        yield "by id", DeleteTopicsRequest(topics=states, timeout_ms=10_000)


def _delete_records(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    parts = [DeleteRecordsPartition(partition_index=index, offset=0) for index in _partitions(version)]
    topics = [DeleteRecordsTopic(name=name, partitions=list(parts)) for name in ("t1", "t2", "team-a", "absent")]
    yield "topics", DeleteRecordsRequest(topics=topics, timeout_ms=5_000)


def _init_producer_id(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    yield "no transactional id", InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000)
    for name in ("tx1", "tx2"):
        yield name, InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1_000)


def _add_partitions(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    topics = [AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in ("t1", "team-a", "absent")]
    for name in ("tx1", "tx2"):
        yield (
            name,
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=name, v3_and_below_producer_id=NOBODYS_ID, v3_and_below_topics=topics
            ),
        )


def _add_offsets(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    for name, group in (("tx1", "g1"), ("tx2", "g1"), ("tx1", "gone")):
        yield f"{name} {group}", AddOffsetsToTxnRequest(transactional_id=name, producer_id=NOBODYS_ID, group_id=group)


def _end_transaction(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    for name in ("tx1", "tx2"):
        yield name, EndTxnRequest(transactional_id=name, producer_id=NOBODYS_ID, committed=True)


def _write_markers(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    topics = [WritableTxnMarkerTopic(name="absent", partition_indexes=[0])]
    yield (
        "an absent topic",
        WriteTxnMarkersRequest(
            markers=[WritableTxnMarker(producer_id=NOBODYS_ID, transaction_result=False, topics=topics)]
        ),
    )


def _describe_configs(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    node = str(side.node_id)
    wanted = (
        *((TOPIC, name) for name in ("t1", "team-a", "absent")),
        *((BROKER, name) for name in (node, "")),
        (LOGGER, node),
        (METRICS, "m"),
        *((GROUP, name) for name in ("g1", "gone")),
    )
    resources = [
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        for kind, name in wanted
    ]
    yield "all kinds", DescribeConfigsRequest(resources=resources, include_synonyms=True)


def _alter_configs(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    resources = [
        alter_configs.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[alter_configs.AlterableConfig(name=config, value="86400000")],
        )
        for kind, name, config in _ALTERED
    ]
    yield "all kinds", alter_configs.AlterConfigsRequest(resources=resources, validate_only=True)


def _incremental_alter_configs(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    altered = (*_ALTERED, (GROUP, "g1", "consumer.session.timeout.ms"), (METRICS, "m", "interval.ms"))
    resources = [
        incremental_alter_configs.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[incremental_alter_configs.AlterableConfig(name=config, value="50000")],
        )
        for kind, name, config in altered
    ]
    yield (
        "all kinds",
        incremental_alter_configs.IncrementalAlterConfigsRequest(resources=resources, validate_only=True),
    )


_ALTERED = (
    (TOPIC, "t1", "retention.ms"),
    (TOPIC, "team-a", "retention.ms"),
    (TOPIC, "absent", "retention.ms"),
    (BROKER, "", "log.retention.ms"),
)


def _list_config_resources(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    yield "all", ListConfigResourcesRequest()
    if version:
        for kind in (TOPIC, GROUP, BROKER, METRICS):
            yield f"type {kind}", ListConfigResourcesRequest(resource_types=[kind])


def _describe_log_dirs(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    yield "all", DescribeLogDirsRequest(topics=None)
    named = [DescribableLogDirTopic(topic=name, partitions=_partitions(version)) for name in ("t1", "absent")]
    yield "named", DescribeLogDirsRequest(topics=named)


def _move_log_dirs(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    topics = [AlterReplicaLogDirTopic(name=name, partitions=[0]) for name in ("t1", "absent")]
    yield "to nowhere", AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path="/nowhere", topics=topics)])


def _create_partitions(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    topics = [CreatePartitionsTopic(name=name, count=3, assignments=None) for name in ("t1", "t2", "team-a", "absent")]
    yield "topics", CreatePartitionsRequest(topics=topics, timeout_ms=5_000, validate_only=True)


def _elect_leaders(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    topics = [TopicPartitions(topic=name, partitions=[0]) for name in ("t1", "absent")]
    yield "named", ElectLeadersRequest(topic_partitions=topics, timeout_ms=5_000)


def _reassign(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    cancel = [ReassignablePartition(partition_index=index, replicas=None) for index in _partitions(version)]
    topics = [ReassignableTopic(name=name, partitions=list(cancel)) for name in ("t1", "absent")]
    yield "cancel", AlterPartitionReassignmentsRequest(topics=topics, timeout_ms=5_000)


def _list_reassignments(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    topics = [ListPartitionReassignmentsTopics(name=name, partition_indexes=[0]) for name in ("t1", "absent")]
    yield "all", ListPartitionReassignmentsRequest(topics=None)
    yield "named", ListPartitionReassignmentsRequest(topics=topics)


def _describe_producers(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    topics = [
        TopicRequest(name=name, partition_indexes=_partitions(version)) for name in ("t1", "t2", "team-a", "absent")
    ]
    yield "topics", DescribeProducersRequest(topics=topics)


def _describe_acls(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    yield "all", description_of(AclFilter())
    of_topic = AclFilter(resource_type=ResourceType.TOPIC, resource_name="t1", pattern_type=PatternType.MATCH)
    yield "that apply to a topic", description_of(of_topic)


def _create_acls(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    yield "good and bad", creation_of(allow(Operation.READ, name, to="User:made") for name in ("made", ""))


def _delete_acls(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    yield "one and none", deletion_of(AclFilter(principal=each) for each in ("User:kept", "User:nobody"))


def _alter_quotas(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    entity = [EntityData(entity_type="user", entity_name="ann")]
    entries = [EntryData(entity=entity, ops=[OpData(key="producer_byte_rate", value=7e12)])]
    yield "a user", AlterClientQuotasRequest(entries=entries, validate_only=True)


def _describe_quotas(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    yield "all", DescribeClientQuotasRequest(components=[], strict=False)
    users = [ComponentData(entity_type="user", match_type=2, match=None)]
    yield "users", DescribeClientQuotasRequest(components=users)


def _alter_credentials(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    made = ScramCredentialUpsertion(name="carl", mechanism=1, iterations=4_096, salt=b"salt", salted_password=b"p" * 32)
    gone = ScramCredentialDeletion(name="nobody", mechanism=2)
    yield "one made, one not there", AlterUserScramCredentialsRequest(deletions=[gone], upsertions=[made])


def _describe_credentials(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    # Not null, which means the same: Kafka fails where it refuses that, and never answers.
    yield "all", DescribeUserScramCredentialsRequest(users=[])
    yield "named", DescribeUserScramCredentialsRequest(users=[UserName(name=name) for name in ("carl", "nobody")])


def _describe_cluster(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    yield "with operations", DescribeClusterRequest(include_cluster_authorized_operations=True)
    yield "without", DescribeClusterRequest()


def _update_features(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    update = FeatureUpdateKey(feature="nonsense", max_version_level=7)
    yield "an unknown one", UpdateFeaturesRequest(feature_updates=[update], validate_only=version > 0)


def _unregister(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    yield "an unknown one", UnregisterBrokerRequest(broker_id=99_999)


def _describe_transactions(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    yield "two", DescribeTransactionsRequest(transactional_ids=["tx-none", "none"])


def _list_transactions(version: int, side: Side) -> Iterator[tuple[str, Message]]:
    yield "all", ListTransactionsRequest()


def _as_in_every_version(key: int) -> Ask:
    def ask(version: int, side: Side) -> Iterator[tuple[str, Message]]:
        yield "as everywhere", REQUESTS[key](version)

    return ask


QUESTIONS: Mapping[int, tuple[Ask, ...]] = {
    **GROUP_QUESTIONS,
    0: (_produce,),
    1: (_fetch,),
    2: (_list_offsets,),
    3: (_metadata,),
    19: (_create_topics,),
    20: (_delete_topics, _delete_topics_by_id),
    21: (_delete_records,),
    22: (_init_producer_id,),
    23: (_epochs,),
    24: (_add_partitions,),
    25: (_add_offsets,),
    26: (_end_transaction,),
    27: (_write_markers,),
    29: (_describe_acls,),
    30: (_create_acls,),
    31: (_delete_acls,),
    32: (_describe_configs,),
    33: (_alter_configs,),
    34: (_move_log_dirs,),
    35: (_describe_log_dirs,),
    37: (_create_partitions,),
    43: (_elect_leaders,),
    44: (_incremental_alter_configs,),
    45: (_reassign,),
    46: (_list_reassignments,),
    48: (_describe_quotas,),
    49: (_alter_quotas,),
    50: (_describe_credentials,),
    51: (_alter_credentials,),
    57: (_update_features,),
    60: (_describe_cluster,),
    61: (_describe_producers,),
    64: (_unregister,),
    65: (_describe_transactions,),
    66: (_list_transactions,),
    74: (_list_config_resources,),
    **{key: (_as_in_every_version(key),) for key in (17, 18, 36, 38, 39, 40, 41)},
}
"""By API key. A request that deletes by an id stands alone, because the ids are others after a deletion."""
