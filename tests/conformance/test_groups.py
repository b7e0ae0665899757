"""Consumer groups with ordinary clients, in cases that need more than one client: several kinds of client in one group
that outlives its agents, offsets that are set and deleted by hand, and joins that are held longer than a session.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import TopicPartition as KafkaPythonPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import GroupSubscribedToTopicError, NoError

from tests.conformance.aiokafka_client import Aiokafka
from tests.conformance.cluster import Cluster
from tests.conformance.confluent import Confluent
from tests.conformance.contract import TIMEOUT_S, Client, Live, Reading
from tests.conformance.frame_log import Call, FrameLog
from tests.conformance.kafka_python import KafkaPython
from tests.conformance.scenarios import (
    PARTITIONS,
    await_all,
    everywhere,
    live,
    places,
    shared,
    write_everywhere,
)
from tests.fixtures.agents import Dial, StartAgent
from tests.fixtures.faults import Processes, create_topic
from tests.fixtures.s3 import free_port
from tests.fixtures.waiting import wait_until
from wire.error_codes import ErrorCode
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from wire.messages.sync_group import SyncGroupResponse

KINDS: list[Client] = [Confluent(), Aiokafka(), KafkaPython()]
HELD_MS, SESSION_MS = 6_000, 2_000


@contextlib.contextmanager
def everybody(cluster: Cluster, topic: str, kinds: list[Client]) -> Iterator[list[Live]]:
    with contextlib.ExitStack() as stack:
        reading = Reading(topic=topic, group=topic)
        yield [stack.enter_context(live(kind, cluster, reading)) for kind in kinds]


def test_kinds_of_clients_share_a_group_whose_offsets_outlive_its_agents(cluster: Cluster) -> None:
    topic = cluster.topic(PARTITIONS)
    with everybody(cluster, topic, KINDS[:2]) as first:
        shared(first)
        await_all(first, write_everywhere(cluster, topic, 20))
        for member in first:
            member.commit()
    # when: the others come, and everything is restarted meanwhile
    cluster.processes.stop()
    cluster.start()
    write_everywhere(cluster, topic, 10)
    with everybody(cluster, topic, KINDS[1:]) as second:
        await_all(second, 10 * PARTITIONS)
        shared(second)
    assert places([*first, *second]) == everywhere(30)


def test_offsets_are_set_and_deleted_by_hand(cluster: Cluster) -> None:
    topic = cluster.topic(PARTITIONS)
    reading = Reading(topic=topic, group=topic)
    write_everywhere(cluster, topic, 10)
    admin, other = AdminClient({"bootstrap.servers": cluster.bootstrap}), None
    try:
        other = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
        place = KafkaPythonPartition(topic, 0)
        with live(Confluent(), cluster, reading) as member:
            await_all([member], 10 * PARTITIONS)
            member.commit()
            assert other.delete_group_offsets(topic, [place]) == {place: GroupSubscribedToTopicError}
        moved = [ConsumerGroupTopicPartitions(topic, [TopicPartition(topic, 1, 3)])]
        answer = admin.alter_consumer_group_offsets(moved)[topic].result(TIMEOUT_S)
        assert [each.error for each in answer.topic_partitions] == [None]
        assert other.delete_group_offsets(topic, [place]) == {place: NoError}
        found = contextlib.closing(Confluent().admin(cluster.bootstrap))
        with found as ours:
            assert ours.committed(topic, topic) == {1: 3, 2: 10, 3: 10}
        with live(KafkaPython(), cluster, reading) as member:
            await_all([member], 17)
        assert places([member]) == sorted([*((0, at) for at in range(10)), *((1, at) for at in range(3, 10))])
    finally:
        if other is not None:
            other.close()


# ---- joins that are held -------------------------------------------------------------------------------------------


def test_joins_that_are_held_for_longer_than_a_session_end_no_session(processes: Processes) -> None:
    # given: an agent that clients reach through a log of frames, and a first rebalance three sessions long
    port = free_port()
    agent = processes.add(
        listen=f"127.0.0.1:{port}",
        advertised_host="127.0.0.2",
        group_initial_rebalance_delay_ms=HELD_MS,
        group_min_session_timeout_ms=SESSION_MS,
    )
    agent.start()
    create_topic(agent.address, "t", partitions=PARTITIONS)
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(FrameLog(f"127.0.0.2:{port}", ("127.0.0.1", port)))
        groups: list[list[Live]] = []
        for kind in KINDS:
            reading = Reading(topic="t", group=kind.name, session_ms=SESSION_MS, heartbeat_ms=200)
            consumer = partial(kind.consumer, f"127.0.0.2:{port}", reading)
            groups.append([Live(consumer), Live(consumer)])
            stack.callback(groups[-1][0].close)
            stack.callback(groups[-1][1].close)
        for group in groups:
            shared(group)
        before = len(log.of("Heartbeat"))
        wait_until(lambda: len(log.of("Heartbeat")) > before + 30, TIMEOUT_S)
        # nobody was thought to have gone: a client whose session ended learns it from its next request
        calls = [*log.of("JoinGroup"), *log.of("SyncGroup"), *log.of("Heartbeat")]
        assert errors_of(calls) >= {ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED}
        assert ErrorCode.UNKNOWN_MEMBER_ID not in errors_of(calls)
        for group in groups:
            shared(group)
    # then: a join is sent once for a member id and once to stay, and now and then once more
    joins, beats = log.of("JoinGroup"), log.of("Heartbeat")
    held = [call for call in joins if call.seconds > HELD_MS / 1500]
    assert 2 * len(KINDS) <= len(held) <= 3 * len(KINDS) and len(joins) <= 3 * len(held)
    # and: heartbeats share the connection of the joins, so they would wait behind a held one; none is sent meanwhile
    assert {call.connection for call in beats} == {call.connection for call in held}
    for call in held:
        meanwhile = [beat for beat in beats if beat.connection == call.connection and call.covers(beat.asked_s)]
        assert meanwhile == []


def errors_of(calls: list[Call]) -> set[int]:
    """The errors of the answers that came."""
    answers = [call.answer_message() for call in calls if call.answer]
    return {
        answer.error_code
        for answer in answers
        if isinstance(answer, HeartbeatResponse | JoinGroupResponse | SyncGroupResponse)
    }


async def test_a_heartbeat_behind_ones_own_held_join_is_answered_as_a_members(
    start_agent: StartAgent, dial: Dial
) -> None:
    """As in Kafka, a connection's requests wait for one another. A request that waits behind a held join ends no
    session."""
    running = await start_agent(group_initial_rebalance_delay_ms=HELD_MS, group_min_session_timeout_ms=SESSION_MS)
    raw = await dial.raw(running.address)

    def join(member_id: str) -> JoinGroupRequest:
        protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
        return JoinGroupRequest(
            group_id="g",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=60_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=protocols,
        )

    named = await raw.call(join(""), JoinGroupResponse, 5)
    assert named.error_code == ErrorCode.MEMBER_ID_REQUIRED
    await raw.begin(join(named.member_id), 5)
    await raw.begin(HeartbeatRequest(group_id="g", generation_id=1, member_id=named.member_id), 4)
    started = asyncio.get_running_loop().time()
    joined = await raw.answer(JoinGroupResponse, 5)
    assert (joined.error_code, joined.generation_id, joined.member_id) == (ErrorCode.NONE, 1, named.member_id)
    assert asyncio.get_running_loop().time() - started > 2 * SESSION_MS / 1000
    beat = await raw.answer(HeartbeatResponse, 4)
    assert beat.error_code == ErrorCode.NONE
