"""The compactor's contract: jobs in the planner's view."""

from __future__ import annotations

from dataclasses import replace

from tests.contract.merges import claim, commit_of, job
from tests.contract.metadata_worlds import World, Writer, batch, new_topic


async def test_the_view_has_the_sizes_of_live_jobs_by_kind_and_knows_the_last_daily_merge(world: World) -> None:
    writer = await Writer.register(world.service)
    topic = await new_topic(world.service, "orders")
    files = [(await writer.commit(batch(topic.partition_ids[0], 1))).file_id for _ in range(5)]
    view = await world.service.compactors.compaction_view()
    assert (dict(view.live_jobs), view.last_daily_ms) == ({}, None)

    # given a done daily job, a newer daily job that failed, a running job of another kind, and two ready jobs
    done = await claim(world.service, job("daily", l0_file_ids=files[:1]))
    await world.service.compactors.commit_merge(commit_of(done))
    failed = await claim(world.service, job("daily", l0_file_ids=files[1:2]))
    await world.service.compactors.fail_job(failed.job.job_id, failed.job.epoch, error="unreadable", retry_after_ms=0)
    await claim(world.service, replace(job("merge", l0_file_ids=files[2:3]), input_bytes=8 << 30))
    for file_id in files[3:]:
        await world.service.compactors.create_job(job("level", l0_file_ids=[file_id]))

    view = await world.service.compactors.compaction_view()
    assert dict(view.live_jobs) == {"level": [0, 0], "merge": [8 << 30]}
    assert view.last_daily_ms == done.job.created_ms
