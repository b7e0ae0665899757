"""Commits of merges whose calls do not arrive, or whose answers are lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metadata.contract.errors import MetadataInDoubtError, MetadataUnavailableError
from metadata.contract.jobs import CommitMerge, JobLostError, MergeCommitted, MergeRefusedError

if TYPE_CHECKING:
    from tests.compaction.world import World

TRIES_MAX = 3


class Doubts:
    """The metadata as one compactor reaches them while it commits a merge: the first tries fail, before they act or
    after. Other things happen before the next try."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._left = world.random.randint(1, TRIES_MAX)
        self._done: MergeCommitted | None = None

    async def commit_merge(self, commit: CommitMerge) -> MergeCommitted:
        world = self._world
        self._left -= 1
        if self._left >= 0 and world.random.random() < 0.5:
            world.count("commit unreached")
            await self._meanwhile()
            raise MetadataUnavailableError("connection refused")
        try:
            answer = await world.metadata.compactors.commit_merge(commit)
        except (JobLostError, MergeRefusedError) as error:
            if self._done is not None:
                world.violations.append(f"job {commit.job_id} was committed, and is now told: {error}")
            raise
        if self._done not in (None, answer):
            world.violations.append(f"job {commit.job_id} answered another thing when asked again")
        self._done = answer
        if self._left >= 0:
            world.count("commit in doubt")
            await self._meanwhile()
            raise MetadataInDoubtError("the answer was lost")
        return answer

    async def _meanwhile(self) -> None:
        world = self._world
        match world.random.randrange(6):
            case 0:
                await world.plan_round()
            case 1:
                await world.run_job()
            case 2:
                await world.delete_records()
            case 3:
                await world.sweep()
            case 4:
                await world.recreate_topic()
            case _:
                world.pass_time()
