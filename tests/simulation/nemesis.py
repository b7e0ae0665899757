"""Trouble from outside: the nemesis, and a user that deletes and creates topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from metadata.contract.leases import ALIVE_MS
from tests.simulation.access.principals import SUPER_USER
from tests.simulation.clients import Client, Line, LineLostError
from tests.simulation.faults import Fault
from tests.simulation.services import finish
from wire.error_codes import ErrorCode
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState

if TYPE_CHECKING:
    from tests.simulation.fleet import Seat
    from tests.simulation.world import World

LEASE_AND_MORE_MS = (10_500, 12_500)
TWINS_MAX = 12
"""The most sleeps per run. Each sleep makes the run longer, so a run without other faults might never end; and as long
as it lasts all processes compete for one address.
"""


class Nemesis:
    """Strikes one agent or one store at a time, now and then."""

    def __init__(self, world: World, *, has_janitor: bool) -> None:
        self._world = world
        rng = world.faults.rng
        ways: list[tuple[float, Callable[[], None]]] = [
            (0.6, self._crash),
            (0.4, self._sleep_short),
            (0.15, self._sleep_long),
            (0.3, self._twin),
            (0.35, self._drain),
            (0.25, self._metadata_down),
            (0.25, self._store_down),
            (0.35 if world.stores.has_second else 0.0, self._second_down),
            # Rows of aborted keys are kept for a day: with a janitor at work there is nothing old enough to forget.
            (0.0 if has_janitor else 0.8, self._forget_rows),
        ]
        self._ways = [way for likely, way in ways if rng.random() < likely]
        self._twins_left = TWINS_MAX

    async def run(self) -> None:
        faults = self._world.faults
        while self._ways:
            await asyncio.sleep(faults.between(50, 900) / 1000)
            if faults.are_over:
                return
            if not faults.are_held_back:
                faults.rng.choice(self._ways)()

    def _seat(self) -> Seat:
        return self._world.faults.rng.choice(self._world.seats)

    def _crash(self) -> None:
        self._seat().crash_within(int(self._world.faults.between(0, 150)))

    def _sleep_short(self) -> None:
        self._seat().sleep(Fault.FREEZE, self._world.faults.between(100, 2500))

    def _sleep_long(self) -> None:
        self._ways.remove(self._sleep_long)  # once is enough: it takes as long as three other runs
        self._seat().sleep(Fault.FREEZE_PAST_LEASE, self._world.faults.between(*LEASE_AND_MORE_MS))

    def _twin(self) -> None:
        self._twins_left -= 1
        if not self._twins_left:
            self._ways.remove(self._twin)
        self._seat().replace_while_asleep(self._world.faults.between(0.5, 2) * ALIVE_MS)

    def _drain(self) -> None:
        self._seat().drain()

    def _metadata_down(self) -> None:
        self._take_away(Fault.METADATA_DOWN)

    def _store_down(self) -> None:
        self._take_away(Fault.STORE_DOWN)

    def _second_down(self) -> None:
        self._take_away(Fault.SECOND_DOWN)

    def _take_away(self, fault: Fault) -> None:
        duration_ms = self._world.faults.between(100, 1500)
        self._world.note("nemesis", str(fault), ms=int(duration_ms))
        self._world.faults.take_away(fault, self._world.loop.now_ms + duration_ms)

    def _forget_rows(self) -> None:
        """A user changes a topic, and the row is gone before all agents have seen it: they start cold."""
        world = self._world
        topic = next(iter(world.server.database.topics.values()))
        retention_ms = str(int(world.faults.between(86_400_000, 864_000_000)))
        finish(world.server.agents.alter_configs(topic.topic_id, {"retention.ms": retention_ms}))
        if finish(world.server.deletion.forget_rows(before_ms=world.server_clock.wall_ms() + 1)):
            world.faults.count(Fault.ROWS_FORGOTTEN)


class TopicAdmin(Client):
    """Deletes and creates one topic again and again; at the end the topic exists."""

    principal = SUPER_USER

    def __init__(self, world: World, topic: str) -> None:
        super().__init__(world, "admin")
        self._topic = topic

    async def run(self) -> None:
        exists = True
        line = await self.dial()
        while not (self.world.faults.are_over and exists):
            await self.pause(50, 900)
            if exists:
                error = await self._ask(line, self._deletion(), DeleteTopicsResponse)
            else:
                topic = CreatableTopic(name=self._topic, num_partitions=1, replication_factor=-1)
                error = await self._ask(
                    line, CreateTopicsRequest(topics=[topic], timeout_ms=1000), CreateTopicsResponse
                )
            wanted = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if exists else ErrorCode.TOPIC_ALREADY_EXISTS
            # A late agent may not know the change; a call whose answer was lost may have been carried out.
            if error in (ErrorCode.NONE, wanted):
                self.world.faults.count(Fault.TOPIC_DELETED if exists else Fault.TOPIC_CREATED)
                exists = not exists
            if error is None or self.rng.random() < 0.5:
                line.close()
                line = await self.dial()
        line.close()

    def _deletion(self) -> DeleteTopicsRequest:
        if self.versions[20] >= 6:
            return DeleteTopicsRequest(topics=[DeleteTopicState(name=self._topic)], timeout_ms=1000)
        return DeleteTopicsRequest(topic_names=[self._topic], timeout_ms=1000)

    async def _ask(
        self,
        line: Line,
        request: DeleteTopicsRequest | CreateTopicsRequest,
        response: type[DeleteTopicsResponse | CreateTopicsResponse],
    ) -> ErrorCode | None:
        try:
            answer = await line.call(request, response)
        except LineLostError:
            return None
        results = answer.responses if isinstance(answer, DeleteTopicsResponse) else answer.topics
        error = ErrorCode(results[0].error_code)
        self.facts("is told", topic=self._topic, error=error.name)
        if error in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
            self.world.violation(f"{self.name} was denied topic {self._topic}, and is a super user")
        return error
