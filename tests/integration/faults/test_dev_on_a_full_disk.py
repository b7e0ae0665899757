"""`siltstone dev` under load on a disk that is really full: refused in words, read meanwhile, resumed, nothing lost."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from siltstone.kafka.client import KafkaError, connected
from storage.local import reserve_bytes
from tests.fixtures.dev import COMMAND, Dev, running_dev
from tests.fixtures.idempotent_load import LibrdkafkaWriter, Load, check_log, read_log
from tests.fixtures.small_disks import SmallDisk, small_disk
from tests.fixtures.waiting import wait_until
from wire.records import NewRecord, build_batch

MIB = 1 << 20
DISK_MIB = 300
RESERVE_BYTES = reserve_bytes(DISK_MIB * MIB)
REFUSED = "disk full: produce is refused until there is space"
RESUMED = "the object store has space again: produce is taken"


class LongRecords(LibrdkafkaWriter):
    """Some MiB a second that no codec makes smaller."""

    def value(self, number: int) -> bytes:
        return super().value(number) + os.urandom(20_000)


pytestmark = pytest.mark.soak


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", DISK_MIB) as mounted:
        yield mounted


def doctor(disk: SmallDisk) -> subprocess.CompletedProcess[str]:
    words = [*disk.within, *COMMAND, "doctor", "--data", str(disk.path / "data")]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def load_on(dev: Dev) -> Load:
    return Load(dev.bootstrap, topic="orders", partitions=2, writers=[LongRecords])


def metadata_url(disk: SmallDisk) -> str:
    return json.loads((disk.seen / "data" / "run.json").read_text())["metadata_url"]


async def create_topics(dev: Dev) -> None:
    async with connected(dev.bootstrap) as client:
        await client.create_topic("orders", partitions=2)
        await client.create_topic("lines", partitions=1)


async def produce_error(dev: Dev) -> KafkaError:
    async with connected(dev.bootstrap) as client:
        with pytest.raises(KafkaError) as refused:
            await client.produce("lines", 0, build_batch([NewRecord(1, None, bytes(100_000))]))
    return refused.value


async def write_segments(url: str, count: int) -> None:
    """Have Postgres begin so many new files of its write-ahead log."""
    postgres: Any = await asyncpg.connect(url)
    try:
        for _ in range(count):
            await postgres.execute("SELECT pg_logical_emit_message(true, 'test', 'a byte of each segment')")
            await postgres.execute("SELECT pg_switch_wal()")
    finally:
        postgres.terminate()


def start_producing(dev: Dev) -> subprocess.Popen[str]:
    """`siltstone produce`, with one record to write."""
    process = subprocess.Popen(
        [*COMMAND, "produce", "lines", "--bootstrap", dev.bootstrap],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write("one more\n")
    process.stdin.close()
    return process


def test_a_full_disk_refuses_records_before_postgres_dies_and_takes_them_again_when_there_is_space(
    disk: SmallDisk,
) -> None:
    log = disk.path / "data.log"  # written outside the small disk
    with running_dev(disk.path / "data", within=disk.within) as dev:
        asyncio.run(create_topics(dev))
        with load_on(dev) as load:
            load.until_more(50)
            # when another's file takes the space
            disk.fill(RESERVE_BYTES + 8 * MIB)
            # then the load is refused, and clients are told why
            wait_until(lambda: REFUSED in log.read_text(), 20, log.read_text)
            disk.fill(RESERVE_BYTES - MIB)  # no room for a small file either
            refused = asyncio.run(produce_error(dev))
            assert refused.name == "KAFKA_STORAGE_ERROR"
            assert "disk full" in refused.message and "acknowledged records are safe" in refused.message
            with start_producing(dev) as producing:
                assert producing.stderr is not None
                notice = producing.stderr.readline()
                assert "disk full" in notice and "retrying for up to 60 s" in notice, notice
                # and: Postgres writes on in the space that is kept for it
                asyncio.run(write_segments(metadata_url(disk), 2))
                # and: doctor says it
                told = doctor(disk)
                assert told.returncode == 1, told.stdout + told.stderr
                assert "disk full: " in told.stdout and "acknowledged records are safe" in told.stdout, told.stdout
                # and: consumers read everything that was acknowledged
                before = dict(load.writers[0].acknowledged)
                assert before.items() <= read_log(dev.bootstrap, topic="orders", partitions=2).items()
                # when there is space again, then all goes on by itself
                disk.make_room()
                load.until_more(50, 20)
                assert producing.wait(20) == 0
            load.finish_and_check(dev.bootstrap)
        assert RESUMED in log.read_text() and dev.process.poll() is None


def test_after_a_death_of_postgres_by_a_full_disk_doctor_asks_for_space_and_nothing_is_lost(disk: SmallDisk) -> None:
    log = disk.path / "data.log"
    with running_dev(disk.path / "data", within=disk.within) as dev:
        asyncio.run(create_topics(dev))
        with load_on(dev) as load:
            load.until_more(50)
            acknowledged = load.finish()
        # when even the space that is kept is taken
        disk.fill(MIB)
        with pytest.raises(asyncpg.PostgresConnectionError):
            asyncio.run(write_segments(metadata_url(disk), 2))
        # then it ends in words
        assert dev.process.wait(20) == 1
    assert "error: disk full: Postgres ended by itself" in log.read_text(), log.read_text()
    told = doctor(disk)
    assert told.returncode == 1
    assert told.stderr.startswith("error: disk full at "), told.stderr
    assert "No space left on device" in told.stderr and "backup" not in told.stderr, told.stderr
    assert "remedy: free space and start again; acknowledged records are safe" in told.stderr, told.stderr
    # when there is space again, then a start is enough
    disk.make_room()
    with running_dev(disk.path / "data", within=disk.within) as again:
        check_log(acknowledged, read_log(again.bootstrap, topic="orders", partitions=2))
