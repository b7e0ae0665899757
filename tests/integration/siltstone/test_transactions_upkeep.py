"""Operators' tools on a system with transactions: their markers are in no object, and what is aborted is not shown."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import siltstone
from metadata.contract.store import MetadataStore
from metadata.urls import open_metadata
from siltstone.cli import main
from siltstone.ops.erasure.verify import KeySearch, verify_bucket
from siltstone.ops.fsck import check_system
from siltstone.ops.hint_options import NO_HINT_OPTIONS
from siltstone.ops.record_report import Verdict
from siltstone.ops.record_trace import diagnose
from storage.cluster import check_cluster
from storage.objects import ObjectStore
from storage.urls import open_store
from tests.contract.metadata_worlds import new_topic
from tests.fixtures.postgres import run_sql
from tests.fixtures.transactional_log import Producer, TransactionalWriter, Write
from wire.crc import crc32c
from wire.records import NewRecord

T0 = 1_700_000_000_000


def record(value: str, *, at_ms: int = T0) -> list[NewRecord]:
    return [NewRecord(at_ms, value[:1].encode(), value.encode())]


class System:
    """Partition 0: plain 0, aborted 1, committed 2, marker 3, marker 4, plain 5, open 6, plain 7. Partition 1: aborted
    0, marker 1."""

    def __init__(self, metadata: MetadataStore, store: ObjectStore, urls: tuple[str, str]) -> None:
        self.metadata, self.store = metadata, store
        self.url, self.store_url = urls
        self.places = ("--metadata", self.url, "--object-store", self.store_url)
        self.committed_key = self.aborted_key = ""

    async def fill(self) -> None:
        self.topic = await new_topic(self.metadata, "orders", partitions=2)
        writer = await TransactionalWriter.start(self.metadata, self.store, self.topic)
        good, bad, late = [await writer.producer(name) for name in ("good", "bad", "late")]
        self.producers: dict[str, Producer] = {"good": good, "bad": bad, "late": late}
        self.bad_id = bad.producer_id
        first = [Write(0, record("plain 0")), Write(0, record("bad 1"), bad), Write(1, record("bad 0"), bad)]
        await writer.write(first)
        await writer.write([Write(0, record("good 2"), good)])
        self.committed_key = (await writer.end([(good, True)], timestamp_ms=T0 + 100)).key
        self.aborted_key = (await writer.end([(bad, False)], timestamp_ms=T0 + 100)).key
        await writer.write([Write(0, record("plain 5", at_ms=T0 + 5)), Write(0, record("late 6"), late)])
        await writer.write([Write(0, record("plain 7"))])

    async def broken(self, *, quick: bool = False) -> list[str]:
        findings = await check_system(self.metadata, self.store, quick=quick, progress=lambda *_: None)
        return [f"{each.id}: {violation.message}" for each in findings for violation in each.violations]

    def read(self, **options: Any) -> list[bytes]:
        reader = siltstone.read_topic("orders", metadata=self.url, object_store=self.store_url, **options)
        return reader.read_all().column("value").to_pylist()


@pytest.fixture
async def system(postgres_url: str, tmp_path: Path) -> AsyncIterator[System]:
    (tmp_path / "objects").mkdir()
    store_url = (tmp_path / "objects").as_uri()
    async with AsyncExitStack() as stack:
        store = open_store(store_url)
        await store.open()
        stack.push_async_callback(store.close)
        metadata = open_metadata(postgres_url)
        await metadata.open()
        stack.push_async_callback(metadata.close)
        cluster_id = (await metadata.cluster_identity()).cluster_id
        await check_cluster(store, cluster_id=cluster_id, store_bound=False)
        system = System(metadata, store, (postgres_url, store_url))
        await system.fill()
        yield system


async def test_fsck_checks_markers_in_their_rows_and_no_object_for_them(system: System) -> None:
    assert await system.broken() == await system.broken(quick=True) == []
    # when an object has the key of an inline file
    await system.store.put_if_absent(system.aborted_key, b"x", crc32c=crc32c(b"x"))
    assert [each.partition(" holds")[0][:7] for each in await system.broken()] == ["FILE-2:"]
    await system.store.delete_many([system.aborted_key])
    # when a row holds other bytes than it was committed with
    await run_sql(
        system.url,
        f"UPDATE files SET inline = set_byte(inline, 70, 255) WHERE key = '{system.aborted_key}'",
    )
    for quick in (False, True):
        found = [each for each in await system.broken(quick=quick) if each.startswith("FILE-1")]
        assert len(found) == 1 and f"bytes in the row of {system.aborted_key}: 78 bytes" in found[0]


async def test_fsck_finds_hanging_transactions_and_markers_that_are_not_in_the_log(system: System) -> None:
    one = system.topic.partition_ids[0]
    late_id = system.producers["late"].producer_id
    await run_sql(
        system.url,
        f"INSERT INTO transaction_partitions VALUES ({one}, 4711, 0, 1, 7)",
        f"UPDATE transaction_partitions SET txn_seq = 9 WHERE producer_id = {late_id}",
        f"INSERT INTO aborted_transactions VALUES ({one}, 99, 4711, 50, 60)",
    )
    hanging = f"partition {one}, producer 4711: a hanging transaction: none is ongoing that entered here"
    assert await system.broken(quick=True) == [
        f"TXN-1: partition {one}, producer {late_id}: it entered transaction 9 at epoch 0, but 'late' is at transaction"
        " 1, epoch 0",
        f"TXN-2: {hanging}, and it holds readers of committed records at 7",
        f"TXN-3: partition {one}: the aborted transaction of producer 4711 from 50 to 99 ends at or above the high"
        " watermark, 8",
        f"TXN-3: partition {one}: the aborted transaction of producer 4711 from 50 to 99 ends a search at 60, but one"
        " that ended later begins at 6",
    ]


async def test_a_young_transaction_that_is_past_its_timeout_hangs(system: System) -> None:
    async def find(*words: str, code: int) -> str:
        words = ("transactions", "find-hanging", "--metadata", system.url, *words)
        done = await asyncio.to_thread(CliRunner(env={"SILTSTONE_DATA": None}).invoke, main, words)
        assert done.exit_code == code, done.output
        return done.stdout

    earlier = "UPDATE transactions SET started_ms = started_ms - {}, timeout_ms = 5000 WHERE transactional_id = 'late'"
    young = (await find(code=0)).replace("\n", " ")
    assert "1 is ongoing, the oldest ('late') for " in young and "none is past its time-out by 30s" in young
    # when no agent runs that would abort it
    await run_sql(system.url, earlier.format(36_000))
    assert re.search(r"^late .* \S+ +\d+s +5s, over +1 +0 +2$", await find(code=1), re.MULTILINE)
    (late,) = json.loads(await find("--json", code=1))["hanging"]
    assert late["transactional_id"] == "late" and late["age_ms"] > late["timeout_ms"] + 30_000
    # and with a long time-out it does not, unless somebody asks for it
    await run_sql(system.url, "UPDATE transactions SET timeout_ms = 900000 WHERE transactional_id = 'late'")
    assert json.loads(await find("--json", code=0)) == {"hanging": [], "without_transaction": [], "ongoing": 1}
    assert "late" in await find("--longer-than", "0ms", code=1)


async def test_a_record_is_told_with_its_transaction_and_a_marker_with_what_it_ended(system: System) -> None:
    async def said(partition: int, offset: int) -> tuple[Verdict, str]:
        found = await diagnose(system.metadata, system.store, "orders", partition, offset, NO_HINT_OPTIONS)
        assert found.batch is not None
        return found.verdict, found.why

    hidden = "so readers of committed records do not see it"
    unseen = ", which clients do not see"
    good_id = system.producers["good"].producer_id
    assert await said(0, 0) == await said(0, 2) == (Verdict.FOUND, "")
    assert await said(0, 1) == (Verdict.FOUND, f"its transaction was aborted at offset 4, {hidden}")
    assert await said(0, 3) == (Verdict.FOUND, f"the marker that committed a transaction of producer {good_id}{unseen}")
    aborting = f"the marker that aborted a transaction of producer {system.bad_id}{unseen}"
    assert await said(0, 4) == await said(1, 1) == (Verdict.FOUND, aborting)
    late = "it lies at or above the last stable offset, 6: a transaction that began there has not ended"
    assert await said(0, 6) == (Verdict.FOUND, f"{late}, {hidden} yet")


async def test_a_file_of_markers_is_inspected_and_listed_from_its_row(system: System) -> None:
    async def run(*words: str, exit_code: int = 0) -> str:
        done = await asyncio.to_thread(CliRunner().invoke, main, [*words, *system.places])
        assert done.exit_code == exit_code, done.output
        return done.stdout

    shown = await run("file", "inspect", system.aborted_key)
    assert "no object: the bytes are in the metadata" in shown and shown.endswith("sound\n")
    report = json.loads(await run("file", "inspect", system.aborted_key, "--json"))
    assert report["sound"] and report["inline"]
    assert [(each["producer_id"], each["commit"]) for each in report["markers"]] == [(system.bad_id, False)]
    assert [(each["topic"], each["partition"], each["offset"]) for each in report["markers"][0]["offsets"]] == [
        ("orders", 0, 4),
        ("orders", 1, 1),
    ]
    listed = {each["key"]: each for each in json.loads(await run("files", "list", "--json"))}
    row = listed[system.aborted_key]
    assert (row["inline"], row["records"], row["partitions"], row["live_bytes"]) == (True, 0, 2, 78)
    assert sum(each["inline"] for each in listed.values()) == 2
    assert "L0 inline" in await run("files", "list")

    await run_sql(system.url, f"UPDATE files SET inline = set_byte(inline, 70, 255) WHERE key = '{system.aborted_key}'")
    assert "DAMAGED" in await run("file", "inspect", system.aborted_key, exit_code=1)


async def test_a_search_for_erased_keys_looks_for_no_object_of_an_inline_file(system: System) -> None:
    found = await verify_bucket(system.metadata, system.store, system.topic.topic_id, KeySearch([b"g"]))
    assert (found.unread, found.objects) == ([], 4)
    assert [(each.partition, each.offset) for each in found.found] == [(0, 2)]


async def test_a_scan_reads_committed_records_below_the_last_stable_offset_unless_it_asks_for_all(
    system: System,
) -> None:
    committed = [b"plain 0", b"good 2", b"plain 5"]
    everything = [b"plain 0", b"bad 1", b"good 2", b"plain 5", b"late 6", b"plain 7", b"bad 0"]
    assert system.read() == committed
    assert system.read(isolation="read_uncommitted") == everything
    assert system.read(partitions=[0], starting={0: 2}, ending={0: 5}) == [b"good 2"]
    latest = system.read(view="latest", partitions=[0])
    assert sorted(latest) == [b"good 2", b"plain 5"]
    # times of markers are later than those of all records, and are no records
    assert system.read(starting=datetime.fromtimestamp(T0 / 1000 + 0.005, UTC)) == [b"plain 5"]
