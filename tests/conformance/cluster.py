"""Two agents in two zones as processes on a real Postgres, and a scenario's way to set up topics, records and groups
without its client, through this project's own client.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Mapping, Sequence

from siltstone.kafka.client import KafkaError, connected
from tests.conformance.contract import TIMEOUT_S, Sent
from tests.fixtures.faults import AgentProcess, Processes, in_thread
from tests.fixtures.waiting import wait_until
from wire.batch import iter_headers
from wire.error_codes import ErrorCode
from wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from wire.records import NewRecord, build_batch

ZONES = ("a", "b")
SETTINGS = {"group_initial_rebalance_delay_ms": 300, "group_min_session_timeout_ms": 1_000}


class Cluster:
    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        for zone in ZONES:
            processes.add(agent_zone=zone, **SETTINGS)
        self.start()
        self._numbers = itertools.count()

    def start(self) -> None:
        """Wait until all agents know one another. Before that, two agents may both take themselves for a group's
        coordinator, and a fenced agent ignores a member that leaves."""
        for agent in self.processes.agents:
            agent.begin_start()
        for agent in self.processes.agents:
            agent.await_ready()
        wait_until(lambda: all(map(self._knows_all, self.processes.agents)), TIMEOUT_S)

    def _knows_all(self, agent: AgentProcess) -> bool:
        async def ask() -> int:
            # A client without a zone is told the agents of all zones.
            async with connected(agent.address) as client:
                return len((await client.metadata([])).brokers)

        return in_thread(ask()) == len(self.processes.agents)

    @property
    def bootstrap(self) -> str:
        return self.processes.bootstrap

    def name(self) -> str:
        return f"t{next(self._numbers)}-{uuid.uuid4().hex[:6]}"

    def topic(self, partitions: int = 1, configs: Mapping[str, str] | None = None, *, name: str = "") -> str:
        """Create it, and wait until all running agents know it: some clients retry for 0.3 s only."""
        name = name or self.name()

        async def create() -> None:
            async with connected(self.bootstrap) as client:
                await client.create_topic(name, partitions=partitions, configs=configs or {})

        in_thread(create())
        running = [agent for agent in self.processes.agents if agent.is_running]
        wait_until(lambda: all(self._knows(agent, name) for agent in running), TIMEOUT_S)
        return name

    def _knows(self, agent: AgentProcess, topic: str) -> bool:
        async def ask() -> bool:
            async with connected(agent.address) as client:
                [found] = (await client.metadata([topic])).topics
                return found.error_code == ErrorCode.NONE

        return in_thread(ask())

    def topic_again(self, name: str) -> None:
        """Create the topic after it was deleted; a client that asked for it meanwhile may have created it already."""
        try:
            self.topic(name=name)
        except KafkaError as error:
            if error.name != "TOPIC_ALREADY_EXISTS":
                raise

    def delete(self, topic: str) -> None:
        async def delete() -> None:
            async with connected(self.bootstrap) as client:
                await client.delete_topic(topic)

        in_thread(delete())

    def write(self, topic: str, records: Sequence[Sent], *, partition: int = 0, at_once: int = 10) -> int:
        """Write in batches of a few records. Returns the offset of the first."""
        now_ms = int(time.time() * 1000)

        async def write() -> int:
            async with connected(self.bootstrap) as client:
                bases: list[int] = []
                for start in range(0, len(records), at_once):
                    new = [
                        NewRecord(now_ms if each.timestamp_ms is None else each.timestamp_ms, each.key, each.value)
                        for each in records[start : start + at_once]
                    ]
                    bases.append(await client.produce(topic, partition, build_batch(new)))
                return bases[0]

        return in_thread(write())

    def producer_ids(self, topic: str) -> set[int]:
        async def read() -> set[int]:
            async with connected(self.bootstrap) as client:
                fetched = await client.fetch(topic, 0, 0, max_wait_ms=5_000, min_bytes=1)
                assert len(fetched.records)
                return {header.producer_id for _, header in iter_headers(fetched.records)}

        return in_thread(read())

    def delete_records(self, topic: str, before: int) -> None:
        partitions = [DeleteRecordsPartition(partition_index=0, offset=before)]
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic, partitions=partitions)], timeout_ms=10_000
        )

        async def delete() -> None:
            async with connected(self.bootstrap) as client:
                answer = await client.call(request, DeleteRecordsResponse)
                assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE

        in_thread(delete())

    def rebalances(self) -> float:
        return self.count("group_rebalances_total")

    def count(self, metric: str, **labels: str) -> float:
        return sum(agent.metric(metric, **labels) for agent in self.processes.agents)
