"""librdkafka as the load: each job runs in a process of its own, so that its CPU is not taken for a broker's.

`python -m bench.loads.clients KIND` reads one job as JSON on stdin and prints one line of JSON, the result. Jobs work
with any broker. Rates are measured between the end of a warm-up and the deadline; what is still queued then is dropped.
A producer's payload is made once. Records carry no keys and go round robin over the partitions, as evenly spread keys
would. Latency is sampled at about one record in 64 KiB, from the call of `produce` to the delivery report, so under
full load it holds the wait in the client's own queue of `queue_bytes`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.loads.jobs import ConsumeJob, ConsumeResult, ProduceJob, ProduceResult, TailJob, TailResult, Times

ROOT = Path(__file__).parents[2]
CHILD_TIMEOUT_S = 600.0
SAMPLE_BYTES = 64 << 10
POLL_S = 0.001
"""Time between two looks for delivery reports, where each is timed."""


def _ignore(error: object) -> None:
    """Do nothing: delivery reports and messages report permanent errors too."""


QUIET: Mapping[str, Any] = {"log_level": 0, "error_cb": _ignore}
"""librdkafka also writes to stderr what it reports to its callers; this keeps it silent."""


# ---- for the benchmark -----------------------------------------------------------------------------------------------


def create_topic(
    bootstrap: str, topic: str, partitions: int, configs: Mapping[str, str] | None = None, *, replicas: int = 1
) -> None:
    """Create a topic and wait until the client sees all partitions. Raises the broker's error."""
    admin: Any = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    new = NewTopic(topic, num_partitions=partitions, replication_factor=replicas, config=dict(configs or {}))
    admin.create_topics([new], operation_timeout=30)[topic].result(30)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = admin.list_topics(topic, timeout=10).topics[topic]
        if len(found.partitions) == partitions and all(each.leader >= 0 for each in found.partitions.values()):
            return
        time.sleep(0.05)
    raise RuntimeError(f"{topic} has no leaders after 30 s")


def run_produce(job: ProduceJob) -> ProduceResult:
    return ProduceResult(**_run("produce", job))


def run_consume(job: ConsumeJob) -> ConsumeResult:
    return ConsumeResult(**_run("consume", job))


def run_tail(write: TailJob, read: TailJob) -> TailResult:
    """Writer and reader at once, a process each. Raises RuntimeError unless every record written was read."""
    with _child("tail-read", read) as reader:
        assert reader.stdout is not None
        if reader.stdout.readline() != b"ready\n":
            raise RuntimeError("the reader of the tail did not start; its error stands above")
        written = _run("tail-write", write)
        result = TailResult(**_answer("tail-read", reader))
    if result.records != written["records"]:
        raise RuntimeError(f"{written['records']} records were written in the measured time and {result.records} read")
    return replace(result, acked=Times(**written["acked"]))


def run_idle(job: TailJob) -> None:
    """Raises RuntimeError if records were read from empty partitions."""
    if found := _run("idle", job)["records"]:
        raise RuntimeError(f"{found} records came out of empty partitions")


def _run(kind: str, job: object) -> dict[str, Any]:
    with _child(kind, job) as process:
        return _answer(kind, process)


