"""One random history of a small cluster: writers, merges, crashes, retention, a janitor, readers, all on real parts.

Real: the memory stores, the planner, the merge engine with its kernels, the commit, retention. Not real: time (a manual
clock), the agents (files are built and committed here) and the schedule: jobs are claimed and run, but their commits
are held back and released in any order, twice, too late or never. Everything follows from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from compactor.deletion.janitor import Janitor
from compactor.merging.execute import MergeEngine
from compactor.merging.kway_merge import MergeInputError
from compactor.planning.options import MergeMemory
from compactor.planning.plan import new_job, plan_merges
from compactor.planning.spec import MergeKind, MergeSpec
from compactor.worker import Engine, commit_until_answered
from metadata.contract.agents import each_live_file
from metadata.contract.files import L0File
from metadata.contract.jobs import ClaimedJob, CommitMerge, InputsBusyError, JobLostError, MergeRefusedError
from metadata.contract.l0_commit import BatchResult, CommitL0, Committed
from metadata.contract.leases import AgentAddress, WriterLease
from metadata.contract.topics import Topic
from metadata.memory.store import MemoryMetadata
from metadata.rules.packed_index import IndexRow, iter_index
from runtime.clock import ManualClock
from runtime.errors import SiltstoneError
from runtime.ids import SystemIds
from runtime.runtime import Runtime
from storage.format.file_format import build_file
from storage.keys import file_key
from storage.memory import MemoryStore
from storage.wrappers.faulty import Fault, FaultPlan, FaultRule, Faulty
from storage.wrappers.retrying import Retrying
from tests.compaction.doubts import Doubts
from tests.compaction.erasures import Erasures, no_duty, with_erased_keys
from tests.compaction.log import describe, records_of
from tests.compaction.model import PartitionModel, Rec, SlowReader, wrongs
from tests.compaction.poison import opaque_records
from tests.compaction.producers import Producers, Sent, laid_out
from tests.compaction.specs import JANITOR_LIMITS, OPTIONS, arbitrary_spec
from tests.fixtures.heavy_merges import in_units

NEVER = 1 << 60


@dataclass(slots=True)
class Held:
    """A merge that has run and is not committed yet."""

    claimed: ClaimedJob
    commit: CommitMerge


@dataclass
class World:
    seed: int
    heavy: bool = False
    """Merges of L1 and above are cut into units, which run as on a cluster."""
    says: list[str] = field(default_factory=list[str])
    violations: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.clock = self.new_clock()
        self.ids = SystemIds(self.seed)
        self.runtime = Runtime(clock=self.clock, ids=self.ids)
        self.metadata, self.objects = self.stores()
        self.plan = FaultPlan()
        self.store = Retrying(Faulty(self.objects, self.plan, self.ids, self.clock), self.clock, self.ids)
        self.topics: list[Topic] = []
        self.models: dict[int, PartitionModel] = {}
        self.places: dict[int, tuple[UUID, int]] = {}
        self.readers: list[SlowReader] = []
        self.held: list[Held] = []
        self.seq = self.values = 0
        self.late: list[int] = []
        self.refused: list[tuple[int, bytes, bytes]] = []  # (partition id, key, value) of refused records
        self.producers = Producers(self)
        self.erasures, self.erases, self.duty = Erasures(), True, no_duty()
        self.options = OPTIONS
        self.counts: dict[str, int] = {}
        self.janitor = Janitor(store=self.objects, metadata=self.metadata, runtime=self.runtime, limits=JANITOR_LIMITS)

    def more_actions(self) -> Mapping[str, int]:
        """Actions beside those of every history, and their frequencies."""
        return {}

    async def act(self, action: str) -> None:
        raise AssertionError(action)

    async def before_the_end(self) -> None: ...

    async def before_turn(self, *, last: bool) -> None:
        """Before each of the last rounds of requested passes."""

    async def check_clean(self, partition_id: int, cleaned_through: int, *, last: bool) -> None:
        """After a requested pass over a compacted partition. `last`: the last of three."""

    def new_clock(self) -> ManualClock:
        return ManualClock()

    def stores(self) -> tuple[MemoryMetadata, MemoryStore]:
        return MemoryMetadata(runtime=self.runtime), MemoryStore(self.clock)

    def say(self, what: str) -> None:
        self.says.append(f"{self.clock.monotonic_ms():9.0f} {what}")

    def count(self, what: str, times: int = 1) -> None:
        if times:
            self.counts[what] = self.counts.get(what, 0) + times

    # ---- begin

    async def begin(self) -> None:
        await self.metadata.open()
        self.lease: WriterLease = await self.metadata.agents.register_agent(AgentAddress(host="writer", port=9092))
        self.compactor = await self.metadata.compactors.register_compactor("compactor")
        keys_max, cursor_bytes = self.random.choice([2, 3, 5, 1000]), self.random.choice([1 << 20, 64 << 20])
        embedded = MergeEngine(
            store=self.store,
            runtime=self.runtime,
            lease=self.compactor,
            memory=MergeMemory(keys_max=keys_max, cursor_bytes=cursor_bytes),
            in_thread=False,
        )
        self.engine: Engine = (
            await in_units(embedded, self.metadata, random.Random(self.seed)) if self.heavy else embedded
        )
        for name in ("users", "orders", "events"):
            await self.create_topic(name)
        self.key_count = self.random.choice([2, 4, 12])
        self.poison = self.random.choice([0.0, 0.0, 0.0, 0.05, 0.3])
        """The share of unreadable batches: clients sent them while their topic was plain."""
        if self.random.random() < 0.5:
            # No forced passes: merges of a few runs see some extents of a partition and not others.
            self.options = replace(self.options, forced_dirty_bytes_min=NEVER, forced_dirty_wait_ms=NEVER)
        self.say(f"keys {self.key_count}")

    async def create_topic(self, name: str) -> None:
        r = self.random
        configs: dict[str, str] = {}
        if name != "events":
            configs["cleanup.policy"] = r.choice(["compact", "compact", "compact,delete"])
            configs["delete.retention.ms"] = str(r.choice([0, 500, 5_000]))
            configs["min.cleanable.dirty.ratio"] = r.choice(["0.0", "0.5"])
            if r.random() < 0.25:
                configs["min.compaction.lag.ms"] = str(r.choice([300, 2_000]))
            if "delete" in configs["cleanup.policy"]:
                configs["retention.ms"] = str(r.choice([5_000, 60_000]))
        else:
            configs["retention.ms"] = str(r.choice([-1, 20_000]))
        if r.random() < 0.4:
            configs["segment.ms"] = str(r.choice([1, 100, 1_000]))
        topic = await self.metadata.agents.create_topic(name, partitions=r.choice([1, 1, 2]), configs=configs)
        self.topics.append(topic)
        for number, partition_id in enumerate(topic.partition_ids):
            self.places[partition_id] = (topic.topic_id, number)
            self.models[partition_id] = PartitionModel(
                name=f"{name}-{number}",
                was_compact=name != "events",
                min_lag_ms=int(configs.get("min.compaction.lag.ms", 0)),
                delete_retention_ms=int(configs.get("delete.retention.ms", 86_400_000)),
            )
        self.say(f"create {name} {configs}")

    # ---- writing

    async def write(self, *, file_id: int | None = None, built: Mapping[int, list[Sent]] | None = None) -> None:
        """`built`: batches by partition id; by chance if left out."""
        r = self.random
        if built is None:
            partitions = sorted(r.sample(sorted(self.models), k=r.randint(1, min(3, len(self.models)))))
            built = {each: [await self.producers.batch(each) for _ in range(r.randint(1, 3))] for each in partitions}
        extents, rows, sent = laid_out(built, self.places, r)
        file = build_file(extents, level=0, created_ms=self.clock.wall_ms())
        key = file_key(
            level=0,
            writer_id=self.lease.writer_id,
            epoch=self.lease.epoch,
            file_uuid=self.ids.uuid7(self.clock.wall_ms()),
            created_ms=self.clock.wall_ms(),
        )
        await self.objects.put_if_absent(key, file.body, crc32c=file.crc32c)
        self.seq += 1
        size_bytes, crc = len(file.body), file.crc32c
        request = CommitL0(lease=self.lease, seq=self.seq, key=key, size_bytes=size_bytes, crc32c=crc, batches=rows)
        committed = await self._commit(request, file_id)
        for row, batch, result in zip(rows, sent, committed.results, strict=True):
            self._answered(row.partition_id, batch, result)
        self.say(
            f"write file {committed.file_id}: "
            + ", ".join(f"{self.models[p].name}..{self.models[p].end}" for p in built)
        )
        self.count("write")

    def _answered(self, partition_id: int, sent: Sent, result: BatchResult) -> None:
        body, records = sent
        if result.error:
            self.refused += [(partition_id, one.key, one.value) for one in records if one.key and one.value]
            return
        if result.duplicate:
            assert result.base_offset == self.producers.stored_at(partition_id, body)
            self.count("sent again")
            return
        model = self.models[partition_id]
        assert result.base_offset == model.end, "offsets are dense"
        self.producers.stored(partition_id, sent, model.end)
        if records:
            model.records += [
                Rec(model.end + n, one.key, one.value, one.timestamp_ms, one.headers) for n, one in enumerate(records)
            ]
        else:
            model.records += opaque_records(body, model.end)
            self.count("poison")

    async def _commit(self, request: CommitL0, file_id: int | None) -> Committed:
        """With `file_id`: a commit that drew its id long ago and becomes visible only now."""
        if file_id is None:
            return await self.metadata.agents.commit_l0(request)
        database = self.metadata.database
        kept, database.next_file_id = database.next_file_id, file_id
        try:
            return await self.metadata.agents.commit_l0(request)
        finally:
            database.next_file_id = kept

    async def write_late(self) -> None:
        """Draws a file id now; the commit becomes visible after others, perhaps inside a merged range."""
        database = self.metadata.database
        drawn, database.next_file_id = database.next_file_id, database.next_file_id + 1
        self.late.append(drawn)
        self.say(f"drew file id {drawn}")
        self.count("late")

    # ---- merging

    async def plan_round(self) -> None:
        view = await self.metadata.compactors.compaction_view()
        for spec in plan_merges(view if self.erases else replace(view, erasing_files={}), self.options):
            await self.create(spec)

    async def create(self, spec: MergeSpec) -> None:
        try:
            job_id = await self.metadata.compactors.create_job(new_job(spec))
        except InputsBusyError:
            self.say(f"busy: {spec.kind} {spec.reason}")
            return
        self.say(
            f"job {job_id} {spec.kind}: L0 {list(spec.l0_file_ids)} files {list(spec.file_ids)} extents"
            f" {list(spec.extent_ids)} for {spec.reason}"
        )
        self.count(f"job {spec.kind}")

    async def level_now(self) -> None:
        """A file that is leveled at once, so that merges have many small extents to choose from."""
        await self.write()
        view = await self.metadata.compactors.compaction_view()
        hasty = replace(self.options, l0_files_min=1, l0_wait_ms=0, l0_wait_ms_max=0)
        for spec in plan_merges(view, hasty):
            if spec.kind is MergeKind.LEVEL:
                await self.create(spec)
        await self._run_and_commit([MergeKind.LEVEL])

    async def _run_and_commit(self, kinds: Sequence[MergeKind]) -> None:
        before = len(self.held)
        await self.run_job(kinds=kinds)
        if len(self.held) > before:
            await self.commit_one(last=True)

    async def arbitrary_merge(self) -> None:
        """A merge that no planner would make, over any free extents of one class; it must be correct all the same."""
        view = await self.metadata.compactors.compaction_view()
        free = [
            extent
            for partition in view.partitions
            for extent in partition.extents
            if extent.extent_id not in view.busy_extents
        ]
        if not free:
            return
        if self.random.random() < 0.7:  # of one partition: extents left out of such a merge may lie below its inputs
            partition_id = self.random.choice(free).partition_id
            free = [extent for extent in free if extent.partition_id == partition_id]
        chosen = sorted(self.random.sample(free, k=self.random.randint(1, len(free))), key=lambda each: each.extent_id)
        await self.create(arbitrary_spec(view, chosen))
        self.count("arbitrary")
        if self.random.random() < 0.5:
            await self._run_and_commit([MergeKind.MERGE])

    async def run_job(self, *, trouble: bool = False, kinds: Sequence[MergeKind] = ()) -> bool:
        """False when there was no job."""
        claimed = await self.metadata.compactors.claim_job(self.compactor, kinds=[kind.value for kind in kinds])
        if claimed is None:
            return False
        job = claimed.job
        if trouble:
            op = self.random.choice(["get", "get_range", "put", "multipart_complete"])
            fault = self.random.choice([Fault.UNREACHABLE, Fault.LOST_ANSWER, Fault.FULL])
            calls = None if self.random.random() < 0.5 else frozenset({self.random.randint(1, 3)})  # None: no try works
            self.plan.rules = [FaultRule(fault=fault, op=op, calls=calls)]
        try:
            commit = await self.engine.run(await with_erased_keys(self, claimed))
        except SiltstoneError as error:
            self.say(f"job {job.job_id} epoch {job.epoch} did not run: {error}")
            self.count("not run")
            blamed = error.file_ids if isinstance(error, MergeInputError) else ()
            # Erased records may be in a batch that nobody can read.
            is_blocked = job.kind == MergeKind.ERASE and bool(blamed) and self.poison > 0
            self.count("erasing blocked", is_blocked)
            if not trouble and not is_blocked:
                self.violations.append(f"job {job.job_id} failed without a fault: {error!r}")
            if not is_blocked and self.random.random() < 0.5:
                await self.metadata.compactors.give_back_job(job.job_id, job.epoch)
            else:
                await self.metadata.compactors.fail_job(
                    job.job_id, job.epoch, error=str(error), file_ids=blamed, retry_after_ms=100
                )
            return True
        finally:
            self.plan.rules = ()
        self.held.append(Held(claimed, commit))
        self.say(f"job {job.job_id} epoch {job.epoch} ran: {describe(commit)}")
        self.count("run")
        self.count("units", commit.summary.get("units", 0))
        self.count("records erased", commit.summary.get("records_erased", 0))
        self.count("overflow", bool(commit.summary["clears"]))
        self.count("deep", any(one.passes > 1 for one in MergeSpec.from_json(job.spec).partitions.values()))
        return True

    async def commit_one(self, *, twice: bool = False, last: bool = False, doubts: bool = False) -> None:
        if not self.held:
            return
        held = self.held.pop(-1 if last else self.random.randrange(len(self.held)))
        job = held.claimed.job
        call = Doubts(self).commit_merge if doubts else self.metadata.compactors.commit_merge
        try:
            first = await commit_until_answered(call, held.commit, clock=self.clock, ids=self.ids)
            if twice and await self.metadata.compactors.commit_merge(held.commit) != first:
                self.violations.append(f"job {job.job_id} answered another thing when asked again")
        except (JobLostError, MergeRefusedError) as error:
            self.say(f"job {job.job_id} epoch {job.epoch} not committed: {error}")
            self.count(type(error).__name__)
            return
        self.say(f"job {job.job_id} epoch {job.epoch} committed, trimmed {first.trimmed_extents}")
        self.count("commit")
        self.count("trimmed", bool(first.trimmed_extents))
        await self.check(held.commit.covered.keys())

    async def crash(self) -> None:
        """A compactor dies between run and commit: its outputs are orphans, its lease runs out."""
        if self.held:
            held = self.held.pop(self.random.randrange(len(self.held)))
            self.say(f"crash with job {held.claimed.job.job_id} epoch {held.claimed.job.epoch}")
            self.count("crash")

    # ---- deletion

    async def delete_records(self) -> None:
        partition_id = self.random.choice(sorted(self.models))
        model = self.models[partition_id]
        if model.end:
            offset = self.random.randint(0, model.end)
            low = await self.metadata.agents.delete_records(partition_id, offset)
            self.say(f"delete records of {model.name} below {offset}: {low}")
            self.count("delete records")

    async def expire(self) -> None:
        done = await self.metadata.deletion.expire()
        if done.extents:
            self.say(f"expired {done.extents} extents")
            self.count("expire")

    async def sweep(self) -> None:
        swept = await self.janitor.sweep()
        orphans = await self.janitor.sweep_orphans()
        if swept.deleted_files or orphans.deleted:
            self.say(f"swept {swept.deleted_files} dead files and {orphans.deleted} orphans")
            self.count("sweep")
            self.count("orphan", orphans.deleted)

    async def change_policy(self) -> None:
        topic = self.random.choice(self.topics)
        policy = self.random.choice(["compact", "delete", "compact,delete"])
        await self.metadata.agents.alter_configs(topic.topic_id, {"cleanup.policy": policy})
        if "compact" in policy:
            for partition_id in topic.partition_ids:
                self.models[partition_id].was_compact = True
        self.say(f"policy of {topic.name} is {policy}")
        self.count("policy")

    async def recreate_topic(self) -> None:
        topic = self.topics.pop(self.random.randrange(len(self.topics)))
        await self.metadata.agents.delete_topic(topic.topic_id)
        for partition_id in topic.partition_ids:
            model = self.models.pop(partition_id)
            self.readers = [reader for reader in self.readers if reader.model is not model]
            del self.places[partition_id]
        self.erasures.requested = [each for each in self.erasures.requested if each.topic_id != topic.topic_id]
        self.say(f"delete topic {topic.name}")
        self.count("recreate")
        await self.create_topic(topic.name)

    async def request(self) -> None:
        topic = self.random.choice(self.topics)
        current = {each.topic_id: each for each in await self.metadata.agents.list_topics()}[topic.topic_id]
        if "compact" in current.configs.get("cleanup.policy", "delete"):
            await self.metadata.operators.request_compaction(topic.topic_id)
            self.say(f"compaction of {topic.name} asked for")
            self.count("request")

    def pass_time(self) -> None:
        span = self.random.choice([1, 20, 200, 200, 1_200, 6_000, 11_000])
        self.clock.advance_ms(span)
        self.say(f"+{span} ms")

    # ---- reading

    async def l0_bytes(self, file: L0File, row: IndexRow) -> bytes:
        if file.inline:
            return file.inline[row.position : row.position + row.length]
        return await self.objects.get_range(file.key, row.position, row.length)

    async def read(self, partition_id: int) -> tuple[list[Rec], int, int]:
        """(readable records, log start, high watermark), and violations where the extents do not tile the log."""
        marks = (await self.metadata.agents.watermarks([partition_id]))[partition_id]
        stretches: list[tuple[int, int, list[Rec]]] = []
        snapshot = await self.metadata.agents.snapshot()
        async for file in each_live_file(self.metadata.agents, snapshot):
            for row in iter_index(file.index):
                if row.partition_id == partition_id and row.last_offset >= marks.log_start_offset:
                    body = await self.l0_bytes(file, row)
                    stretches.append((row.base_offset, row.last_offset, records_of(body, row.base_offset)))
        offset = marks.log_start_offset
        while extents := await self.metadata.readers.leveled_extents(partition_id, offset, limit=5):
            for extent in extents:
                place = extent.key, extent.position, extent.length
                body = await self.objects.get_range(*place) if extent.length else b""
                stretches.append((extent.base_offset, extent.last_offset, records_of(body, None)))
                offset = extent.last_offset + 1
        stretches.sort(key=lambda each: each[0])
        name, end = self.models[partition_id].name, None
        found: list[Rec] = []
        for base, last, records in stretches:
            if end is not None and base != end:
                self.violations.append(f"LOG-3: {name}: an extent ends before {end}, the next begins at {base}")
            end = last + 1
            if any(not base <= record.offset <= last for record in records):
                self.violations.append(f"LOG-2: {name}: records outside {base}..{last}")
            found += records
        is_covered = bool(stretches) and stretches[0][0] <= marks.log_start_offset and end == marks.high_watermark
        if marks.log_start_offset < marks.high_watermark and not is_covered:
            self.violations.append(
                f"LOG-3: {name}: extents {[each[:2] for each in stretches]} do not cover"
                f" {marks.log_start_offset}..{marks.high_watermark}"
            )
        return found, marks.log_start_offset, marks.high_watermark

    async def check(self, partition_ids: Iterable[int] | None = None) -> None:
        """All partitions, or those of the given ones that still exist."""
        for partition_id in sorted(self.models if partition_ids is None else self.models.keys() & set(partition_ids)):
            model = self.models[partition_id]
            present, start, end = await self.read(partition_id)
            if end != model.end:
                self.violations.append(f"{model.name}: high watermark {end}, {model.end} were written")
            self.violations += wrongs(model, present, log_start=start, now_ms=self.clock.wall_ms())

    async def read_slowly(self) -> None:
        if not self.readers or (len(self.readers) < 3 and self.random.random() < 0.3):
            partition_id = self.random.choice(sorted(self.models))
            start = (await self.metadata.agents.watermarks([partition_id]))[partition_id].log_start_offset
            model = self.models[partition_id]
            self.readers.append(SlowReader(model=model, started_ms=self.clock.wall_ms(), start=start, position=start))
            self.count("reader")
        reader = self.random.choice(self.readers)
        partition_id = next(id_ for id_, model in self.models.items() if model is reader.model)
        present, start, end = await self.read(partition_id)
        if start > reader.position or (start > reader.start and reader.position > reader.start):
            self.readers.remove(reader)  # DeleteRecords or retention deleted the records that it has read
            return
        wrong = reader.read(present, self.random.choice([1, 3, 100]), end=end, now_ms=self.clock.wall_ms())
        if wrong is not None:
            self.count("reader at the end")
            self.violations += wrong
            self.readers.remove(reader)
