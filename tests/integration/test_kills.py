"""`kill -9` under load: what was acknowledged is there once, at the offset that was told, in the order it was sent."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.dev import COMMAND, Dev, running_dev
from tests.fixtures.s3 import free_port

PARTITIONS = 4
FLUSH_S_MAX = 120


class Writer(threading.Thread):
    """One idempotent producer that numbers its records per partition and keeps what was acknowledged."""

    def __init__(self, name: str, bootstrap: str, stop: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self._address, self._stopping = bootstrap, stop
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        """(partition, offset) -> value."""
        self.failed: list[str] = []

    def run(self) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self._address,
                "enable.idempotence": True,
                "linger.ms": 20,
                "batch.num.messages": 200,
                "queue.buffering.max.messages": 4000,  # so that the last flush is short
                "message.timeout.ms": FLUSH_S_MAX * 1000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        number = 0
        while not self._stopping.is_set():
            partition = number % PARTITIONS
            value = f"{self.name}:{number:08d}".encode()
            try:
                producer.produce("t", value=value, partition=partition, on_delivery=self._delivered)
                number += 1
            except BufferError:
                producer.poll(0.05)
            producer.poll(0)
            if number % 200 == 0:
                time.sleep(0.01)
        left = producer.flush(FLUSH_S_MAX)
        if left:
            self.failed.append(f"{left} records were never answered")

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        place = (message.partition(), message.offset())
        if place in self.acknowledged:
            self.failed.append(f"two records acknowledged at {place}")
        self.acknowledged[place] = message.value()


def read_everything(bootstrap: str, ends: Sequence[int]) -> dict[tuple[int, int], bytes]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition("t", partition, 0) for partition in range(len(ends))])
    found: dict[tuple[int, int], bytes] = {}
    try:
        while len(found) < sum(ends):
            message = consumer.poll(30)
            assert message is not None, f"{len(found)} of {sum(ends)} records, then silence"
            assert message.error() is None, message.error()
            place = (message.partition(), message.offset())
            assert place not in found, f"{place} read twice"
            found[place] = message.value()
    finally:
        consumer.close()
    return found


def ends_of(bootstrap: str) -> list[int]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    try:
        return [
            consumer.get_watermark_offsets(TopicPartition("t", partition), timeout=30)[1]
            for partition in range(PARTITIONS)
        ]
    finally:
        consumer.close()


def agent_pids(dev: Dev) -> list[int]:
    """Children of `siltstone dev` that are agents."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().split(b"\0")
        except (OSError, IndexError):
            continue
        if entry.name.isdigit() and int(stat[1]) == dev.process.pid and b"agent" in command:
            found.append(int(entry.name))
    return found


def check(acknowledged: dict[tuple[int, int], bytes], found: dict[tuple[int, int], bytes], ends: Sequence[int]) -> None:
    assert set(found) == {(partition, offset) for partition, end in enumerate(ends) for offset in range(end)}, "dense"
    lost = {place: value for place, value in acknowledged.items() if found.get(place) != value}
    assert not lost, f"{len(lost)} acknowledged records are not where they were said to be: {sorted(lost)[:3]}"
    values = list(found.values())
    assert len(values) == len(set(values)), f"{len(values) - len(set(values))} records are stored twice"
    for partition in range(PARTITIONS):
        stored = [found[place] for place in sorted(found) if place[0] == partition]
        for writer in {value.partition(b":")[0] for value in stored}:
            own = [value for value in stored if value.startswith(writer + b":")]
            assert own == sorted(own), f"records of {writer!r} in partition {partition} changed their order"


def _kills(tmp_path: Path, rounds: int, writers: int, load_s: float) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    print("seed", seed)
    chance = random.Random(seed)
    data, address = tmp_path / "data", f"127.0.0.1:{free_port()}"
    stop = threading.Event()
    threads = [Writer(f"w{number}", address, stop) for number in range(writers)]
    options = ("--listen", address)
    with running_dev(data, *options) as dev:
        subprocess.run(
            [*COMMAND, "topics", "create", "t", "--partitions", str(PARTITIONS), "--bootstrap", dev.bootstrap],
            check=True,
            capture_output=True,
        )
        for thread in threads:
            thread.start()
        time.sleep(load_s)
        dev.process.kill()
    for number in range(rounds):
        with running_dev(data, *options) as dev:
            time.sleep(load_s * (0.5 + chance.random()))
            if number == rounds - 1:
                stop.set()
                for thread in threads:
                    thread.join(FLUSH_S_MAX)
                ends = ends_of(dev.bootstrap)
                found = read_everything(dev.bootstrap, ends)
            elif chance.random() < 0.5:
                os.kill(agent_pids(dev)[0], signal.SIGKILL)
                dev.process.wait(60)
            else:
                dev.process.kill()
    acknowledged: dict[tuple[int, int], bytes] = {}
    for thread in threads:
        assert not thread.failed, thread.failed[:3]
        acknowledged |= thread.acknowledged
    assert len(acknowledged) > 1000
    check(acknowledged, found, ends)
    fsck = subprocess.run([*COMMAND, "fsck", "--data", str(data)], capture_output=True, text=True, timeout=120)
    assert fsck.returncode == 0, fsck.stdout + fsck.stderr
    print(f"{len(acknowledged)} acknowledged, {len(found)} stored, {rounds} kills")


@pytest.mark.timeout(240)
def test_a_killed_stack_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    _kills(tmp_path, rounds=2, writers=2, load_s=1.0)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_many_kills_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    _kills(tmp_path, rounds=15, writers=4, load_s=3.0)
