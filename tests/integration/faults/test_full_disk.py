"""A full disk: said plainly to producers and by `doctor`; nothing that was acknowledged is lost; writing resumes."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from siltstone.cli import main
from siltstone.embedded.postgres import EmbeddedPostgres
from siltstone.ops.doctor import Verdict, judge_room
from storage.local import RESERVE_BYTES_MAX, LocalStore, reserve_bytes
from storage.memory import MemoryStore
from storage.objects import Body, StoreFullError
from tests.fixtures.agents import Dial, RawConnection, StartAgent, read_all
from tests.fixtures.log_lines import LogLines
from wire.crc import crc32c
from wire.error_codes import ErrorCode
from wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.records import NewRecord, build_batch

ROOT = Path(__file__).parents[3]
MIB = 1 << 20


class Full(MemoryStore):
    """A store that can run out of space, and counts the tries."""

    is_full = False
    tries = 0

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        if self.is_full and key.startswith("l0/"):
            self.tries += 1
            raise StoreFullError("no space left on device", remedy="free or add disk space")
        await super().put_if_absent(key, body, crc32c=crc32c)


async def produce(raw: RawConnection, value: bytes) -> PartitionProduceResponse:
    data = PartitionProduceData(index=0, records=build_batch([NewRecord(int(time.time() * 1000), None, value)]))
    topic = TopicProduceData(name="t", partition_data=[data])
    answer = await raw.call(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic]), ProduceResponse, 9)
    return answer.responses[0].partition_responses[0]


async def test_producers_are_told_that_the_disk_is_full_and_writing_resumes(
    start_agent: StartAgent, dial: Dial, log_lines: LogLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.write.full_store.ASK_AGAIN_MS", 300.0)
    store = Full()
    running = await start_agent(store=store)
    client, raw = await dial.kafka(running.address), await dial.raw(running.address)
    await client.create_topic("t", partitions=1)
    assert (await produce(raw, b"kept")).error_code == 0
    # when
    store.is_full = True
    answers = [await produce(raw, b"refused") for _ in range(20)]
    # then: each is told why, most without a PUT
    for answer in answers:
        assert (answer.error_code, answer.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        assert "disk full" in (answer.error_message or "") and "acknowledged records are safe" in (
            answer.error_message or ""
        )
    assert 1 <= store.tries < 20
    assert running.metric("store_full") == 1
    assert len(log_lines.named("disk full: produce is refused until there is space")) == 1, (
        "said once, not for each file"
    )
    # and: what was acknowledged can be read meanwhile
    assert [bytes(record.value or b"") for _, record in await read_all(client, "t")] == [b"kept"]
    # when there is space again, the next tries are taken
    store.is_full = False
    stored: list[Any] = []

    async def is_taken() -> bool:
        stored.append(await produce(raw, b"again"))
        return stored[-1].error_code == 0

    async with asyncio.timeout(10):
        while not await is_taken():
            await asyncio.sleep(0.05)
    assert stored[-1].base_offset == 1
    assert running.metric("store_full") == 0


async def test_a_directory_keeps_space_for_postgres_and_for_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path / "objects")
    await store.open()
    real = os.statvfs(tmp_path)
    total = 20 * RESERVE_BYTES_MAX
    free = RESERVE_BYTES_MAX + 10

    class Small:
        f_frsize, f_bavail, f_blocks = 1, free, total

    monkeypatch.setattr(os, "statvfs", lambda path: Small)
    body = b"x" * 10
    await store.put_if_absent("l0/fits", body, crc32c=crc32c(body))
    larger = body + b"x"
    with pytest.raises(StoreFullError, match="512 MiB are kept for"):
        await store.put_if_absent("l0/does-not", larger, crc32c=crc32c(larger))
    upload = await store.start_multipart("l1/does-not")
    with pytest.raises(StoreFullError):
        await upload.write(larger)
    await upload.abort()
    # deletion needs the catalogue's backup first
    await store.put_if_absent("catalog/backup", larger, crc32c=crc32c(larger))
    await store.close()
    assert reserve_bytes(real.f_blocks * real.f_frsize) <= RESERVE_BYTES_MAX
    assert [reserve_bytes(size * MIB) for size in (200, 2_000)] == [64 * MIB, 100 * MIB]


def test_doctor_judges_the_space() -> None:
    verdicts = [judge_room("/d", free, 100 * MIB).verdict for free in (100 * MIB, 101 * MIB, 200 * MIB, 201 * MIB)]
    assert verdicts == [Verdict.FAIL, Verdict.WARN, Verdict.WARN, Verdict.OK]
    full = judge_room("/d", 3 * MIB, 100 * MIB)
    assert full.detail.startswith("disk full: 3 MiB are free at /d") and "acknowledged records are safe" in full.remedy


POSTGRES_LOGS = (
    'FATAL:  could not write lock file "postmaster.pid": No space left on device',
    'PANIC:  could not write to file "pg_wal/xlogtemp.29": No space left on device',
)
"""The words of Postgres 18 on a full file system."""


@pytest.mark.parametrize("said", POSTGRES_LOGS)
def test_a_postgres_that_ends_for_want_of_space_is_not_restored_from_a_backup(tmp_path: Path, said: str) -> None:
    postgres = EmbeddedPostgres(tmp_path / "postgres", settings={"fsync": "off"})
    postgres.start()
    try:
        assert not postgres.had_no_space
        with (tmp_path / "postgres" / "postgres.log").open("a") as log:
            log.write(said + "\nHINT:  If you are restoring from a backup, touch recovery.signal.\n")
        assert postgres.had_no_space
    finally:
        postgres.stop()


SMALL_MIB = 200
ON_A_SMALL_FILE_SYSTEM = """
    import os, subprocess, sys
    from pathlib import Path
    from siltstone.embedded.postgres import EmbeddedPostgres, EmbeddedPostgresError

    root = Path(sys.argv[1])
    postgres = EmbeddedPostgres(root / "postgres")
    postgres.start()
    postgres.stop()
    free = os.statvfs(root)
    (root / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize))
    again = EmbeddedPostgres(root / "postgres")
    try:
        again.start()
    except EmbeddedPostgresError as error:
        print(error.message)
        print("remedy:", error.remedy)
    (root / "filler").unlink()
    again = EmbeddedPostgres(root / "postgres")
    again.start()
    again.stop()
    print("started again")
