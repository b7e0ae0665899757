"""Readers that fail, that threads share, that are forked, or that the garbage collector finds; and taking pins."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import siltstone
from metadata.contract.readers import TopicSnapshot
from metadata.memory.store import MemoryMetadata
from metadata.postgres import readers as postgres_readers
from metadata.postgres.connection import connect
from metadata.postgres.rows import KILLERS_LOCK
from metadata.urls import open_metadata
from runtime.clock import SystemClock
from spark_jobs.scan.arrow import pa
from spark_jobs.scan.contract import DataLossError, PinLostError, ScanOptions
from spark_jobs.scan.pinned import PinnedSnapshot
from spark_jobs.scan.plan import plan_slices
from spark_jobs.scan.read import read_slice
from tests.fixtures.metadata_parts import Part
from tests.fixtures.scan_logs import ScanLog, records_of
from tests.fixtures.served_topics import ROWS, pins, scan_threads, serve_topic
from tests.fixtures.waiting import wait_until

DEADLINE_S = 20


@pytest.fixture
def places(postgres_url: str, tmp_path: Path) -> dict[str, str]:
    return serve_topic(postgres_url, tmp_path / "objects")


@pytest.fixture
def left_threads() -> Callable[[], list[str]]:
    """The threads of scans that this test began."""
    before = scan_threads()
    return lambda: sorted(each.name for each in scan_threads() - before)


# ---- readers ---------------------------------------------------------------------------------------------------------


def test_a_reader_that_failed_says_so_whenever_it_is_asked_and_never_that_it_ended(
    places: dict[str, str], tmp_path: Path, left_threads: Callable[[], list[str]]
) -> None:
    # given a topic whose merged file, the only one with partition 1, is gone
    (lost,) = (tmp_path / "objects" / "l1").rglob("*.silt")
    lost.unlink()
    reader = siltstone.read_topic("flights", partitions=[1], **places)

    with pytest.raises(pa.ArrowInvalid, match=r"DataLossError.*offsets 0 to 19"):
        reader.read_next_batch()
    for _ in range(2):
        with pytest.raises(pa.ArrowInvalid, match=r"failed before: DataLossError.*offsets 0 to 19"):
            reader.read_next_batch()
    assert (pins(places["metadata"]), left_threads()) == (0, [])


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Make threads switch as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_threads")
def test_threads_may_share_a_reader_and_each_batch_goes_to_one_of_them(places: dict[str, str]) -> None:
    for _ in range(3):
        reader = siltstone.read_topic("flights", batch_rows=1, **places)
        found: list[int] = []
        failed: list[BaseException] = []

        def read(reader: Any = reader, found: list[int] = found, failed: list[BaseException] = failed) -> None:
            try:
                while True:
                    found.append(reader.read_next_batch().num_rows)
            except StopIteration:
                return
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(DEADLINE_S)
        assert (sum(found), failed) == (ROWS, [])


def test_a_forked_child_closes_nothing_of_its_parents_and_reads_anew(
    places: dict[str, str], left_threads: Callable[[], list[str]]
) -> None:
    reader = siltstone.read_topic("flights", batch_rows=1, **places)
    rows = reader.read_next_batch().num_rows

    child = os.fork()
    if child == 0:  # pragma: no cover
        code = 1
        try:
            try:
                reader.read_next_batch()
            except pa.ArrowInvalid as error:
                code = 0 if "belongs to the process that made it" in str(error) else 2
            reader.close()
            if siltstone.read_topic("flights", **places).read_all().num_rows != ROWS:
                code = 3
        finally:
            os._exit(code)
    status: list[int] = []

    def has_ended() -> bool:
        pid, found = os.waitpid(child, os.WNOHANG)
        status.extend([found] if pid else [])
        return bool(pid)

    try:
        wait_until(has_ended)
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    assert os.waitstatus_to_exitcode(status[0]) == 0
    # then the parent's reader is whole
    assert pins(places["metadata"]) == 1
    assert rows + sum(batch.num_rows for batch in reader) == ROWS
    assert (pins(places["metadata"]), left_threads()) == (0, [])


def test_a_reader_that_is_collected_in_its_own_thread_is_closed_by_another(
    places: dict[str, str], left_threads: Callable[[], list[str]]
) -> None:
    # given a reader that only the garbage collector can find
    before = set(threading.enumerate())
    reader = siltstone.read_topic("flights", batch_rows=1, **places)
    reader.read_next_batch()
    circle: list[Any] = [reader]
    circle.append(circle)
    (own,) = [each for each in set(threading.enumerate()) - before if each.name == "siltstone-pin"]
    loop = own._target.__self__._loop  # type: ignore[attr-defined]
    gc.disable()
    try:
        del reader, circle
        # when it runs in the thread that renews the pin
        loop.call_soon_threadsafe(gc.collect)
        del loop, own
        # then
        wait_until(lambda: not left_threads())
    finally:
        gc.enable()
    assert pins(places["metadata"]) == 0


def test_a_process_that_ends_with_an_open_reader_ends_and_leaves_no_pin(places: dict[str, str]) -> None:
    script = (
        "import siltstone\n"
        f"reader = siltstone.read_topic('flights', batch_rows=1, **{places!r})\n"
        "print(reader.read_next_batch().num_rows)\n"
    )

    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=False)

    assert (ran.returncode, ran.stdout) == (0, b"1\n"), ran.stderr
    assert pins(places["metadata"]) == 0


# ---- snapshots -------------------------------------------------------------------------------------------------------


async def test_files_come_some_at_a_time_and_all_are_there(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_readers, "FILES_AT_A_TIME", 2)
    metadata = open_metadata(postgres_url)
    log = await ScanLog.make(metadata=metadata)
    for _ in range(5):
        await log.write((0, records_of((b"k", b"v"))))

    (part,) = (await log.snapshot()).partitions

    assert [(each.base_offset, each.last_offset) for each in part.l0] == [(n, n) for n in range(5)]
    await metadata.close()


async def test_offsets_at_the_end_of_a_slice_that_no_extent_holds_are_lost() -> None:
    log = await ScanLog.make()
    await log.write((0, records_of(*[(b"k", b"v")] * 10)))
    asked = ScanOptions(topic="flights")
    (part,) = plan_slices(await log.snapshot(), asked)
    longer = type(part).from_json(part.to_json().replace('"end": 10', '"end": 15').replace('"end":10', '"end":15'))
    assert longer.end == 15

    with pytest.raises(DataLossError, match="offsets 10 to 14: no extent holds them"):
        list(read_slice(log.store, longer, asked))


# ---- pins ------------------------------------------------------------------------------------------------------------


async def test_a_pin_is_renewed_while_its_snapshot_is_taken() -> None:
    log = await ScanLog.make()

    shared = MemoryMetadata(database=log.metadata.database)  # type: ignore[attr-defined]

    class Slow(Part):
        async def topic_snapshot(self, name: str) -> TopicSnapshot:
            ((_, _, _, until_ms),) = await shared.operators.pins()
            async with asyncio.timeout(DEADLINE_S):
                while (await shared.operators.pins())[0][3] == until_ms:
                    await asyncio.sleep(0.005)
            return await self.inner.topic_snapshot(name)

    shared.readers = Slow(shared.readers)  # type: ignore[assignment]
    with PinnedSnapshot(lambda: shared, "flights", ttl_ms=600) as pinned:
        pinned.check()


async def test_a_pin_that_nobody_renewed_in_time_is_lost_though_the_store_never_said_so() -> None:
    # given a clock that goes on while no thread wakes
    class Stopped(SystemClock):
        ahead_ms = 0.0

        def monotonic_ms(self) -> float:
            return super().monotonic_ms() + self.ahead_ms

        async def sleep_ms(self, ms: float) -> None:
            await asyncio.Event().wait()

    clock = Stopped()
    log = await ScanLog.make()
    shared = MemoryMetadata(database=log.metadata.database)  # type: ignore[attr-defined]
    with PinnedSnapshot(lambda: shared, "flights", ttl_ms=60_000, clock=clock) as pinned:
        pinned.check()
        clock.ahead_ms = 60_001
        for _ in range(2):
            with pytest.raises(PinLostError, match="it was not renewed in time"):
                pinned.check()


async def test_a_pin_in_a_transaction_that_goes_on_holds_nobody_up(postgres_url: str) -> None:
    one, other = await connect(postgres_url), await connect(postgres_url)
    try:
        async with one.transaction():
            await one.fetchval("SELECT pin_files_v1('slow', 1000)")
            # then files may be deleted, and others can pin
            assert await other.fetchval(f"SELECT pg_try_advisory_xact_lock_shared({KILLERS_LOCK})")
            assert await other.fetchval("SELECT pin_files_v1('quick', 1000)") > 0
    finally:
        await one.close()
        await other.close()


async def test_a_pin_waits_for_deaths_in_flight_and_one_that_gives_up_keeps_no_lock(postgres_url: str) -> None:
    killer, reader = await connect(postgres_url), await connect(postgres_url)
    try:
        async with killer.transaction():
            await killer.execute(f"SELECT pg_advisory_xact_lock_shared({KILLERS_LOCK})")
            for limit in ("statement_timeout", "lock_timeout"):
                await reader.execute(f"SET {limit} = '100ms'")
                with pytest.raises(Exception, match="timeout"):
                    await reader.fetchval("SELECT pin_files_v1('reader', 1000)")
                await reader.execute(f"RESET {limit}")
            died_ms = await killer.fetchval("SELECT clock_ms()")
            waiting = asyncio.create_task(reader.fetchval("SELECT pin_files_v1('reader', 1000)"))
            async with asyncio.timeout(DEADLINE_S):
                while not await killer.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                    await asyncio.sleep(0.01)
            assert not waiting.done()
        pin_id = await waiting
        assert await reader.fetchval("SELECT created_ms FROM pins WHERE pin_id = $1", pin_id) >= died_ms
        assert await killer.fetchval(f"SELECT pg_try_advisory_xact_lock({KILLERS_LOCK})")
    finally:
        await killer.close()
        await reader.close()