@contextmanager
def _child(kind: str, job: Any) -> Generator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-m", "bench.loads.clients", kind]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(job)).encode() + b"\n")
        process.stdin.flush()
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _answer(kind: str, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    output, _ = process.communicate(timeout=CHILD_TIMEOUT_S)
    if process.returncode != 0:
        raise RuntimeError(f"client {kind} ended with {process.returncode}; its error stands above")
    return json.loads(output)


# ---- in the child ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Samples:
    """Delivery reports of sampled records."""

    from_s: float
    """Reports before this are not counted."""
    times_ms: list[float] = field(default_factory=list[float])
    errors: list[str] = field(default_factory=list[str])
    closed: bool = False

    def report(self, sent_s: float, error: object, _: object) -> None:
        if self.closed:
            return
        if error is not None:
            self.errors.append(str(error))
        elif sent_s >= self.from_s:
            self.times_ms.append((time.monotonic() - sent_s) * 1000)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The nearest rank: the least value that `share` of all values do not exceed; None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def producer_config(job: ProduceJob) -> dict[str, Any]:
    config = {
        **QUIET,
        **job.security,
        "bootstrap.servers": job.bootstrap,
        "enable.idempotence": job.idempotent,
        "acks": "all",
        "linger.ms": job.linger_ms,
        "batch.size": job.batch_bytes,
        "batch.num.messages": 1_000_000,
        "message.max.bytes": max(1_000_000, job.batch_bytes),
        "queue.buffering.max.kbytes": job.queue_bytes >> 10,
        "queue.buffering.max.messages": 10_000_000,
        "topic.metadata.refresh.interval.ms": 10_000,
    }
    if job.client_id:
        config["client.id"] = job.client_id
    if job.in_flight is not None:
        config["max.in.flight.requests.per.connection"] = job.in_flight
    return config


def produce(job: ProduceJob) -> ProduceResult:
    producer: Any = confluent_kafka.Producer(producer_config(job))
    started = time.monotonic()
    measured_from = started if job.records else started + job.warmup_s
    samples = Samples(measured_from)
    sent, acked_before = _send(job, producer, samples, started, measured_from)
    if job.records:
        producer.flush(CHILD_TIMEOUT_S)
    producer.poll(0)
    # What is neither queued nor in flight is answered: cheaper than a delivery report for each record.
    acked = sent - len(producer)
    seconds = time.monotonic() - measured_from
    samples.closed = True
    # Requests on their way may still be stored; only the queue is dropped.
    producer.purge(in_queue=True, in_flight=False)
    producer.flush(30)
    if samples.errors:
        raise RuntimeError(f"{len(samples.errors)} sampled records failed, the first with {samples.errors[0]}")
    stored = _stored_records(job)
    # The broker's own count must agree, or the rate above would be one of lost records.
    if not acked <= stored <= sent:
        raise RuntimeError(f"{stored} records are stored, {acked} were acknowledged, {sent} sent")
    return ProduceResult(
        mb_per_s=(acked - acked_before) * job.record_bytes / 1e6 / seconds,
        acked_bytes=stored * job.record_bytes,
        p50_ms=percentile(samples.times_ms, 0.5),
        p99_ms=percentile(samples.times_ms, 0.99),
        cpu_ms_per_mb=time.process_time() * 1000 / (stored * job.record_bytes / 1e6) if stored else None,
    )


def _send(job: ProduceJob, producer: Any, samples: Samples, started: float, measured_from: float) -> tuple[int, int]:
    """Records sent by the deadline (or all requested ones), and records acknowledged when the warm-up ended."""
    payload = os.urandom(job.record_bytes)
    every = max(1, SAMPLE_BYTES // job.record_bytes)
    deadline = measured_from + (CHILD_TIMEOUT_S if job.records else job.seconds)
    sent = acked_before = 0
    warm = bool(job.records)
    while (now := time.monotonic()) < deadline and (not job.records or sent < job.records):
        if not warm and now >= measured_from:
            producer.poll(0)
            warm, acked_before = True, sent - len(producer)
        if job.rate_mb_per_s and sent * job.record_bytes > (now - started) * job.rate_mb_per_s * 1e6:
            producer.poll(0.002)
            continue
        try:
            # One callback in `every` records: a callback for each would measure Python and not the broker.
            sampled = partial(samples.report, now)
            producer.produce(job.topic, payload, partition=sent % job.partitions, on_delivery=sampled)
            sent += 1
            for _ in range(min(every, job.records - sent + 1 if job.records else every) - 1):
                producer.produce(job.topic, payload, partition=sent % job.partitions)
                sent += 1
        except BufferError:
            producer.poll(0.005)
        producer.poll(0)
    return sent, acked_before


def _stored_records(job: ProduceJob) -> int:
    """The brokers' own count: the sum of all high watermarks of the topic, which was empty."""
    consumer: Any = confluent_kafka.Consumer(
        {**QUIET, **job.security, "bootstrap.servers": job.bootstrap, "group.id": "watermarks"}
    )
    try:
        partitions = [confluent_kafka.TopicPartition(job.topic, number) for number in range(job.partitions)]
        return sum(consumer.get_watermark_offsets(each, timeout=30)[1] for each in partitions)
    finally:
        consumer.close()


def _consumer(bootstrap: str, topic: str, partitions: int, offset: int, **more: Any) -> Any:
    consumer = confluent_kafka.Consumer(
        {
            **QUIET,
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            **more,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, number, offset) for number in range(partitions)])
    return consumer


def _at_hand(consumer: Any, count: int, timeout_s: float) -> list[Any]:
    """The messages at hand as soon as there is one: `consume` alone would wait for all `count`, or the whole time."""
    first = consumer.poll(timeout_s)
    return [] if first is None else [first, *consumer.consume(count - 1, 0)]


def consume(job: ConsumeJob) -> ConsumeResult:
    started = time.monotonic()
    config: dict[str, Any] = {
        **job.security,
        "fetch.message.max.bytes": 2 << 20,
        "queued.max.messages.kbytes": 64 << 10,
        "check.crcs": False,
        "isolation.level": job.isolation,
    }
    config |= {"client.id": job.client_id} if job.client_id else {}
    config |= {"enable.auto.commit": True} if job.commits else {}
    consumer = _consumer(job.bootstrap, job.topic, job.partitions, confluent_kafka.OFFSET_BEGINNING, **config)
    read = first_read = 0
    first_s = last_s = started
    while read < job.records:
        messages = _at_hand(consumer, 10_000, 0.1)
        now = time.monotonic()
        if messages:
            if messages[0].error() is not None or messages[-1].error() is not None:
                raise RuntimeError(f"consumer: {messages[0].error() or messages[-1].error()}")
            if not read:
                first_s, first_read = now, len(messages)
            read += len(messages)
            last_s = now
        elif now - started > job.timeout_s:
            raise RuntimeError(f"{read} of {job.records} records after {job.timeout_s:.0f} s")
    read_bytes = read * job.record_bytes
    cpu_ms = time.process_time() * 1000
    consumer.close()
    return ConsumeResult(
        mb_per_s=(read - first_read) * job.record_bytes / 1e6 / (last_s - first_s)
        if last_s > first_s
        else float("nan"),
        read_bytes=read_bytes,
        cpu_ms_per_mb=cpu_ms / (read_bytes / 1e6),
        first_ms=(first_s - started) * 1000,
    )


def tail_write(job: TailJob) -> dict[str, Any]:
    """Each record carries the machine's clock; 0 during the warm-up."""
    config = {**QUIET, "bootstrap.servers": job.bootstrap, "client.id": job.client_id, "linger.ms": 5, "acks": "all"}
    config["enable.idempotence"] = job.idempotent
    producers: list[Any] = [confluent_kafka.Producer(config) for _ in range(job.writers)]
    padding = os.urandom(job.record_bytes - 8)
    started = time.monotonic()
    samples = Samples(started + job.warmup_s)
    interval = 1 / (job.records_per_s * job.writers)
    counted, number = 0, 0
    while (due := started + number * interval) < started + job.warmup_s + job.seconds:
        _poll_until(producers, due)
        writer = number % job.writers
        measured = due >= started + job.warmup_s
        stamp = time.monotonic_ns() if measured else 0
        report = partial(samples.report, time.monotonic() if measured else 0.0)
        producers[writer].produce(job.topic, stamp.to_bytes(8, "big") + padding, partition=writer, on_delivery=report)
        counted += measured
        number += 1
    # Reports come one by one to a writer that goes on; `flush` of one producer would hold up those of the others.
    deadline = time.monotonic() + 30
    while any(map(len, producers)) and time.monotonic() < deadline:
        _poll_until(producers, time.monotonic() + POLL_S)
    for number, producer in enumerate(producers):
        # An empty stamp of all ones marks the end of a partition.
        producer.produce(job.topic, b"\xff" * 8, partition=number, on_delivery=partial(samples.report, 0.0))
        producer.flush(30)
    if samples.errors:
        raise RuntimeError(f"{len(samples.errors)} records were not stored, the first: {samples.errors[0]}")
    return {"records": counted, "acked": asdict(_times(samples.times_ms))}


def _poll_until(producers: Sequence[Any], until: float) -> None:
    """Delivery reports are made while somebody polls."""
    while True:
        for producer in producers:
            producer.poll(0)
        left = until - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, POLL_S))


