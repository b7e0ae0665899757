"""Merges in a run with transactions: the product's planner, engine and commit, and what they may take.

Some merges level all files at once, some follow the planner, and some take a few extents of the compacted topic that no
planner would take together. Between the work of a merge and its commit others go on. The compacted topic has a key of
its own for each record, so that a merge may take from it what was aborted, markers, and nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from compactor.merging.execute import MergeEngine
from compactor.planning.options import MergeMemory
from compactor.planning.plan import new_job, plan_merges
from compactor.planning.spec import MergeKind, MergeSpec, PlanOptions
from metadata.contract.jobs import ClaimedJob, CommitMerge, InputsBusyError, JobLostError, MergeRefusedError
from runtime.ids import SystemIds
from runtime.runtime import Runtime
from storage.by_level import ByLevel
from tests.compaction.specs import arbitrary_spec
from tests.simulation.book import TopicPartition
from tests.simulation.checks import StoredBatch, Truth, read_truth
from tests.simulation.loop import SimulationClock
from tests.simulation.services import finish
from tests.simulation.transactions.orders import Order

if TYPE_CHECKING:
    from tests.simulation.world import World

COMPACTED = "compacted"
CONFIGS = {"cleanup.policy": "compact", "delete.retention.ms": "0", "min.cleanable.dirty.ratio": "0.0"}
LIMIT_MS = 400
"""From the claim of a job to its commit."""
GRACES_MS = (400, 400, 2_000, 8_000)
OPTIONS = PlanOptions(
    l0_files_min=2,
    l0_bytes_min=1,
    l0_wait_ms=20,
    l0_wait_ms_max=200,
    l1_runs_min=2,
    l2_runs_min=2,
    l2_similar_factor=3.0,
    forced_dirty_bytes_min=1,
    forced_dirty_wait_ms=100,
    forced_interval_ms=50,
    mostly_dead_bytes_min=1,
    purge_deadline_ms=30_000,
    expiry_margin_ms=0,
    job_limit_base_ms=LIMIT_MS,
    job_limit_ms_per_mib=0,
)
HASTY = replace(OPTIONS, l0_files_min=1, l0_wait_ms=0, l0_wait_ms_max=0)


class Merger:
    """One compactor, without faults of its own."""

    def __init__(self, world: World, rng: random.Random, *, grace_ms: int) -> None:
        self._world, self._rng = world, rng
        self._grace_ms = grace_ms
        self._server = world.server
        self.process = world.new_process("merger")
        self._runtime = Runtime(clock=SimulationClock(world.loop), ids=SystemIds(seed=rng.getrandbits(40)))
        self._store = ByLevel(world.stores.first, world.stores.second)
        self._known: dict[int, dict[int, StoredBatch]] = {}
        """Every batch that was there before a merge, by partition id and offset."""

    async def run(self) -> None:
        compactors, rng = self._server.compactors, self._rng
        lease = await compactors.register_compactor("merger")
        engine = MergeEngine(
            store=self._store,
            runtime=self._runtime,
            lease=lease,
            memory=MergeMemory(keys_max=1_000, cursor_bytes=1 << 20),
            in_thread=False,
        )
        while True:
            # Once the faults are over, little is left to meet a merge.
            slower = 1 if self._world.healed_ms is None else 4
            await self._runtime.clock.sleep_ms(slower * rng.choice((10, 40, 250)) * rng.random())
            await compactors.beat_compactor(lease)
            for spec in await self._specs():
                try:
                    await compactors.create_job(new_job(spec))
                except InputsBusyError:
                    continue
            while claimed := await compactors.claim_job(lease):
                await self._merge(engine, claimed)

    async def _specs(self) -> Sequence[MergeSpec]:
        view, rng = await self._server.compactors.compaction_view(), self._rng
        draw = rng.random()
        if draw < 0.4:
            options = replace(HASTY, grace_ms=self._grace_ms)
            return [spec for spec in plan_merges(view, options) if spec.kind is MergeKind.LEVEL]
        if draw < 0.6:
            return plan_merges(view, replace(OPTIONS, grace_ms=self._grace_ms))
        free = [
            extent
            for partition in view.partitions
            for extent in partition.extents
            if extent.extent_id not in view.busy_extents
        ]
        if not free:
            return ()
        chosen = sorted(rng.sample(free, k=rng.randint(1, len(free))), key=lambda each: each.extent_id)
        return [arbitrary_spec(view, chosen, limit_ms=LIMIT_MS, grace_ms=self._grace_ms)]

    async def _merge(self, engine: MergeEngine, claimed: ClaimedJob) -> None:
        """Without errors: the bytes are whole, and the stores never fail here."""
        commit = await engine.run(claimed)
        # Others commit, end and delete meanwhile.
        await self._runtime.clock.sleep_ms(self._rng.choice((0, 60, LIMIT_MS)) * self._rng.random())
        self._remember(finish(read_truth(self._server, self._world.stores)))
        listed = len(self._server.database.transactions.aborted)
        partial = any(self._partial(claimed))
        try:
            await self._server.compactors.commit_merge(commit)
        except (JobLostError, MergeRefusedError) as error:
            self._world.note("merger", "does not commit", kind=claimed.job.kind, why=str(error))
            return
        self._count(claimed, commit, has_partial=partial)
        await self._server.compactors.notify()
        self._world.note(
            "merger",
            "commits",
            kind=claimed.job.kind,
            l0=[each.file_id for each in claimed.l0_files],
            covered=dict(commit.covered),
            forgot=listed - len(self._server.database.transactions.aborted),
        )

    # ---- orders

    def _partial(self, claimed: ClaimedJob) -> Iterator[bool]:
        """Whether the merge reads records of an aborted transaction, and not its marker, in a pass that dedupes."""
        spec = MergeSpec.from_json(claimed.job.spec)
        if not spec.dedupe:
            return
        held = [(each.partition_id, each.base_offset, each.last_offset) for each in claimed.extents]
        for each in self._server.database.transactions.aborted:
            mine = [(base, last) for partition_id, base, last in held if partition_id == each.partition_id]
            reads = any(base <= each.last_offset and last >= each.first_offset for base, last in mine)
            yield reads and not any(base <= each.last_offset <= last for base, last in mine)

    def _count(self, claimed: ClaimedJob, commit: CommitMerge, *, has_partial: bool) -> None:
        counts = self._world.faults.counts
        if has_partial:
            counts[Order.PARTIAL_MERGE] += 1
        spec = MergeSpec.from_json(claimed.job.spec)
        if not spec.dedupe:
            return
        for extent in claimed.extents:
            bounds = spec.partitions.get(extent.partition_id)
            if bounds is not None and extent.base_offset < bounds.last_stable_offset <= extent.last_offset:
                counts[Order.STABLE_INSIDE] += 1

    # ---- what lies in the log

    def _remember(self, truth: Truth) -> None:
        for place, batches in truth.items():
            known = self._known.setdefault(self._partition_id(place), {})
            for each in _with_records(batches):
                known.setdefault(each.offset, each)

    def whole(self, truth: Truth, starts: Mapping[TopicPartition, int]) -> tuple[Truth, list[str]]:
        """`truth` with what merges took, and what they may not have taken."""
        wrong: list[str] = []
        whole: dict[TopicPartition, list[StoredBatch]] = {}
        for place, present in truth.items():
            there = {each.offset: each for each in _with_records(present)}
            start = starts.get(place, 0)
            # Below the log start, not all that was there is known.
            known = {
                offset: batch
                for offset, batch in self._known.get(self._partition_id(place), {}).items()
                if offset + batch.header.last_offset_delta >= start
            }
            whole[place] = [known.get(at, each) for at, each in sorted({**known, **there}.items())]
            for offset, batch in known.items():
                now = there.get(offset)
                if now is None and place[0] != COMPACTED:
                    wrong.append(f"{place} {offset}: a merge took what was not its to take: {batch.values}")
                elif now is not None and now.values != batch.values:
                    wrong.append(f"{place} {offset}: {batch.values} became {now.values} in a merge")
        return whole, wrong

    def _partition_id(self, place: TopicPartition) -> int:
        topic = next(each for each in self._server.database.topics.values() if each.name == place[0])
        return topic.partition_ids[place[1]]


def _with_records(batches: Sequence[StoredBatch]) -> Iterator[StoredBatch]:
    """A merge leaves a batch empty where readers may wait."""
    return (each for each in batches if each.values)
