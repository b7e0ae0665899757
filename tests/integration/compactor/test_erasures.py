"""Erasures from the request to the end, by a compactor beside an agent: what holds one back, and what does not."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import pytest

from compactor.deletion.erasures import ErasureDuty
from compactor.deletion.janitor import Janitor, JanitorLimits
from metadata.contract.files import FileState
from metadata.erasures.contract import Erasure, ErasureStage, KeyMark, NewErasure
from runtime.ids import SystemIds
from runtime.runtime import Runtime
from siltstone.ops.hint_options import NO_HINT_OPTIONS
from siltstone.ops.record_report import Diagnosis, Verdict
from siltstone.ops.record_trace import diagnose
from storage.keys import file_key
from storage.objects import ObjectNotFoundError
from tests.compaction.claims import values_in
from tests.fixtures.agents import read_all
from tests.fixtures.compacted_systems import LEVEL_ONLY, System, start_beside
from tests.fixtures.compactors import RunningCompactor, StartCompactor
from tests.fixtures.erasures import hash_of
from tests.fixtures.hand_merges import HandMerger, as_it_is
from tests.fixtures.postgres import run_sql
from tests.fixtures.waiting import until
from wire.crc import crc32c
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.records import NewRecord, ProducerStamp, build_batch

ADA, SECRET = b"ada", b"what-nobody-may-find-again"
QUIET = {**LEVEL_ONLY, "l2_runs_min": 1000, "mostly_dead_fraction": 1.0}
"""Beside L0 merges, files are merged for erasures alone."""
DAY_MS, REST_MS = 86_400_000, 5_000


async def produce(system: System, topic: str, *pairs: tuple[bytes, bytes | None]) -> None:
    now_ms = int(time.time() * 1000)
    await system.client.produce(topic, 0, build_batch([NewRecord(now_ms, *pair) for pair in pairs]))


async def request(
    system: System, topic: str, *, deadline_ms: int = DAY_MS, marks: Sequence[KeyMark] = (), rest_ms: int | None = None
) -> int:
    """Erase the records of these marks; without any, all records of `ADA` that are there."""
    found = next(each for each in await system.metadata.agents.list_topics() if each.name == topic)
    [view] = await system.metadata.operators.partition_views(found.topic_id)
    return await system.metadata.erasures.request_erasure(
        NewErasure(
            topic_id=found.topic_id,
            marks={0: marks or [KeyMark(hash_of(ADA), view.high_watermark)]},
            rest_ms=rest_ms,
            deadline_ms=deadline_ms,
            secret=b"s" * 32,
        )
    )


async def erasure(system: System, erasure_id: int) -> Erasure:
    [found] = await system.metadata.erasures.erasures(erasure_id=erasure_id)
    return found


async def is_done(system: System, erasure_id: int) -> bool:
    return (await erasure(system, erasure_id)).stage is ErasureStage.DONE


async def nothing_pends(system: System, erasure_id: int) -> bool:
    return not await system.metadata.erasures.pending_files(erasure_id)


async def holding(system: System) -> list[str]:
    """The keys of objects in which a record has the secret value."""
    found: list[str] = []
    for key in [stat.key async for stat in system.store.list("l")]:
        with contextlib.suppress(ObjectNotFoundError):  # the janitor was quicker
            found += [key] if SECRET in await values_in(system.store, key) else []
    return found


async def live_keys(system: System, level: int) -> Sequence[str]:
    files = await system.metadata.operators.files(limit=10_000)
    return [file.key for file in files if file.state is FileState.LIVE and file.level == level]


async def copied(system: System, key: str) -> str:
    """An object without a row that holds the same, as a merge leaves it that did not commit."""
    now_ms = await system.metadata.now_ms()
    stray = file_key(level=1, writer_id=999, epoch=0, file_uuid=SystemIds().uuid7(now_ms), created_ms=now_ms)
    body = await system.store.get(key)
    await system.store.put_if_absent(stray, body, crc32c=crc32c(body))
    return stray


async def diagnosed(system: System, offset: int) -> Diagnosis:
    return await diagnose(system.metadata, system.store, "t", 0, offset, NO_HINT_OPTIONS)


async def leveled(system: System, start_compactor: StartCompactor, **settings: object) -> RunningCompactor:
    """A compactor, when all that was written is in L1."""
    compactor = await start_beside(system, start_compactor, **{**QUIET, **settings})
    await until(lambda: _levels(system, {1}))
    return compactor


async def _levels(system: System, levels: set[int]) -> bool:
    return await system.levels() == levels


async def test_keys_are_erased_from_files_of_all_levels_and_the_report_names_these_files(
    system: System, start_compactor: StartCompactor
) -> None:
    # given records of a key in L0, L1 and L2, between others
    await system.client.create_topic("t", partitions=1)
    compactor = await start_beside(system, start_compactor, **{**QUIET, "l1_runs_min": 2})
    for levels in ({1}, {2}):
        await produce(system, "t", (ADA, SECRET), (b"bea", b"stays"))
        await until(lambda levels=levels: _levels(system, levels))
    await compactor.compactor.stop()
    compactor = await start_beside(system, start_compactor, **QUIET)
    await produce(system, "t", (ADA, SECRET), (b"bea", b"stays"))
    await until(lambda: _levels(system, {1, 2}))
    await compactor.compactor.stop()
    await produce(system, "t", (ADA, SECRET), (b"bea", b"stays"))
    # when
    number = await request(system, "t")
    pending = await system.metadata.erasures.pending_files(number)
    assert {each.level for each in pending if each.state is FileState.LIVE} == {0, 1, 2}
    assert (await diagnosed(system, 0)).why.startswith(f"erasure {number} is going to remove it by ")
    compactor = await start_beside(system, start_compactor, **QUIET)
    await until(lambda: is_done(system, number), timeout_s=60)
    # then
    assert await holding(system) == []
    assert await system.values("t") == [b"stays"] * 4 and await system.fsck() == []
    report = (await erasure(system, number)).report
    assert {each["level"] for each in report["files"]} >= {0, 1, 2}
    ended = {each["key"]: each["ended"] for each in report["files"]}
    assert {ended[each.key] for each in pending if each.state is FileState.LIVE} == {
        "merged and deleted",
        "rewritten and deleted",
    }
    assert {each["ended"] for each in report["files"]} <= {
        "merged and deleted",
        "rewritten and deleted",
        "deleted",
    }
    assert report["listing"]["objects"] >= 1 and report["finished_ms"] <= report["deadline_ms"]
    # and the tools tell it
    told = await diagnosed(system, 0)
    assert told.verdict is Verdict.ERASED and told.erasures == [number] and told.remnants == []
    assert f"by erasure {number}, requested at" in told.why and "No object of the bucket holds it" in told.why
    assert compactor.metric("erasures_done_total") == 1
    await until(lambda: _metric_is(compactor, "erasures_open", 0))


async def _metric_is(compactor: RunningCompactor, name: str, value: float) -> bool:
    return compactor.metric(name) == value


async def test_a_tombstone_goes_after_its_value_when_readers_have_had_their_time(
    system: System, start_compactor: StartCompactor
) -> None:
    # given a compacted topic with a value and its tombstone
    await system.client.create_topic("t", partitions=1, configs={"cleanup.policy": "compact"})
    await produce(system, "t", (ADA, SECRET), (b"bea", b"stays"))
    await produce(system, "t", (ADA, None))
    compactor = await leveled(system, start_compactor)
    # when
    began_ms = time.monotonic() * 1000
    number = await request(system, "t", marks=[KeyMark(hash_of(ADA), 2, tombstone=True)], rest_ms=REST_MS)
    await until(lambda: _is_in(system, number, ErasureStage.RESTING), timeout_s=60)
    # then the value goes at once, and the tombstone is there
    await until(lambda: _is_read_without(system, (ADA, SECRET)))
    assert (ADA, None) in await records(system)
    await until(lambda: is_done(system, number), timeout_s=60)
    assert time.monotonic() * 1000 - began_ms >= REST_MS
    assert await records(system) == [(b"bea", b"stays")] and await holding(system) == []
    assert (await diagnosed(system, 2)).verdict is Verdict.ERASED
    assert compactor.merges("failed") == 0 and await system.fsck() == []


async def records(system: System) -> list[tuple[bytes | None, bytes | None]]:
    return [
        (None if each.key is None else bytes(each.key), None if each.value is None else bytes(each.value))
        for _, each in await read_all(system.client, "t")
    ]


async def _is_read_without(system: System, record: tuple[bytes, bytes]) -> bool:
    return record not in await records(system)


async def _is_in(system: System, number: int, stage: ErasureStage) -> bool:
    return (await erasure(system, number)).stage is stage


async def test_an_object_without_a_row_holds_an_erasure_back_and_those_of_other_topics_do_not(
    system: System, start_compactor: StartCompactor
) -> None:
    # given
    for topic in ("t", "other"):
        await system.client.create_topic(topic, partitions=1)
    await system.write("other", 1)
    compactor = await leveled(system, start_compactor, orphan_age_ms=DAY_MS)
    [others] = await live_keys(system, 1)
    await copied(system, others)
    await produce(system, "t", (ADA, SECRET))
    await until(lambda: _has_two(system))
    ours = next(key for key in await live_keys(system, 1) if key != others)
    stray = await copied(system, ours)
    # when
    number = await request(system, "t")
    await until(lambda: nothing_pends(system, number), timeout_s=60)
    # then
    await until(lambda: _metric_is(compactor, "erasures_blocked", 1))
    assert not await is_done(system, number) and await holding(system) == [stray]
    # and when it is gone
    await system.store.delete_many([stray])
    await until(lambda: is_done(system, number))
    assert (await erasure(system, number)).report["listing"]["without_a_row"] == 1
    await until(lambda: _metric_is(compactor, "erasures_blocked", 0))


async def _has_two(system: System) -> bool:
    return len(await live_keys(system, 1)) == 2


async def test_a_forgotten_upload_holds_an_erasure_back_until_it_is_aborted(
    system: System, start_compactor: StartCompactor
) -> None:
    # given an upload that a killed compactor left
    await system.client.create_topic("t", partitions=1)
    await produce(system, "t", (ADA, SECRET))
    compactor = await leveled(system, start_compactor, leftovers_interval_ms=DAY_MS, upload_age_ms=6_000)
    now_ms = await system.metadata.now_ms()
    key = file_key(level=1, writer_id=999, epoch=0, file_uuid=SystemIds().uuid7(now_ms), created_ms=now_ms)
    upload = await system.store.start_multipart(key)
    await upload.write(SECRET)
    # when
    number = await request(system, "t")
    await until(lambda: _metric_is(compactor, "erasures_blocked", 1))
    assert await nothing_pends(system, number) and not await is_done(system, number)
    # then
    await until(lambda: is_done(system, number))
    assert [each async for each in system.store.begun_uploads()] == []
    assert compactor.metric("multiparts_aborted_total") == 1


async def test_a_pin_holds_an_erasure_back_and_is_counted(system: System, start_compactor: StartCompactor) -> None:
    # given
    await system.client.create_topic("t", partitions=1)
    await produce(system, "t", (ADA, SECRET))
    compactor = await leveled(system, start_compactor)
    pin = await system.metadata.readers.pin("a reader", ttl_ms=DAY_MS)
    # when
    number = await request(system, "t")
    # then
    await until(lambda: _metric_is(compactor, "erasures_blocked", 1))
    assert await holding(system) and not await is_done(system, number)
    await system.metadata.readers.unpin(pin)
    await until(lambda: is_done(system, number))
    assert await holding(system) == []


async def test_bytes_that_cannot_be_read_hold_an_erasure_back_and_are_named(
    system: System, start_compactor: StartCompactor
) -> None:
    # given an L0 file that is damaged, so that its records are flagged in L1
    await system.client.create_topic("t", partitions=1)
    await produce(system, "t", (ADA, SECRET))
    [key] = await live_keys(system, 0)
    body = bytearray(await system.store.get(key))
    at = bytes(body).index(SECRET)
    body[at] ^= 0xFF
    await system.store.delete_many([key])
    await system.store.put_if_absent(key, bytes(body), crc32c=crc32c(bytes(body)))
    compactor = await leveled(system, start_compactor)
    # when
    number = await request(system, "t", deadline_ms=1)
    # then
    await until(lambda: _metric_is(compactor, "erasures_blocked", 1))
    await until(lambda: _one_pends(system, number))
    [pending] = await system.metadata.erasures.pending_files(number)
    assert pending.state is FileState.LIVE and pending.flagged_reason is not None
    # and the deadline passes
    await until(lambda: _metric_is(compactor, "erasures_overdue", 1))
    assert compactor.metric("erasure_overdue_seconds") > 0 and compactor.metric("erasures_open") == 1
    await until(lambda: _metric_is(compactor, "erasure_pending_files", 1))
    assert compactor.metric("erasure_pending_bytes") > 0


async def _one_pends(system: System, number: int) -> bool:
    return len(await system.metadata.erasures.pending_files(number)) == 1


@pytest.mark.parametrize("system_metadata_url", ["postgres"], indirect=True)
async def test_nothing_is_declared_done_while_postgres_is_not_the_one_that_was_adopted(
    system: System, system_metadata_url: str, start_compactor: StartCompactor
) -> None:
    # given an erasure of which no file is left, and a compactor that takes over from one that was killed
    await system.client.create_topic("t", partitions=1)
    await produce(system, "t", (ADA, SECRET))
    compactor = await leveled(system, start_compactor, erase_interval_ms=DAY_MS)
    number = await request(system, "t")
    await until(lambda: nothing_pends(system, number), timeout_s=60)
    await compactor.compactor.stop()
    duty = duty_of(system)
    # when Postgres is restored or fails over
    await run_sql(system_metadata_url, "UPDATE cluster SET adopted_timeline = adopted_timeline - 1")
    # then
    assert await duty.round() and not await is_done(system, number)
    # and when somebody has adopted it
    await run_sql(system_metadata_url, "UPDATE cluster SET adopted_timeline = adopted_timeline + 1")
    assert await duty.round() and await is_done(system, number)
    assert not await duty.round()


def duty_of(system: System) -> ErasureDuty:
    runtime = Runtime()
    limits = JanitorLimits(grace_ms=0, orphan_age_ms=DAY_MS)
    janitor = Janitor(store=system.store, metadata=system.metadata, runtime=runtime, limits=limits)
    return ErasureDuty(store=system.store, metadata=system.metadata, runtime=runtime, janitor=janitor)


@pytest.mark.parametrize("lives", [True, False])
async def test_outputs_of_a_job_that_lives_hold_nothing_back_and_those_of_a_failed_one_do(
    system: System, start_compactor: StartCompactor, lives: bool
) -> None:
    # given an erasure of which no file is left
    await system.client.create_topic("t", partitions=1)
    await produce(system, "t", (ADA, SECRET))
    compactor = await leveled(system, start_compactor, erase_interval_ms=DAY_MS, orphan_age_ms=DAY_MS)
    number = await request(system, "t")
    await until(lambda: nothing_pends(system, number), timeout_s=60)
    await compactor.compactor.stop()
    # and a merge of younger records that has written its output and not committed
    await produce(system, "t", (b"bea", b"stays"))
    merger = await HandMerger.start(system.metadata, system.store)
    claimed = await merger.claim(l0_files=await merger.live_l0())
    await merger.write(claimed, level=1, shape=as_it_is)
    if not lives:
        await system.metadata.compactors.fail_job(claimed.job.job_id, claimed.job.epoch, error="out of luck")
    # then
    assert await duty_of(system).round()
    assert await is_done(system, number) is lives


async def test_a_batch_that_was_sent_again_holds_an_erasure_back_until_its_l0_file_is_gone(
    system: System, start_compactor: StartCompactor
) -> None:
    # given an erasure of which no file is left
    ids = await system.client.call(
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1), InitProducerIdResponse
    )
    now_ms = int(time.time() * 1000)
    stamp = ProducerStamp(ids.producer_id, 0, 0)
    sent = build_batch([NewRecord(now_ms, ADA, SECRET)], producer=stamp)
    for topic in ("t", "other"):
        await system.client.create_topic(topic, partitions=1)
    assert await system.client.produce("t", 0, sent) == 0
    running = await leveled(system, start_compactor, erase_interval_ms=DAY_MS)
    number = await request(system, "t")
    await until(lambda: nothing_pends(system, number), timeout_s=60)
    await running.compactor.stop()
    # when the producer sends its batch again, because it lost the answer, and the L0 file lives for another record
    beside = build_batch([NewRecord(now_ms, b"bea", b"stays")])
    data = [
        TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=each)])
        for topic, each in (("t", sent), ("other", beside))
    ]
    answer = await system.client.call(ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=data), ProduceResponse)
    assert [topic.partition_responses[0].base_offset for topic in answer.responses] == [0, 0]
    assert len(await system.metadata.erasures.refused_files()) == 1
    # then the erasure waits, and tools tell that the bytes are there
    duty = duty_of(system)
    for _ in range(2):
        assert await duty.round()
    assert not await is_done(system, number) and len(await holding(system)) == 1
    assert [each.level for each in (await diagnosed(system, 0)).remnants] == [None]
    # and it ends when the file is gone
    running = await start_beside(system, start_compactor, **{**QUIET, "erase_interval_ms": DAY_MS})
    await until(lambda: is_nothing_refused(system), timeout_s=60)
    await running.compactor.stop()
    assert await duty.round() and await is_done(system, number)
    assert await holding(system) == []
    assert await system.values("t") == [] and await system.values("other") == [b"stays"]


async def is_nothing_refused(system: System) -> bool:
    return not await system.metadata.erasures.refused_files()