def _times(times_ms: Sequence[float]) -> Times:
    return Times(
        p50_ms=percentile(times_ms, 0.5), p99_ms=percentile(times_ms, 0.99), max_ms=max(times_ms, default=None)
    )


def tail_read(job: TailJob) -> TailResult:
    offset = confluent_kafka.OFFSET_BEGINNING  # the topic is empty; a look-up of the end could come after a record
    config: dict[str, Any] = {"client.id": job.client_id}
    config |= {"enable.auto.commit": True, "auto.commit.interval.ms": 1_000} if job.commits else {}
    consumer = _consumer(job.bootstrap, job.topic, job.writers, offset, **config)
    # Connects and fetches once, so that the first stamped record does not wait for that.
    consumer.consume(1, 1.0)
    print("ready", flush=True)
    times_ms: list[float] = []
    ended = 0
    deadline = time.monotonic() + job.warmup_s + job.seconds + 60
    while ended < job.writers:
        messages = _at_hand(consumer, 1_000, 0.05)
        now = time.monotonic_ns()
        for message in messages:
            if message.error() is not None:
                raise RuntimeError(f"consumer: {message.error()}")
            stamp = message.value()[:8]
            if stamp == b"\xff" * 8:
                ended += 1
            elif written_ns := int.from_bytes(stamp, "big"):
                times_ms.append((now - written_ns) / 1e6)
        if not messages and time.monotonic() > deadline:
            raise RuntimeError(f"{ended} of {job.writers} writers were read to their end")
    consumer.close()
    return TailResult(
        records=len(times_ms),
        **asdict(_times(times_ms)),
    )


def idle(job: TailJob) -> dict[str, int]:
    """A reader of partitions in which nothing happens."""
    consumer = _consumer(
        job.bootstrap, job.topic, job.writers, confluent_kafka.OFFSET_BEGINNING, **{"client.id": job.client_id}
    )
    deadline = time.monotonic() + job.seconds
    records = 0
    while time.monotonic() < deadline:
        records += len(consumer.consume(1000, 0.2))
    consumer.close()
    return {"records": records}


JOBS: Mapping[str, tuple[type[Any], Callable[[Any], Any]]] = {
    "produce": (ProduceJob, produce),
    "consume": (ConsumeJob, consume),
    "tail-write": (TailJob, tail_write),
    "tail-read": (TailJob, tail_read),
    "idle": (TailJob, idle),
}


def main(kind: str) -> None:
    job_type, work = JOBS[kind]
    result = work(job_type(**json.loads(sys.stdin.readline())))
    print(json.dumps(result if isinstance(result, dict) else asdict(result)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
