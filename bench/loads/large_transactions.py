"""Producers that write as fast as they can, in transactions or by idempotence alone; and topics with aborted records.

`python -m bench.loads.large_transactions` reads one job as JSON on stdin and prints one line of JSON, the result. Each
producer is librdkafka in a thread of its own: while one commits, the others go on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import confluent_kafka

from bench.loads.clients import QUIET, percentile

ROOT = Path(__file__).parents[2]
CHILD_TIMEOUT_S = 600.0
QUEUE_KIB = 32 << 10
CALL_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeTransactionsJob:
    bootstrap: str
    topic: str
    """It exists."""
    partitions: int
    name: str
    """The start of the transactional ids."""
    producers: int = 1
    record_bytes: int = 1024
    transaction_s: float = 1.0
    """Each producer commits so often; 0: idempotent producers, without transactions."""
    seconds: float = 0.0
    """The measured time, after `warmup_s`; 0: `transactions` of `records` each."""
    warmup_s: float = 2.0
    transactions: int = 0
    """Of each producer."""
    records: int = 0
    """Of each transaction."""
    aborts_each: int = 0
    """Every so many transactions one is aborted; 0: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeTransactionsResult:
    mb_per_s: float | None
    """Of acknowledged record values, in the measured time. The last transaction counts, which commits later."""
    committed: int
    """Records, of the whole run."""
    aborted: int
    commits: int
    commit_p50_ms: float | None
    """From the call that commits to its return: it first waits until all records are acknowledged."""
    cpu_s: float


def run_large_transactions(job: LargeTransactionsJob) -> LargeTransactionsResult:
    """Run the job in a process of its own. Raises RuntimeError if the program fails."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.loads.large_transactions"],
        input=json.dumps(asdict(job)).encode(),
        stdout=subprocess.PIPE,
        cwd=ROOT,
        timeout=CHILD_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the load of large transactions ended with {done.returncode}; its error stands above")
    return LargeTransactionsResult(**json.loads(done.stdout))


# ---- in the child ----------------------------------------------------------------------------------------------------


class Producer:
    def __init__(self, job: LargeTransactionsJob, number: int) -> None:
        self._job = job
        self.sent = self.acked_before = self.acked_after = 0
        self.committed = self.aborted = 0
        self.commits_ms: list[float] = []
        config: dict[str, Any] = {
            **QUIET,
            "bootstrap.servers": job.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "batch.num.messages": 1_000_000,
            "queue.buffering.max.kbytes": QUEUE_KIB,
            "queue.buffering.max.messages": 10_000_000,
        }
        if self._in_transactions:
            config |= {"transactional.id": f"{job.name}-{number}", "transaction.timeout.ms": 60_000}
        self._producer: Any = confluent_kafka.Producer(config)
        if self._in_transactions:
            self._producer.init_transactions(CALL_S)

    @property
    def _in_transactions(self) -> bool:
        return self._job.transaction_s > 0 or self._job.transactions > 0

    @property
    def _acked(self) -> int:
        return self.sent - len(self._producer)

    def run_for(self, measured_from_s: float) -> None:
        """Until the measured time is over."""
        ends_s = measured_from_s + self._job.seconds
        is_warm = False
        begun_s, begun_at = time.monotonic(), 0
        if self._in_transactions:
            self._producer.begin_transaction()
        while (now_s := time.monotonic()) < ends_s:
            if not is_warm and now_s >= measured_from_s:
                is_warm, self.acked_before = True, self._acked
            if self._in_transactions and now_s - begun_s >= self._job.transaction_s:
                self._end(self.sent - begun_at)
                self._producer.begin_transaction()
                begun_s, begun_at = time.monotonic(), self.sent
            self._write(64)
        self.acked_after = self._acked
        if self._in_transactions:
            self._end(self.sent - begun_at)
        else:
            if left := self._producer.flush(CALL_S):
                raise RuntimeError(f"{left} records were not acknowledged within {CALL_S:.0f} s")
            self.committed = self.sent

    def run_all(self) -> None:
        """All transactions of the job."""
        for number in range(1, self._job.transactions + 1):
            self._producer.begin_transaction()
            self._write(self._job.records)
            aborts = self._job.aborts_each > 0 and number % self._job.aborts_each == 0
            if aborts:
                self._producer.flush(CALL_S)  # an abort alone would drop what is still queued
            self._end(self._job.records, commit=not aborts)

    def _write(self, records: int) -> None:
        value = _VALUE[: self._job.record_bytes]
        for _ in range(records):
            while True:
                try:
                    self._producer.produce(self._job.topic, value, partition=self.sent % self._job.partitions)
                    break
                except BufferError:
                    self._producer.poll(0.005)
            self.sent += 1
        self._producer.poll(0)

    def _end(self, records: int, *, commit: bool = True) -> None:
        began_s = time.monotonic()
        if commit:
            self._producer.commit_transaction(CALL_S)
            self.committed += records
            self.commits_ms.append((time.monotonic() - began_s) * 1000)
        else:
            self._producer.abort_transaction(CALL_S)
            self.aborted += records


_VALUE = os.urandom(1 << 20)


def large_transactions(job: LargeTransactionsJob) -> LargeTransactionsResult:
    producers = [Producer(job, number) for number in range(job.producers)]
    measured_from_s = time.monotonic() + job.warmup_s

    def run(producer: Producer) -> None:
        producer.run_for(measured_from_s) if job.seconds else producer.run_all()

    with ThreadPoolExecutor(job.producers) as threads:
        list(threads.map(run, producers))
    acked = sum(each.acked_after - each.acked_before for each in producers)
    times_ms = [each_ms for each in producers for each_ms in each.commits_ms]
    return LargeTransactionsResult(
        mb_per_s=acked * job.record_bytes / 1e6 / job.seconds if job.seconds else None,
        committed=sum(each.committed for each in producers),
        aborted=sum(each.aborted for each in producers),
        commits=len(times_ms),
        commit_p50_ms=percentile(times_ms, 0.5),
        cpu_s=time.process_time(),
    )


if __name__ == "__main__":
    given = LargeTransactionsJob(**json.loads(sys.stdin.readline()))
    print(json.dumps(asdict(large_transactions(given))), flush=True)