"""


def test_a_real_file_system_without_space_is_named_and_nothing_is_lost_when_there_is_space_again(
    tmp_path: Path,
) -> None:
    mount = f'mount -t tmpfs -o size={SMALL_MIB}m tmpfs {tmp_path} && exec {sys.executable} -c "$SCRIPT" {tmp_path}'
    tried = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    if tried.returncode != 0:
        pytest.skip("this user may not mount a small file system")
    ran = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount],
        cwd=ROOT,
        env={**os.environ, "SCRIPT": textwrap.dedent(ON_A_SMALL_FILE_SYSTEM)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if "mount:" in ran.stderr:
        pytest.skip(f"this user may not mount a small file system: {ran.stderr.strip()}")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("disk full at "), ran.stdout
    assert "remedy: free space and start again; acknowledged records are safe" in ran.stdout
    assert ran.stdout.endswith("started again\n")


def test_doctor_says_that_a_disk_without_any_space_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path))

    (tmp_path / "objects").mkdir()
    monkeypatch.setattr(tempfile, "mkstemp", no_space)
    told = CliRunner().invoke(main, ["doctor", "--object-store", (tmp_path / "objects").as_uri(), "--json"])
    [check] = [each for each in json.loads(told.stdout) if each["name"] == "store"]
    assert told.exit_code == 1 and check["detail"].startswith("disk full: no space in the object directory"), check
    assert check["remedy"] == "free or add disk space; acknowledged records are safe"
