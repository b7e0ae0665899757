"""Many small transactions at a rate, with next to no work of a client's own.

`python -m bench.loads.small_transactions` reads one job as JSON on stdin and prints one line of JSON, the result. Each
client has a transactional id, and a connection to the address and one to its coordinator. In each of its turns it
writes one record and, if the job is transactional, commits: two requests, by the second protocol of KIP-890, with any
broker that speaks it. Turns are due at fixed times; one that is late begins at once and counts from then.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.loads.clients import percentile
from siltstone.kafka.client import KafkaClient, connected
from wire.batch import ProducerStamp
from wire.error_codes import ErrorCode
from wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.records import NewRecord, build_batch

ROOT = Path(__file__).parents[2]
CHILD_TIMEOUT_S = 600.0
ANSWER_MS = 60_000
TRANSACTION_TIMEOUT_MS = 60_000
OF_A_TRANSACTION = 1
"""The key type by which a coordinator of a transactional id is asked for."""
AGAIN_S = 0.005
NOT_YET = {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
"""Kafka still completes the transaction before, or finds its coordinator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallTransactionsJob:
    bootstrap: str
    topic: str
    """It exists."""
    partitions: int
    """Of the topic; the clients go round over them."""
    name: str
    """The start of the transactional ids."""
    clients: int
    turns_per_s: float
    """Of all clients together."""
    seconds: float
    """The measured time, after `warmup_s`."""
    warmup_s: float = 2.0
    record_bytes: int = 100
    transactional: bool = True
    """False: the same records by idempotent producers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallTransactionsResult:
    turns: int
    """Of the measured time."""
    all_turns: int
    """Those of the warm-up too."""
    end_p50_ms: float | None
    """From the request to end a transaction to its answer."""
    end_p99_ms: float | None
    turn_p50_ms: float | None
    """From the request that writes to the last answer."""
    turn_p99_ms: float | None
    late_p99_ms: float | None
    """How late turns began: the load was too much if this is long."""
    cpu_s: float


def run_small_transactions(job: SmallTransactionsJob) -> SmallTransactionsResult:
    """Run the job in a process of its own. Raises RuntimeError if a request is refused."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.loads.small_transactions"],
        input=json.dumps(asdict(job)).encode(),
        stdout=subprocess.PIPE,
        cwd=ROOT,
        timeout=CHILD_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the load of small transactions ended with {done.returncode}; its error stands above")
    return SmallTransactionsResult(**json.loads(done.stdout))


# ---- in the child ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Times:
    from_s: float
    """Turns that were due before this are not counted."""
    ends_ms: list[float] = field(default_factory=list[float])
    turns_ms: list[float] = field(default_factory=list[float])
    late_ms: list[float] = field(default_factory=list[float])
    all_turns: int = 0


