"""`siltstone drill`: a real rebuild of a live cluster's metadata, into a database that is thrown away.

The order: pin the live files, look at the live metadata, rebuild, check, look again, compare. The pin keeps every file
that the drill may read. It ends with the drill, or, if the drill is killed, after `PIN_MS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

from compactor.deletion.backup_format import BackupRefusedError
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.files import FileInfo, FileState
from metadata.contract.operators import SystemView
from metadata.contract.store import MetadataStore
from metadata.postgres.backup.kept import read_commit_times, read_kept
from metadata.postgres.backup.scratch import scratch_database
from metadata.rules.invariants.all_levels import Violation, live_extents
from metadata.urls import open_metadata
from runtime.runtime import Runtime
from runtime.text import size_text
from siltstone.ops.drill.bucket import ListedSizes, UnchangedBucket
from siltstone.ops.drill.compare import Comparison, Seen, SeenLater, compare
from siltstone.ops.fsck import StoreAndRows, all_files, check_objects, check_system
from siltstone.ops.rebuild.reading import Found, NoCatalogError
from siltstone.ops.rebuild.run import Rebuild, Rebuilt
from siltstone.processes.stopping import unless
from storage.objects import ObjectNotFoundError, ObjectStore

PIN_MS = 600_000
BEAT_MS = 120_000
HEADS_MAX = 1_000
"""Objects whose length is asked for; of the others the listing tells it."""
READ_FILES_MAX = 20
READ_BYTES_MAX = 256 << 20
"""Objects that are read whole, and their bytes in all."""


class ScratchLostError(MetadataUnavailableError):
    """Another drill may drop the scratch database of this one. Nothing was found out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drilled:
    """The result of a drill."""

    reasons: Sequence[str]
    """Why the bucket is not fit for a rebuild; empty if it is."""
    seconds: float
    rebuild_seconds: float = 0
    rebuilt: Rebuilt | None = None
    """None: nothing could be rebuilt."""
    comparison: Comparison | None = None
    scratch_bytes: int = 0
    read_files: int = 0
    """The objects whose bytes were compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """One drill. `scratch_url`: the Postgres that takes the rebuilt metadata; "" is the live one."""

    metadata: MetadataStore
    store: ObjectStore
    metadata_url: str = field(repr=False)
    scratch_url: str = field(repr=False)
    runtime: Runtime
    say: Callable[[str], None]
    lost_ms_max: int

    async def run(self) -> Drilled:
        """Raises NoScratchError, ScratchLostError, MetadataUnavailableError, ClusterMismatchError, and the store's
        errors."""
        drilled = await self._once()
        if drilled.reasons:
            # The live cluster may have written and deleted parts of the catalogue while they were listed.
            self.say(f"trying again, because of this: {drilled.reasons[0]}")
            drilled = await self._once()
        return drilled

    async def _once(self) -> Drilled:
        began_ms = self.runtime.clock.monotonic_ms()
        url = self.scratch_url or self.metadata_url
        async with (
            scratch_database(url, ids=self.runtime.ids, say=self.say) as scratch,
            pinned(self.metadata, self.runtime),
        ):
            live = await _with_commit_times(await _look(self.metadata, self.metadata_url), self.metadata_url)
            self.say(
                f"the live metadata take {size_text(live.kept.size_bytes)}; their copy takes no more, in {scratch.name}"
            )
            try:
                drilled = await unless(scratch.lost, self._drill(live, scratch.url, began_ms))
            except (NoCatalogError, BackupRefusedError, ObjectNotFoundError) as error:
                return Drilled(reasons=[error.message], seconds=self._seconds(began_ms))
            if drilled is None:
                raise ScratchLostError(
                    "Postgres ended the session that keeps other drills off the scratch database; this drill ends",
                    remedy="run it again; if this goes on, look in the log of that Postgres for who ends idle sessions",
                )
            return drilled

    async def _drill(self, live: Seen, scratch: str, began_ms: float) -> Drilled:
        bucket = UnchangedBucket(self.store)
        rebuild_ms = self.runtime.clock.monotonic_ms()
        rebuilt = await Rebuild(
            store=bucket, metadata_url=scratch, runtime=self.runtime, say=self.say, is_drill=True
        ).run()
        rebuild_seconds = self._seconds(rebuild_ms)
        self.say("checking the rebuilt metadata")
        restored = open_metadata(scratch, runtime=self.runtime)
        await restored.open()
        try:
            there = await _look(restored, scratch)
            violations, read_files = await self._check(restored, live, there, bucket, rebuilt.found.listing)
        finally:
            await restored.close()
        later = await _look_again(self.metadata, self.metadata_url)
        comparison = compare(live, later, there, rebuilt.plan.holes, known_ms=rebuilt.plan.known_ms)
        missing = missing_objects(live.view, rebuilt.found.listing)
        gone = await self._gone(rebuilt.found.unreadable)
        return Drilled(
            reasons=[
                *(f"missing in the bucket, though its records are live: {key}" for key in missing),
                *judge(rebuilt.found, comparison, violations, lost_ms_max=self.lost_ms_max, gone=gone),
            ],
            seconds=self._seconds(began_ms),
            rebuild_seconds=rebuild_seconds,
            rebuilt=rebuilt,
            comparison=comparison,
            scratch_bytes=there.kept.size_bytes,
            read_files=read_files,
        )

    async def _check(
        self, metadata: MetadataStore, live: Seen, there: Seen, bucket: ObjectStore, sizes: dict[str, int]
    ) -> tuple[Sequence[Violation], int]:
        """All invariants, lengths of a sample by requests, and the bytes of a smaller one. Returns what is violated,
        and the number of objects read."""
        # The pin keeps these alone: the live cluster may delete those that died before.
        kept = {each.key for each in (*live.view.l0_files, *live.view.extents)}
        files = [file for file in await all_files(metadata) if file.state is FileState.LIVE and file.key in kept]
        # By chance: each drill looks at others.
        chosen = sorted(files, key=lambda _: self.runtime.ids.jitter())
        asked = frozenset(file.key for file in chosen[:HEADS_MAX])
        findings = await check_system(
            metadata, ListedSizes(bucket, sizes, asked), quick=True, progress=lambda _done, _all: None
        )
        # FILE-2 is about objects that no row names: the live cluster goes on writing.
        violations = [each for finding in findings if finding.id != "FILE-2" for each in finding.violations]
        read = _to_read(chosen)
        keys = {file.key for file in read}
        marks = {mark.partition_id: mark for mark in there.view.watermarks}
        extents = [each for each in live_extents(there.view.l0_files, marks, there.view.extents) if each.key in keys]
        store = StoreAndRows(bucket, read, there.view)
        violations += await check_objects(
            read, extents, there.view, store, quick=False, progress=lambda _done, _all: None
        )
        return violations, len(read)

    async def _gone(self, unreadable: Sequence[str]) -> frozenset[str]:
        """Those whose object is not there any more: the live cluster deleted it while the drill read the bucket."""
        gone: set[str] = set()
        for said in unreadable:
            try:
                await self.store.head(said.partition(": ")[0])
            except ObjectNotFoundError:
                gone.add(said)
        return frozenset(gone)

    def _seconds(self, began_ms: float) -> float:
        return (self.runtime.clock.monotonic_ms() - began_ms) / 1000


def judge(
    found: Found,
    comparison: Comparison,
    violations: Sequence[Violation],
    *,
    lost_ms_max: int,
    gone: frozenset[str] = frozenset(),
) -> Sequence[str]:
    """The reasons against the bucket. Pure."""
    reasons: list[str] = []
    if comparison.lost_ms > lost_ms_max:
        reasons.append(
            f"a rebuild would lose what was committed up to {comparison.lost_ms // 1000:,} s before the drill, and"
            f" {lost_ms_max // 1000:,} s are allowed"
        )
    differing = comparison.differing()
    if differing and comparison.taken_ms - comparison.changed_ms > lost_ms_max:
        reasons.append(f"differing from the live ones, though not changed of late: {', '.join(differing)}")
    reasons += [f"wrong: {each}" for each in comparison.wrong]
    reasons += [f"damaged in the catalogue: {each}" for each in found.damaged]
    reasons += [f"cannot be read: {each}" for each in found.unreadable if each not in gone]
    reasons += [f"{each.id} of the rebuilt metadata: {each.message}" for each in violations]
    return reasons


async def _look(metadata: MetadataStore, url: str) -> Seen:
    kept = await read_kept(url)
    topics = await metadata.agents.list_topics()
    # Last: a topic that is created meanwhile has no name here, and does not count.
    view = await metadata.operators.system_view()
    return Seen(topics={topic.topic_id: topic for topic in topics}, view=view, kept=kept)


async def _with_commit_times(seen: Seen, url: str) -> Seen:
    """`SystemView` leaves the times of L1 and L2 out, by which the recovery point is told."""
    times = await read_commit_times(url)
    extents = [each._replace(committed_ms=times.get(each.extent_id)) for each in seen.view.extents]
    return replace(seen, view=replace(seen.view, extents=extents))


def missing_objects(view: SystemView, listing: Collection[str]) -> Sequence[str]:
    """The objects of live files that the bucket has not. They were pinned before the bucket was listed, so nobody may
    have deleted them. Pure."""
    keys = {file.key for file in view.l0_files if not file.inline} | {each.key for each in view.extents}
    return sorted(keys.difference(listing))


async def _look_again(metadata: MetadataStore, url: str) -> SeenLater:
    topics = await metadata.agents.list_topics()
    ids = [id_ for topic in topics for id_ in topic.partition_ids]
    marks = await metadata.agents.watermarks(ids)
    return SeenLater(
        topics={topic.topic_id: topic for topic in topics},
        log_starts={id_: mark.log_start_offset for id_, mark in marks.items()},
        kept=await read_kept(url),
    )


def _to_read(files: Sequence[FileInfo]) -> Sequence[FileInfo]:
    """The first of them, within the bounds."""
    taken: list[FileInfo] = []
    left = READ_BYTES_MAX
    for file in files:
        if len(taken) < READ_FILES_MAX and file.size_bytes <= left:
            taken.append(file)
            left -= file.size_bytes
    return taken


@asynccontextmanager
async def pinned(metadata: MetadataStore, runtime: Runtime) -> AsyncGenerator[None]:
    """No file that is live now is deleted while the block runs. Raises MetadataUnavailableError."""
    pin_id = await metadata.readers.pin("siltstone-drill", ttl_ms=PIN_MS)

    async def beat() -> None:
        while True:
            await runtime.clock.sleep_ms(BEAT_MS)
            with suppress(MetadataUnavailableError):
                await metadata.readers.beat_pin(pin_id, ttl_ms=PIN_MS)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        with suppress(MetadataUnavailableError):  # it runs out by itself
            await metadata.readers.unpin(pin_id)
