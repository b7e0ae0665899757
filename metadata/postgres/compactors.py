"""The calls of a compactor, over Postgres. A module of `metadata/postgres/merges/` implements each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from metadata.contract.compactors import CompactionView
from metadata.contract.jobs import (
    ClaimedJob,
    CommitMerge,
    MergeCommitted,
    MergeJob,
    NewJob,
)
from metadata.contract.leases import WriterLease
from metadata.postgres.connection import Database
from metadata.postgres.log.news import News
from metadata.postgres.merges.commit import MergeCommitter
from metadata.postgres.merges.duties import CompactorLeases
from metadata.postgres.merges.jobs import Jobs
from metadata.postgres.merges.views import PlannerViews


class PostgresCompactors:
    """Implements `CompactorMetadata`."""

    def __init__(self, database: Database, news: News) -> None:
        self._news = news
        self._leases = CompactorLeases(database)
        self._views = PlannerViews(database)
        self._jobs = Jobs(database)
        self._committer = MergeCommitter(database)

    # -- compactors and their duties

    async def register_compactor(self, host: str) -> WriterLease:
        return await self._leases.register_compactor(host)

    async def beat_compactor(self, lease: WriterLease) -> None:
        await self._leases.beat_compactor(lease)

    async def unregister_compactor(self, lease: WriterLease) -> None:
        await self._leases.unregister_compactor(lease)

    async def live_compactors(self) -> Sequence[tuple[int, str]]:
        return await self._leases.live_compactors()

    async def take_duty(self, name: str, lease: WriterLease, *, ttl_ms: int) -> bool:
        return await self._leases.take_duty(name, lease, ttl_ms=ttl_ms)

    # -- planning and jobs

    async def compaction_view(self) -> CompactionView:
        return await self._views.compaction_view()

    async def create_job(self, job: NewJob) -> int:
        return await self._jobs.create_job(job)

    async def claim_job(
        self,
        lease: WriterLease,
        *,
        kinds: Sequence[str] = (),
        job_id: int | None = None,
        bytes_min: int = 0,
        bytes_below: int | None = None,
    ) -> ClaimedJob | None:
        return await self._jobs.claim_job(
            lease, kinds=kinds, job_id=job_id, bytes_min=bytes_min, bytes_below=bytes_below
        )

    async def beat_job(self, job_id: int, epoch: int, *, progress: Mapping[str, Any] | None = None) -> None:
        await self._jobs.beat_job(job_id, epoch, progress=progress)

    async def give_back_job(self, job_id: int, epoch: int, *, trouble: str = "", file_ids: Sequence[int] = ()) -> None:
        await self._jobs.give_back_job(job_id, epoch, trouble=trouble, file_ids=file_ids)

    async def fail_job(
        self, job_id: int, epoch: int, *, error: str, file_ids: Sequence[int] = (), retry_after_ms: int = 60_000
    ) -> None:
        await self._jobs.fail_job(job_id, epoch, error=error, file_ids=file_ids, retry_after_ms=retry_after_ms)

    async def commit_merge(self, commit: CommitMerge) -> MergeCommitted:
        return await self._committer.commit_merge(commit)

    async def job(self, job_id: int) -> MergeJob | None:
        return await self._jobs.job(job_id)

    async def notify(self) -> None:
        await self._news.notify()