class Client:
    def __init__(self, job: SmallTransactionsJob, number: int, writes: KafkaClient, coordinator: KafkaClient) -> None:
        self._job, self._number = job, number
        self._writes, self._coordinator = writes, coordinator
        self._producer = ProducerStamp(-1)
        self._sequences = [0] * job.partitions
        self._record = NewRecord(0, None, bytes(job.record_bytes))

    @property
    def _name(self) -> str | None:
        return f"{self._job.name}-{self._number}" if self._job.transactional else None

    async def begin(self) -> None:
        request = InitProducerIdRequest(transactional_id=self._name, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
        while True:
            made = await self._coordinator.call(request, InitProducerIdResponse, timeout_ms=ANSWER_MS)
            if made.error_code not in NOT_YET:
                break
            await asyncio.sleep(AGAIN_S)
        _check(made.error_code, "InitProducerId")
        self._producer = ProducerStamp(made.producer_id, made.producer_epoch)

    async def run(self, times: Times, begins_s: float) -> None:
        interval_s = self._job.clients / self._job.turns_per_s
        due_s = begins_s + self._number / self._job.turns_per_s
        ends_s = times.from_s + self._job.seconds
        turn = 0
        while due_s < ends_s:
            await asyncio.sleep(due_s - time.monotonic())
            began_s = time.monotonic()
            await self._write((self._number + turn) % self._job.partitions)
            wrote_s = time.monotonic()
            if self._job.transactional:
                await self._commit()
            times.all_turns += 1
            if due_s >= times.from_s:
                now_s = time.monotonic()
                times.late_ms.append((began_s - due_s) * 1000)
                times.turns_ms.append((now_s - began_s) * 1000)
                if self._job.transactional:
                    times.ends_ms.append((now_s - wrote_s) * 1000)
            turn += 1
            # A client that was held up does not make up for it in a burst.
            due_s = max(due_s + interval_s, time.monotonic())

    async def _write(self, partition: int) -> None:
        stamp = self._producer._replace(base_sequence=self._sequences[partition])
        batch = build_batch([self._record], producer=stamp, transactional=self._job.transactional)
        data = TopicProduceData(
            name=self._job.topic, partition_data=[PartitionProduceData(index=partition, records=batch)]
        )
        request = ProduceRequest(transactional_id=self._name, acks=-1, timeout_ms=ANSWER_MS, topic_data=[data])
        while True:
            answer = await self._writes.call(request, ProduceResponse, timeout_ms=ANSWER_MS)
            (code,) = (each.error_code for topic in answer.responses for each in topic.partition_responses)
            if code not in NOT_YET:
                break
            await asyncio.sleep(AGAIN_S)
        _check(code, "Produce")
        self._sequences[partition] += 1

    async def _commit(self) -> None:
        request = EndTxnRequest(
            transactional_id=self._name or "",
            producer_id=self._producer.producer_id,
            producer_epoch=self._producer.epoch,
            committed=True,
        )
        answer = await self._coordinator.call(request, EndTxnResponse, timeout_ms=ANSWER_MS)
        _check(answer.error_code, "EndTxn")
        if answer.producer_id < 0:
            raise RuntimeError("the broker does not speak the second protocol of transactions (EndTxn 5)")
        self._producer = ProducerStamp(answer.producer_id, answer.producer_epoch)
        self._sequences = [0] * self._job.partitions


def _check(code: int, request: str) -> None:
    if code:
        raise RuntimeError(f"{request} was refused: {ErrorCode(code).name}")


async def coordinator_of(client: KafkaClient, name: str) -> str:
    """The address. Waits until the broker has one."""
    while True:
        request = FindCoordinatorRequest(key_type=OF_A_TRANSACTION, coordinator_keys=[name])
        (found,) = (await client.call(request, FindCoordinatorResponse)).coordinators
        if not found.error_code:
            return f"{found.host}:{found.port}"
        if found.error_code != ErrorCode.COORDINATOR_NOT_AVAILABLE:
            _check(found.error_code, "FindCoordinator")
        await asyncio.sleep(0.1)


async def small_transactions(job: SmallTransactionsJob) -> SmallTransactionsResult:
    async with AsyncExitStack() as stack:
        clients: list[Client] = []
        for number in range(job.clients):
            writes = coordinator = await stack.enter_async_context(connected(job.bootstrap))
            if job.transactional:
                address = await coordinator_of(writes, f"{job.name}-{number}")
                coordinator = await stack.enter_async_context(connected(address))
            client = Client(job, number, writes, coordinator)
            await client.begin()
            clients.append(client)
        begins_s = time.monotonic() + 0.1
        times = Times(begins_s + job.warmup_s)
        await asyncio.gather(*(client.run(times, begins_s) for client in clients))
    return SmallTransactionsResult(
        turns=len(times.turns_ms),
        all_turns=times.all_turns,
        end_p50_ms=percentile(times.ends_ms, 0.5),
        end_p99_ms=percentile(times.ends_ms, 0.99),
        turn_p50_ms=percentile(times.turns_ms, 0.5),
        turn_p99_ms=percentile(times.turns_ms, 0.99),
        late_p99_ms=percentile(times.late_ms, 0.99),
        cpu_s=time.process_time(),
    )


if __name__ == "__main__":
    given = SmallTransactionsJob(**json.loads(sys.stdin.readline()))
    print(json.dumps(asdict(asyncio.run(small_transactions(given)))), flush=True)
