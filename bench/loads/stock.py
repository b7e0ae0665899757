"""Producers as they come: nothing is set but the broker's address.

`python -m bench.loads.stock` reads one job as JSON on stdin and prints one line of JSON, the result. The program writes
as an ordinary program would, one call per record, as fast as the client takes them; a client whose memory is full makes
it wait. The rate counts the records that were acknowledged between the end of the warm-up and the deadline. A second
part, `flush`, writes a number of records and waits for the last answer: the time of a whole small program.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
from aiokafka import AIOKafkaProducer
from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError

ROOT = Path(__file__).parents[2]
CHILD_TIMEOUT_S = 600.0
WARMUP_S = 2.0
"""The first rounds of a connection; an agent learns from them which clients wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StockJob:
    client: str
    """A name in CLIENTS."""
    bootstrap: str
    topic: str
    record_bytes: int
    seconds: float = 0.0
    """The measured time, after WARMUP_S; 0: write `records` and flush."""
    records: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StockResult:
    acked: int
    """Records acknowledged within the measured time."""
    seconds: float
    cpu_s: float
    """The client's, from the start of the process."""
    error: str = ""
    """The client's own error; the rate up to then still counts."""


def run_stock(job: StockJob) -> StockResult:
    """Run the job in a process of its own. Raises RuntimeError if the program fails."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.loads.stock"],
        input=json.dumps(asdict(job)).encode(),
        stdout=subprocess.PIPE,
        cwd=ROOT,
        timeout=CHILD_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise RuntimeError(f"client {job.client} ended with {done.returncode}; its error stands above")
    return StockResult(**json.loads(done.stdout))


_open: list[object] = []
"""The producers of this process. None is closed, and none may be collected: each would first send what it holds."""

# ---- in the child ----------------------------------------------------------------------------------------------------


class Count:
    """Acknowledged records, and how many of them in the measured time."""

    def __init__(self, job: StockJob) -> None:
        self._job = job
        self.acked = 0
        self.errors: list[str] = []
        self.started_s = time.monotonic()
        self.deadline_s = self.started_s + (WARMUP_S + job.seconds if job.seconds else CHILD_TIMEOUT_S)
        self._before: int | None = None

    def ack(self, *_: object) -> None:
        self.acked += 1

    def fail(self, error: object) -> None:
        self.errors.append(repr(error))

    def goes_on(self, sent: int) -> bool:
        """Whether to send one more record."""
        now = time.monotonic()
        if self._before is None and now >= self.started_s + WARMUP_S:
            self._before = self.acked
        return now < self.deadline_s if self._job.seconds else sent < self._job.records

    def result(self, error: str = "") -> StockResult:
        seconds = time.monotonic() - self.started_s
        before = 0
        if self._job.seconds:
            seconds, before = seconds - WARMUP_S, self._before or 0
        return StockResult(
            acked=self.acked - before,
            seconds=seconds,
            cpu_s=time.process_time(),
            error=error or next(iter(self.errors), ""),
        )


def librdkafka(job: StockJob, **settings: object) -> StockResult:
    count = Count(job)

    def report(error: object, _: object) -> None:
        count.ack() if error is None else count.fail(error)

    producer: Any = confluent_kafka.Producer({"bootstrap.servers": job.bootstrap, "log_level": 0, **settings})
    _open.append(producer)
    value = os.urandom(job.record_bytes)
    sent = 0
    while count.goes_on(sent):
        try:
            producer.produce(job.topic, value, on_delivery=report)
            sent += 1
        except BufferError:
            producer.poll(0.005)
        producer.poll(0)
    if not job.seconds:
        producer.flush(CHILD_TIMEOUT_S)
    return count.result()


def kafka_python(job: StockJob, **settings: object) -> StockResult:
    count = Count(job)
    producer: Any = KafkaProducer(bootstrap_servers=job.bootstrap, **settings)
    _open.append(producer)
    value = os.urandom(job.record_bytes)
    sent = 0
    error = ""
    while count.goes_on(sent):
        future: Any = producer.send(job.topic, value)
        future.add_callback(count.ack)
        future.add_errback(count.fail)
        sent += 1
    if not job.seconds:
        try:
            producer.flush(60)
        except KafkaTimeoutError as failed:
            error = repr(failed)
    return count.result(error)


def aiokafka(job: StockJob, **settings: object) -> StockResult:
    # Not `asyncio.run`: that would wait for the producer's tasks.
    return asyncio.new_event_loop().run_until_complete(_aiokafka(job, settings))


async def _aiokafka(job: StockJob, settings: Mapping[str, Any]) -> StockResult:
    count = Count(job)

    def report(future: asyncio.Future[Any]) -> None:
        error = None if future.cancelled() else future.exception()
        count.ack() if error is None else count.fail(error)

    producer: Any = AIOKafkaProducer(bootstrap_servers=job.bootstrap, **settings)
    await producer.start()
    _open.append(producer)
    value = os.urandom(job.record_bytes)
    sent = 0
    while count.goes_on(sent):
        future: asyncio.Future[Any] = await producer.send(job.topic, value)
        future.add_done_callback(report)
        sent += 1
    if not job.seconds:
        await producer.flush()
    return count.result()


CLIENTS: Mapping[str, Callable[[StockJob], StockResult]] = {
    "aiokafka": aiokafka,
    "aiokafka, idempotent": lambda job: aiokafka(job, enable_idempotence=True),
    "kafka-python": kafka_python,
    "librdkafka": librdkafka,
    "librdkafka, idempotent": lambda job: librdkafka(job, **{"enable.idempotence": True}),
}


def main() -> None:
    job = StockJob(**json.loads(sys.stdin.readline()))
    print(json.dumps(asdict(CLIENTS[job.client](job))), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
