"""Readers that watch the whole time: librdkafka, and some by hand that ask another agent each time. And the crew:
everything that is done by hand, in one event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import Consumer, TopicPartition

from runtime.errors import SiltstoneError
from tests.fixtures.waiting import wait_until
from tests.integration.faults.transactions.asking import Asking
from tests.integration.faults.transactions.fetching import COMMITTED, fetch, records_of
from tests.integration.faults.transactions.first_protocol import COMMON
from tests.integration.faults.transactions.history import Place, Seen, View
from tests.integration.faults.transactions.plan import Plan

T = TypeVar("T")
END_S_MAX = 60
AGAIN_S = 0.2
CLOSED_S = 0.1
"""For transports that were aborted: an event loop closes them in its next turns."""


class Crew:
    """A thread with an event loop. Its tasks run until they end by themselves, or the crew is left."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="crew", daemon=True)
        self._tasks: list[Future[Any]] = []

    def __enter__(self) -> Crew:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        self.run(self._gather())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END_S_MAX)
        self._loop.close()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._tasks.append(future)
        return future

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = END_S_MAX) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    async def _gather(self) -> None:
        own = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not own]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(CLOSED_S)


class HandReader:
    """Asks an agent of chance each time, so that it sees at once if one of them shows what it should not."""

    def __init__(self, plan: Plan, name: str, chance: random.Random, *, isolation: int) -> None:
        self.views = plan.history.watch(name, plan.places, committed=isolation == COMMITTED)
        self._asking, self._isolation = Asking(plan.addresses, chance), isolation

    async def run(self) -> None:
        while True:
            offsets = {place: view.end for place, view in self.views.items()}
            for place, part in (await fetch(self._asking, offsets, isolation=self._isolation)).items():
                view = self.views[place]
                shown, view.end = records_of(part, view.end)
                now_s = time.monotonic()
                view.seen += [Seen(offset, value, now_s) for offset, value in shown]
            await asyncio.sleep(0.05)


async def read_all(plan: Plan, address: str, ends: Mapping[Place, int]) -> None:
    """Everything that is committed, from the start, at one agent. A busy one may be without a lease for a moment."""
    asking = Asking(plan.addresses, random.Random(0))
    views = plan.history.watch(f"afterwards, {address}", plan.places)
    while behind := {place: view.end for place, view in views.items() if view.end < ends[place]}:
        try:
            found = await fetch(asking, behind, isolation=COMMITTED, address=address)
        except SiltstoneError:
            await asyncio.sleep(AGAIN_S)
            continue
        for place, part in found.items():
            shown, views[place].end = records_of(part, behind[place])
            views[place].seen += [Seen(offset, value, time.monotonic()) for offset, value in shown]


class LibrdkafkaReader:
    """Leaves out what is aborted by librdkafka's own code."""

    def __init__(self, plan: Plan, name: str) -> None:
        self.views = plan.history.watch(name, plan.places)
        self._plan, self._name = plan, name
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(END_S_MAX)

    def _run(self) -> None:
        consumer = Consumer(
            {
                **COMMON,
                "bootstrap.servers": self._plan.bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "check.crcs": True,
                "fetch.wait.max.ms": 200,
            }
        )
        try:
            consumer.assign([TopicPartition(*place, 0) for place in self.views])
            while not self._stopping.is_set():
                message = consumer.poll(0.2)
                if message is None or message.error():
                    continue
                topic, partition, offset, value = (
                    message.topic(),
                    message.partition(),
                    message.offset(),
                    message.value(),
                )
                assert topic is not None and partition is not None and offset is not None and value is not None
                view = self.views[topic, partition]
                view.seen.append(Seen(offset, value, time.monotonic()))
                view.end = offset + 1
        finally:
            consumer.close()


def until_at_end(views: Mapping[Place, View], lasts: Mapping[Place, int]) -> None:
    """Until the reader has passed the last committed records."""

    def behind() -> list[str]:
        return [f"{view.reader} is at {view.end} of {at}" for at, view in views.items() if view.end <= lasts[at]]

    wait_until(lambda: not behind(), END_S_MAX, lambda: f"{behind()}, the last records are at {lasts}")
