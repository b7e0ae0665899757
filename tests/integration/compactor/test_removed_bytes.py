"""Removed records whose bytes lie in files that others share, or in L0: the tools name the files as long as a byte is
there, and the bytes go by the purge deadline.
"""

from __future__ import annotations

import contextlib
import time

from compactor.planning.options import plan_options
from metadata.contract.files import FileState
from runtime.settings.table import Settings
from siltstone.cli.options.system_options import SystemOptions
from siltstone.cli.topics.explain import explained
from siltstone.ops.compaction.causes import Cause
from siltstone.ops.hint_options import NO_HINT_OPTIONS
from siltstone.ops.record_report import Diagnosis, Verdict
from siltstone.ops.record_trace import diagnose
from storage.objects import ObjectNotFoundError
from tests.compaction.claims import values_in
from tests.fixtures.compacted_systems import System, start_beside
from tests.fixtures.compactors import StartCompactor
from tests.fixtures.waiting import until
from wire.records import NewRecord, build_batch

SECRET_KEY, SECRET = b"somebody", b"what-nobody-may-find-again"
SETTINGS = Settings(gc_grace_ms=2_000, purge_deadline_ms=9_000, job_limit_base_ms=1_000, job_limit_ms_per_mib=1)
PURGE_LATER = {
    "purge_deadline_ms": SETTINGS.purge_deadline_ms,
    "job_limit_base_ms": SETTINGS.job_limit_base_ms,
    "job_limit_ms_per_mib": SETTINGS.job_limit_ms_per_mib,
    "mostly_dead_fraction": 1.0,
    "l1_runs_min": 1_000,
    "l2_runs_min": 1_000,
    "forced_dirty_bytes_min": 1 << 40,
    "forced_dirty_wait_ms": 3_600_000,
}
"""Nothing but the purge deadline rewrites a shared file; passes are asked for."""
GIVEN = SystemOptions(data=None, metadata_url="", object_store_url="", settings=SETTINGS)


async def produce(system: System, topic: str, *pairs: tuple[bytes, bytes | None]) -> None:
    now_ms = int(time.time() * 1000)
    await system.client.produce(topic, 0, build_batch([NewRecord(now_ms, *pair) for pair in pairs]))


async def holding(system: System, value: bytes) -> list[str]:
    """The keys of objects in which a record has this value."""
    found: list[str] = []
    for key in [stat.key async for stat in system.store.list("l")]:
        with contextlib.suppress(ObjectNotFoundError):  # the janitor was quicker
            found += [key] if value in await values_in(system.store, key) else []
    return found


async def diagnosed(system: System, topic: str, offset: int) -> Diagnosis:
    options = plan_options(SETTINGS)
    return await diagnose(system.metadata, system.store, topic, 0, offset, NO_HINT_OPTIONS, options)


async def causes(system: System, topic: str) -> set[Cause]:
    told = await explained(system.metadata, system.store, topic, GIVEN)
    return {each.cause for each in told.reasons}


async def compact(system: System, topic: str) -> None:
    """Ask for a pass, and wait until it has reached the end."""
    found = next(each for each in await system.metadata.agents.list_topics() if each.name == topic)
    await system.metadata.operators.request_compaction(found.topic_id)

    async def is_clean() -> bool:
        [view] = await system.metadata.operators.partition_views(found.topic_id)
        return view.cleaned_through_offset == view.high_watermark

    await until(is_clean)


async def test_a_tombstoned_value_in_a_shared_file_is_told_until_the_purge_deadline_and_then_gone(
    system: System, start_compactor: StartCompactor
) -> None:
    # given two compacted topics whose records share an L1 file, and a tombstone
    for name in ("kv", "other"):
        await system.client.create_topic(name, partitions=1, configs={"cleanup.policy": "compact"})
    await produce(system, "kv", (SECRET_KEY, SECRET), (b"k", b"stays"))
    await system.write("other", 3)
    compactor = await start_beside(system, start_compactor, **PURGE_LATER)
    await until(lambda: _is(system, {1}))
    await produce(system, "kv", (SECRET_KEY, None))
    # when a pass of the topic has dropped the value
    await compact(system, "kv")
    # then no reader gets it, its bytes lie in the shared file, and the tools say so
    assert SECRET not in await system.values("kv")
    found = await diagnosed(system, "kv", 0)
    shared = [each for each in found.remnants or () if each.rewritten]
    assert found.verdict is Verdict.COMPACTED and [each.level for each in shared] == [1]
    assert shared[0].key in await holding(system, SECRET)
    assert (shared[0].latest_ms or 0) - (shared[0].dead_ms or 0) == SETTINGS.purge_deadline_ms
    # A merge past its time limit, as the first one on a busy machine, leaves an object that is named too.
    assert "Its bytes still lie in the bucket: " in found.why and "L1 file" in found.why
    assert "a shorter purge.deadline.ms" in found.why
    assert Cause.REMAINS in await causes(system, "kv") and Cause.GONE not in await causes(system, "kv")

    # and by the deadline it is in no object, and the tools say that
    async def is_gone() -> bool:
        return (await diagnosed(system, "kv", 0)).remnants == []

    await until(is_gone, timeout_s=60)
    assert await holding(system, SECRET) == []
    assert "No object of the bucket holds it" in (await diagnosed(system, "kv", 0)).why
    assert compactor.metric("merges_total", kind="purge", outcome="done") >= 1
    await until(lambda: _has(system, "kv", Cause.GONE), timeout_s=60)
    assert sorted(await system.values("kv")) == [b"", b"stays"] and await system.fsck() == []


async def test_a_deleted_topic_in_one_idle_l0_file_is_gone_by_the_purge_deadline_however_long_l0_files_may_wait(
    system: System, start_compactor: StartCompactor
) -> None:
    # given a topic whose only records lie in one L0 file, which no other rule of the planner takes
    await system.client.create_topic("idle", partitions=1)
    await produce(system, "idle", (SECRET_KEY, SECRET))
    compactor = await start_beside(
        system, start_compactor, **{**PURGE_LATER, "compaction_l0_wait_max_ms": 3_600_000, "l0_files_min": 1_000}
    )
    assert len(await holding(system, SECRET)) == 1
    # when
    await system.client.delete_topic("idle")

    async def is_gone() -> bool:
        files = await system.metadata.operators.files(limit=100)
        return {each.state for each in files} == {FileState.DELETED}

    # then
    await until(is_gone, timeout_s=60)
    assert await holding(system, SECRET) == []
    assert compactor.merges("failed") == 0


async def _is(system: System, levels: set[int]) -> bool:
    return await system.levels() == levels


async def _has(system: System, topic: str, cause: Cause) -> bool:
    return cause in await causes(system, topic)
