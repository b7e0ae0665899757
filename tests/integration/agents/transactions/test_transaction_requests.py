"""The requests of transactions, in every version, at one agent: what they do, and each error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from agents.request_context import ANONYMOUS
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.store import MetadataStore
from metadata.memory.store import MemoryMetadata
from metadata.transactions.contract import TransactionState
from security.acls.values import CLUSTER_NAME, Acl, Operation, ResourceType
from tests.fixtures.acls import an_acl
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent
from tests.fixtures.metadata_parts import Wrapped
from tests.fixtures.transaction_clients import RecordsOf, TransactionalClient
from wire.error_codes import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse, TopicRequest
from wire.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wire.messages.init_producer_id import InitProducerIdResponse
from wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

E = ErrorCode


@dataclass
class Served:
    running: RunningAgent
    raw: RawConnection
    records: RecordsOf
    partition_ids: Sequence[int]
    """Of topic "t"."""

    def client(self, name: str = "tx") -> TransactionalClient:
        return TransactionalClient(self.raw, name)

    @property
    def metadata(self) -> MetadataStore:
        return self.running.metadata

    async def stable(self, number: int = 0) -> tuple[int, int]:
        partition_id = self.partition_ids[number]
        marks = (await self.metadata.agents.watermarks([partition_id]))[partition_id]
        return marks.last_stable_offset, marks.high_watermark

    async def state(self, name: str = "tx") -> TransactionState:
        (info,) = await self.metadata.transactions.transactions([name])
        return info.state


async def serve(running: RunningAgent, dial: Dial) -> Served:
    topic = await running.metadata.agents.create_topic("t", partitions=2, configs={})
    records = await RecordsOf.register(running.metadata)
    return Served(running, await dial.raw(running.address), records, topic.partition_ids)


@pytest.fixture
async def served(agent: RunningAgent, dial: Dial) -> Served:
    return await serve(agent, dial)


# ---- a client's life


async def test_each_init_gives_the_next_epoch_in_every_version(served: Served) -> None:
    client = served.client()
    made = [await client.init(version) for version in range(6)]
    assert [(each.error_code, each.producer_epoch) for each in made] == [(0, epoch) for epoch in range(6)]
    assert len({each.producer_id for each in made}) == 1
    again = await client.init(producer_id=client.producer_id, producer_epoch=5)
    assert (again.error_code, again.producer_epoch) == (0, 6)


async def test_a_transaction_of_the_first_protocol(served: Served) -> None:
    client = served.client()
    await client.begin()
    assert await client.add(t=[0, 1]) == {("t", 0): 0, ("t", 1): 0}
    assert await client.join("g") == 0
    assert await served.records.write(client, served.partition_ids[0], adds=False) == 0
    assert await served.stable() == (0, 1)

    assert await client.end(version=1) == 0

    assert client.epoch == 0
    assert (await served.stable(), await served.stable(1)) == ((2, 2), (0, 0))
    assert await client.end(version=1) == 0, "a repeated end is answered as the first one"
    assert await client.end(version=1, commit=False) == E.INVALID_TXN_STATE


async def test_a_transaction_of_the_second_protocol(served: Served) -> None:
    client = served.client()
    await client.begin()
    for commit in (True, False):
        before = TransactionalClient(served.raw, "tx", client.producer_id, client.epoch)
        await served.records.write(client, served.partition_ids[0])
        assert await client.end(commit=commit) == 0
        assert client.epoch == before.epoch + 1
        assert await before.end(commit=commit) == 0, "a repeated end"
        assert (before.producer_id, before.epoch) == (client.producer_id, client.epoch)
    assert await served.stable() == (4, 4)
    assert await client.end(commit=False) == 0, "an empty abort gives the next epoch"
    assert await client.end() == E.INVALID_TXN_STATE


async def test_init_aborts_what_is_ongoing_and_the_old_producer_is_fenced(served: Served) -> None:
    client = served.client()
    await client.begin()
    old = TransactionalClient(served.raw, "tx", client.producer_id, client.epoch)
    await served.records.write(old, served.partition_ids[0])

    made = await client.init()

    assert (made.error_code, made.producer_epoch) == (0, 2)
    assert await served.stable() == (2, 2)
    assert await old.end() == E.PRODUCER_FENCED


# ---- errors


async def test_init_refuses_what_contradicts_itself(served: Served) -> None:
    most = served.running.agent._settings.transaction_max_timeout_ms
    asked: list[tuple[dict[str, Any], ErrorCode]] = [
        ({"transaction_timeout_ms": 0}, E.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": -1}, E.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": most + 1}, E.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": most}, E.NONE),
        ({"producer_id": 5}, E.INVALID_REQUEST),
        ({"producer_epoch": 5}, E.INVALID_REQUEST),
        ({"transactional_id": ""}, E.INVALID_REQUEST),
        ({"transactional_id": "x" * 2_001}, E.INVALID_REQUEST),
    ]
    for more, error in asked:
        answer = await served.client().init(**more)
        assert (answer.error_code, answer.producer_id >= 0) == (error, error == E.NONE), more


@pytest.mark.parametrize(("version", "error"), [(3, E.INVALID_PRODUCER_EPOCH), (4, E.PRODUCER_FENCED)])
async def test_a_fenced_producer_hears_it_in_words_that_its_version_knows(
    served: Served, version: int, error: ErrorCode
) -> None:
    client = served.client()
    await client.begin()
    old = {"producer_id": client.producer_id, "producer_epoch": client.epoch}
    await client.begin()

    assert (await client.init(version, **old)).error_code == error


@pytest.mark.parametrize(("version", "error"), [(1, E.INVALID_PRODUCER_EPOCH), (2, E.PRODUCER_FENCED)])
async def test_so_it_does_when_it_adds_and_ends(served: Served, version: int, error: ErrorCode) -> None:
    client = served.client()
    await client.begin()
    old = TransactionalClient(served.raw, "tx", client.producer_id, client.epoch)
    await client.begin()

    assert await old.add(version, t=[0, 1]) == {("t", 0): error, ("t", 1): error}
    assert await old.join("g", version) == error
    assert await old.end(version=version) == error


async def test_producers_of_nobody_and_of_others(served: Served) -> None:
    client = served.client()
    await client.begin()
    other = TransactionalClient(served.raw, "tx", client.producer_id + 10**6, 0)
    nobody = TransactionalClient(served.raw, "nobody", client.producer_id, 0)
    for each in (other, nobody):
        for version in range(4):
            assert set((await each.add(version, t=[0])).values()) == {E.INVALID_PRODUCER_ID_MAPPING}
        for version in range(5):
            assert await each.join("g", version) == E.INVALID_PRODUCER_ID_MAPPING
        for version in range(6):
            assert await each.end(version=version) == E.INVALID_PRODUCER_ID_MAPPING
    assert set((await TransactionalClient(served.raw, "", 1, 0).add(t=[0])).values()) == {E.INVALID_REQUEST}
    assert await TransactionalClient(served.raw, "tx", -1, -1).end() == E.INVALID_PRODUCER_ID_MAPPING
    assert await client.join("") == E.INVALID_GROUP_ID
    for version in range(6):
        assert await client.end(version=version) == E.INVALID_TXN_STATE


async def test_partitions_enter_all_or_none(served: Served) -> None:
    client = served.client()
    await client.begin()
    for version in range(4):
        assert await client.add(version, t=[0, 7], nope=[0]) == {
            ("t", 0): E.OPERATION_NOT_ATTEMPTED,
            ("t", 7): E.UNKNOWN_TOPIC_OR_PARTITION,
            ("nope", 0): E.UNKNOWN_TOPIC_OR_PARTITION,
        }
    assert await served.state() is TransactionState.EMPTY


async def test_a_topic_that_another_agent_has_just_made_is_looked_for(served: Served) -> None:
    client = served.client()
    await client.begin()
    await served.metadata.agents.create_topic("new", partitions=1, configs={})
    assert await client.add(new=[0]) == {("new", 0): 0}


async def test_a_transaction_has_so_many_partitions(start_agent: StartAgent, dial: Dial) -> None:
    served = await serve(await start_agent(transaction_partitions_max=1), dial)
    client = served.client()
    await client.begin()
    assert set((await client.add(t=[0, 1])).values()) == {E.INVALID_TXN_STATE}
    assert await client.add(t=[0]) == {("t", 0): 0}


async def test_while_the_store_is_away_clients_are_told_to_come_again(start_agent: StartAgent, dial: Dial) -> None:
    inner = MemoryMetadata()
    await inner.open()

    async def away(*arguments: Any, **options: Any) -> Any:
        raise MetadataUnavailableError("away")

    names = ("init_producer", "take_transaction", "transactions", "list_transactions", "transactions_of")
    metadata: Any = Wrapped(inner, **dict.fromkeys(names, away))
    served = await serve(await start_agent(metadata=metadata), dial)
    client = TransactionalClient(served.raw, "tx", 1, 0)
    answers = [
        (await client.init()).error_code,
        (await client.add(t=[0]))["t", 0],
        await client.join("g"),
        await client.end(),
        (await described(served, "tx")).error_code,
        (await listed(served)).error_code,
        *await aborted(served, client),
    ]
    assert set(answers) == {E.COORDINATOR_NOT_AVAILABLE}
    await inner.close()


# ---- features and coordinators


async def versions(raw: RawConnection, version: int) -> ApiVersionsResponse:
    asked = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    return await raw.call(asked if version >= 3 else ApiVersionsRequest(), ApiVersionsResponse, version)


async def test_clients_hear_that_they_may_use_the_second_protocol(served: Served) -> None:
    for version in range(5):
        answer = await versions(served.raw, version)
        finalized = [(each.name, each.min_version_level, each.max_version_level) for each in answer.finalized_features]
        supported = [(each.name, each.min_version, each.max_version) for each in answer.supported_features]
        assert finalized == ([("transaction.version", 2, 2)] if version >= 3 else [])
        assert supported == ([("transaction.version", 0, 2)] if version >= 4 else [])
        assert answer.finalized_features_epoch == (0 if version >= 3 else -1)


async def test_every_version_finds_the_coordinator_of_an_id(served: Served) -> None:
    port = int(served.running.address.rpartition(":")[2])
    for version in range(1, 6):
        request = FindCoordinatorRequest(key="tx", key_type=1, coordinator_keys=["tx", "other"])
        if version < 4:
            request.coordinator_keys = []
        else:
            request.key = ""
        found = await served.raw.call(request, FindCoordinatorResponse, version)
        ports = [each.port for each in found.coordinators] if version >= 4 else [found.port]
        assert set(ports) == {port}


# ---- what operators see and do


async def described(served: Served, name: str) -> Any:
    request = DescribeTransactionsRequest(transactional_ids=[name])
    (state,) = (await served.raw.call(request, DescribeTransactionsResponse, 0)).transaction_states
    return state


async def listed(served: Served, version: int = 2, **filters: Any) -> ListTransactionsResponse:
    return await served.raw.call(ListTransactionsRequest(**filters), ListTransactionsResponse, version)


async def aborted(
    served: Served, client: TransactionalClient, *, commit: bool = False, epoch: int | None = None, **topics: list[int]
) -> list[int]:
    """The errors."""
    marker = WritableTxnMarker(
        producer_id=client.producer_id,
        producer_epoch=client.epoch if epoch is None else epoch,
        transaction_result=commit,
        topics=[
            WritableTxnMarkerTopic(name=name, partition_indexes=numbers)
            for name, numbers in (topics or {"t": [0]}).items()
        ],
    )
    for_version: list[list[int]] = []
    for version in (1, 2) if commit or epoch is not None else (2,):
        answer = await served.raw.call(WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse, version)
        (of_marker,) = answer.markers
        for_version.append([each.error_code for topic in of_marker.topics for each in topic.partitions])
    assert all(each == for_version[0] for each in for_version)
    return for_version[0]


async def test_a_transaction_is_described(served: Served) -> None:
    client = served.client()
    await client.begin()
    empty = await described(served, "tx")
    await client.add(t=[1, 0])
    await served.records.write(client, served.partition_ids[1], adds=False)

    ongoing = await described(served, "tx")

    assert (empty.transaction_state, empty.transaction_start_time_ms, empty.topics) == ("Empty", -1, [])
    assert (ongoing.error_code, ongoing.transaction_state, ongoing.transaction_timeout_ms) == (0, "Ongoing", 60_000)
    assert (ongoing.producer_id, ongoing.producer_epoch) == (client.producer_id, client.epoch)
    assert ongoing.transaction_start_time_ms > 0
    assert [(each.topic, each.partitions) for each in ongoing.topics] == [("t", [0, 1])]
    await client.end(version=1)
    assert (await described(served, "tx")).transaction_state == "CompleteCommit"
    assert (await described(served, "nobody")).error_code == E.TRANSACTIONAL_ID_NOT_FOUND
    assert (await described(served, "")).error_code == E.INVALID_REQUEST


async def test_a_deleted_topic_is_no_part_of_the_description(served: Served) -> None:
    client = served.client()
    await client.begin()
    gone = await served.metadata.agents.create_topic("gone", partitions=1, configs={})
    assert await client.add(t=[0], gone=[0]) == {("t", 0): 0, ("gone", 0): 0}
    await served.metadata.agents.delete_topic(gone.topic_id)
    assert [each.topic for each in (await described(served, "tx")).topics] == ["t"]
    assert await client.end(version=1) == 0


async def test_transactions_are_listed_with_their_filters(served: Served) -> None:
    clients = {name: served.client(name) for name in ("a-1", "a-2", "b")}
    for client in clients.values():
        await client.begin()
    await clients["a-1"].add(t=[0])
    await clients["b"].end(commit=False)

    async def names(**filters: Any) -> list[str]:
        answer = await listed(served, **filters)
        assert answer.error_code == 0
        return [each.transactional_id for each in answer.transaction_states]

    everything = (await listed(served, 0)).transaction_states
    assert [(each.transactional_id, each.transaction_state) for each in everything] == [
        ("a-1", "Ongoing"),
        ("a-2", "Empty"),
        ("b", "CompleteAbort"),
    ]
    assert [each.producer_id for each in everything] == [client.producer_id for client in clients.values()]
    assert await names(state_filters=["Ongoing", "CompleteAbort"]) == ["a-1", "b"]
    assert await names(producer_id_filters=[clients["a-2"].producer_id, 10**15]) == ["a-2"]
    assert (await names(duration_filter=0), await names(duration_filter=10**9)) == (["a-1"], [])
    assert await names(transactional_id_pattern="a-.") == ["a-1", "a-2"]
    assert await names(transactional_id_pattern="a") == [], "a pattern matches whole ids"
    assert await names(transactional_id_pattern="") == ["a-1", "a-2", "b"]
    odd = await listed(served, state_filters=["Ongoing", "nonsense", "ongoing"])
    assert odd.unknown_state_filters == ["nonsense", "ongoing"]
    assert [each.transactional_id for each in odd.transaction_states] == ["a-1"]
    assert (await listed(served, state_filters=["nonsense"])).transaction_states == []
    assert (await listed(served, transactional_id_pattern="(")).error_code == E.INVALID_REGULAR_EXPRESSION


async def test_producers_are_described_with_their_open_transactions(served: Served) -> None:
    client, done = served.client("open"), served.client("done")
    for each in (client, done):
        await each.begin()
        await served.records.write(each, served.partition_ids[0])
    await served.records.write(client, served.partition_ids[0])
    await done.end()
    (info,) = await served.metadata.transactions.transactions(["open"])

    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])])
    answer = await served.raw.call(request, DescribeProducersResponse, 0)

    (partition,) = answer.topics[0].partitions
    found = {
        each.producer_id: (each.current_txn_start_offset, each.coordinator_epoch) for each in partition.active_producers
    }
    assert found[client.producer_id] == (0, info.coordinator_epoch)
    assert found[done.producer_id] == (-1, -1)


async def test_an_operator_aborts_a_transaction_that_hangs_as_a_whole(served: Served) -> None:
    client = served.client()
    await client.begin()
    for partition_id in served.partition_ids:
        await served.records.write(client, partition_id)
    assert await aborted(served, client, commit=True) == [E.INVALID_REQUEST]
    assert await aborted(served, client, epoch=7) == [E.INVALID_PRODUCER_EPOCH]
    assert await aborted(served, client, epoch=0, nope=[0]) == [E.UNKNOWN_TOPIC_OR_PARTITION]
    assert await served.state() is TransactionState.ONGOING

    assert await aborted(served, client, t=[0, 5]) == [0, E.UNKNOWN_TOPIC_OR_PARTITION]

    assert (await served.stable(), await served.stable(1)) == ((2, 2), (2, 2))
    assert await aborted(served, client) == [E.INVALID_PRODUCER_EPOCH]
    assert await client.end() == E.INVALID_TXN_STATE, "as Kafka: it ended the other way"
    client.epoch = 1
    assert await aborted(served, client) == [E.INVALID_TXN_STATE]
    stranger = TransactionalClient(served.raw, "tx", 10**12, 0)
    assert await aborted(served, stranger) == [E.INVALID_PRODUCER_ID_MAPPING]


async def test_a_transaction_is_not_aborted_for_a_partition_that_is_not_in_it(served: Served) -> None:
    client = served.client()
    await client.begin()
    await served.records.write(client, served.partition_ids[0])
    assert await aborted(served, client, t=[1]) == [E.INVALID_TXN_STATE]
    assert await served.state() is TransactionState.ONGOING


# ---- rights


def allow(kind: ResourceType, name: str, operation: Operation) -> Acl:
    return an_acl(resource_type=kind, resource_name=name, operation=operation, principal=ANONYMOUS)


async def test_rights_to_ids_topics_groups_and_the_cluster(start_agent: StartAgent, dial: Dial) -> None:
    served = await serve(await start_agent(acl_mode="on"), dial)
    change = served.running.agent.authorizer.change
    client = served.client()
    no = E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    made: InitProducerIdResponse = await client.init()
    assert (made.error_code, await client.join("g"), await client.end()) == (no, no, no)
    assert await client.add(t=[0]) == {("t", 0): no}
    assert ((await described(served, "tx")).error_code, (await listed(served)).transaction_states) == (no, [])

    change(added=[allow(ResourceType.TRANSACTIONAL_ID, "tx", Operation.WRITE)])
    assert (await client.init()).error_code == 0
    assert await client.join("g") == E.GROUP_AUTHORIZATION_FAILED
    assert await client.add(t=[0]) == {("t", 0): E.TOPIC_AUTHORIZATION_FAILED}
    change(added=[allow(ResourceType.TOPIC, "t", Operation.WRITE), allow(ResourceType.GROUP, "g", Operation.READ)])
    assert await client.add(t=[0], secret=[0]) == {
        ("t", 0): E.OPERATION_NOT_ATTEMPTED,
        ("secret", 0): E.TOPIC_AUTHORIZATION_FAILED,
    }
    assert (await client.join("g"), await client.add(t=[0])) == (0, {("t", 0): 0})
    state = await described(served, "tx")
    assert (state.error_code, [each.topic for each in state.topics]) == (0, ["t"]), "WRITE includes DESCRIBE"

    assert await aborted(served, client) == [E.CLUSTER_AUTHORIZATION_FAILED]
    change(added=[allow(ResourceType.CLUSTER, CLUSTER_NAME, Operation.ALTER)])
    assert await aborted(served, client) == [0]
    change(added=[allow(ResourceType.CLUSTER, CLUSTER_NAME, Operation.CLUSTER_ACTION)])
    assert await aborted(served, client) == [E.INVALID_PRODUCER_EPOCH]
