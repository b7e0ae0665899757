"""The only code that deletes objects.

Before each deletion, the janitor checks that the metadata has the history that an operator has adopted
(`metadata/rules/history.py`). After a restore or a failover of Postgres it has another history, and nothing is deleted
or aborted (`JanitorHaltedError`) until an operator adopts it. The check comes after the janitor has read the rows on
which it acts, so it never acts on the answer of a server that took over in between.

Before a dead file goes, the metadata backup in the bucket records that it is dead
(`compactor/deletion/metadata_backup.py`): a rebuild of the metadata must not expect an object that is gone.

`sweep` takes these steps, in this order. Each step may be interrupted anywhere and may run twice at once:

1. Delete dead files that are past their grace, that no pin protects and that no live job reads: first the object, then
   its row, and only for keys whose deletion the store confirmed. A crash in between leaves a dead row without its
   object; the next sweep deletes the absent object again, which succeeds. If the deletion of a key fails, its file
   stays dead, and the next sweep tries again.
2. Abort uploads that were begun and never ended.
3. Delete plans, manifests and other objects of heavy merges that are over, and replaced parts of the metadata backup.
   Steps 2 and 3 list the bucket, so they run once in `leftovers_ms`: what they find costs storage and nothing else.
4. Delete rows of deleted and aborted files that are older than any commit that may still come, in as many small
   transactions as it takes: a janitor that was halted for days catches up.

If step 1 fails (for example because the backup cannot be written), the other steps run before its error is raised. The
gauges of waiting files are set in any case.

`sweep_orphans` lists the store and deletes the orphans that `compactor/deletion/orphans.py` finds. It reads the store's
clock, which takes a probe object, only if it found an unknown object. It aborts the key
first (from then on no commit of the key can succeed), then deletes the object. A crash in between leaves an aborted row
and an object, which the next listing finds again. With too many orphans, or clocks that disagree, it deletes nothing
(`TooManyOrphansError`, `ClocksApartError`): a restored or wrong database is then the likelier cause. If there seem to
be too many, it reads the footers of files that merges wrote, a few at a time, and leaves out files that need not count.
It stops as soon as the remaining ones are too many in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from compactor.deletion.metadata_backup import keys_over
from compactor.deletion.orphans import (
    HARD_BOUND_MS,
    Judged,
    OrphanCandidate,
    Skipped,
    candidate,
    clocks_agree,
    is_copy,
    is_done_again,
    judge,
    old_by_its_key,
    orphans_allowed,
    writers_patience_ms,
)
from compactor.heavy.leftovers import keys_of_jobs_over, plan_makers
from metadata.contract.deletion import DeadFile
from metadata.contract.files import FileState
from metadata.contract.jobs import MergeJob
from metadata.contract.store import MetadataStore
from metadata.rules.history import ADOPT_REMEDY
from runtime.errors import SiltstoneError
from runtime.logging import get_logger
from runtime.runtime import Runtime
from storage.format.file_format import CorruptFileError
from storage.format.file_properties import FileProperties
from storage.format.inspect import inspect_file
from storage.keys import LEVEL_PREFIXES, PROBE_PREFIX
from storage.objects import ObjectNotFoundError, ObjectStat, ObjectStore, ObjectStoreError
from wire.crc import crc32c

_log = get_logger(__name__)

BATCH = 1_000
"""Keys in one delete request (S3's limit) and in one query to the metadata."""
ROWS_KEPT_MS = 24 * 3600 * 1000
MULTIPART_AGE_MS = 24 * 3600 * 1000
FAILURES_SHOWN = 3
FOOTERS_MAX, FOOTERS_AT_ONCE = 10_000, 8
"""Footers read in one sweep when there seem to be too many orphans; each takes three or four requests."""


class TooManyOrphansError(SiltstoneError):
    """So many objects are unknown to the metadata that a wrong or restored database is the likelier cause. Nothing was
    deleted."""


class JanitorHaltedError(SiltstoneError):
    """The metadata database failed over or was restored, and no operator has adopted it yet. Nothing is deleted."""


class ClocksApartError(SiltstoneError):
    """The clocks of the object store and the metadata store differ too much to tell ages. Nothing was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    deleted_files: int
    deleted_bytes: int
    failed: int
    """Objects that the store did not delete."""
    aborted_uploads: int
    forgotten_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptOrphans:
    listed: int
    foreign: int
    """Objects whose keys Siltstone does not write."""
    orphans: int
    spared: int
    deleted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JanitorLimits:
    """The ages and counts that bound what the janitor deletes."""

    grace_ms: int
    """Dead files wait this long (`gc.grace.ms`)."""
    orphan_age_ms: int
    """Younger objects are never orphans (`orphan.age.ms`)."""
    orphan_refuse_files: int = 0
    """With more orphans the sweep refuses (`orphan.refuse.files`); 0 = by the number of objects."""
    leftovers_ms: int = 0
    """The least time between two listings of begun uploads, finished jobs and replaced parts of the backup."""
    orphan_bound_ms: int = HARD_BOUND_MS
    """No writer commits an older object; tests pass less."""


class Janitor:
    """Deletes objects. Metadata and store must be open and of one cluster; the caller has checked the cluster id."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        metadata: MetadataStore,
        runtime: Runtime,
        limits: JanitorLimits,
        before_deleting: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`before_deleting` is called each time before dead files are deleted: it updates the metadata backup."""
        self._store = store
        self._metadata = metadata
        self._clock = runtime.clock
        self._ids = runtime.ids
        self._metrics = runtime.metrics
        self._limits = limits
        self._before_deleting = before_deleting
        self._halted = ""
        self._refused: type[SiltstoneError] | None = None
        self._leftovers_ms = float("-inf")
        """The monotonic time of the last whole sweep of leftovers."""

    # ---- permission to delete
    async def check_history(self) -> None:
        """Raises JanitorHaltedError; each reason is logged once."""
        halted = (await self._metadata.deletion.history()).halts
        if halted != self._halted:
            if halted:
                _log.error("janitor halted: nothing is deleted", why=halted, remedy=ADOPT_REMEDY)
            else:
                _log.info("janitor resumes: the metadata was adopted")
        self._halted = halted
        self._metrics.janitor_halted.set(bool(halted))
        if halted:
            raise JanitorHaltedError(f"nothing is deleted: {halted}", remedy=ADOPT_REMEDY)

    # ---- dead files
    async def sweep(self) -> Swept:
        """Raises JanitorHaltedError, and the errors of the stores. Files deleted before an error stay deleted."""
        try:
            await self.check_history()
            swept = await self._sweep()
        except Exception:
            await self._measure()
            raise
        await self._measure()
        return swept

    async def _sweep(self) -> Swept:
        """If dead files cannot be deleted (for example because the backup cannot be written), the other steps run
        before that error is raised."""
        files = size_bytes = failed = 0
        refused: Exception | None = None
        try:
            files, size_bytes, failed = await self._delete_dead()
        except JanitorHaltedError:
            raise
        except Exception as error:  # whatever the error is: the other steps do not depend on this one
            refused = error
        now_ms = await self._metadata.now_ms()
        uploads = 0
        began_ms = self._clock.monotonic_ms()
        if began_ms - self._leftovers_ms >= self._limits.leftovers_ms:
            uploads = await self.abort_uploads(older_than_ms=now_ms - MULTIPART_AGE_MS)
            failed += await self._delete_all(await keys_of_jobs_over(self._store, self._metadata))
            failed += await self._delete_all(await keys_over(self._store))
            self._leftovers_ms = began_ms
        rows = await self._metadata.deletion.forget_rows(before_ms=now_ms - ROWS_KEPT_MS)
        if files or failed or uploads:
            _log.info("swept", files=files, bytes=size_bytes, failed=failed, uploads=uploads)
        if refused is not None:
            raise refused
        return Swept(
            deleted_files=files, deleted_bytes=size_bytes, failed=failed, aborted_uploads=uploads, forgotten_rows=rows
        )

    async def _delete_dead(self) -> tuple[int, int, int]:
        """Returns the number of deleted files, their bytes, and the number of objects that the store did not delete."""
        files = size_bytes = 0
        failed: set[int] = set()
        while True:
            # Files whose deletion failed are the oldest and come again: ask for as many more.
            dead = await self._metadata.deletion.dead_files(grace_ms=self._limits.grace_ms, limit=BATCH + len(failed))
            batch = [each for each in dead if each.file_id not in failed][:BATCH]
            if not batch:
                return files, size_bytes, len(failed)
            if self._before_deleting is not None:
                await self._before_deleting()
            await self.check_history()
            gone = await self._delete(batch)
            await self._metadata.deletion.files_deleted([each.file_id for each in gone])
            objects = [each for each in gone if not each.is_inline]
            files += len(objects)
            size_bytes += sum(each.size_bytes for each in objects)
            self._metrics.deleted_files_total.inc(len(objects))
            self._metrics.deleted_bytes_total.inc(sum(each.size_bytes for each in objects))
            failed |= {each.file_id for each in batch} - {each.file_id for each in gone}

    async def _delete_all(self, over: Sequence[str]) -> int:
        """Returns the number of objects that the store did not delete."""
        gone = 0
        for start in range(0, len(over), BATCH):
            await self.check_history()
            gone += len(await self._delete_keys(over[start : start + BATCH]))
        return len(over) - gone

    async def _delete(self, batch: Sequence[DeadFile]) -> Sequence[DeadFile]:
        """The files of the batch whose deletion the store confirmed."""
        keys = [each.key for each in batch if not each.is_inline]
        gone = await self._delete_keys(keys) if keys else frozenset[str]()
        return [each for each in batch if each.is_inline or each.key in gone]

    async def _delete_keys(self, keys: Sequence[str]) -> frozenset[str]:
        deleted = await self._store.delete_many(keys)
        if deleted.failed:
            self._metrics.delete_failures_total.inc(len(deleted.failed))
            shown = dict(list(deleted.failed.items())[:FAILURES_SHOWN])
            _log.warning("objects not deleted", count=len(deleted.failed), some=shown)
        return frozenset(deleted.keys) - deleted.failed.keys()

    async def abort_uploads(self, *, older_than_ms: int) -> int:
        """Aborts uploads that began earlier. Raises JanitorHaltedError. The caller knows that none of their writers is
        at work."""
        await self.check_history()
        uploads = await self._store.abort_multiparts(older_than_ms=older_than_ms)
        self._metrics.multiparts_aborted_total.inc(uploads)
        return uploads

    async def _measure(self) -> None:
        waiting = await self._metadata.deletion.dead_waiting()
        self._metrics.dead_files_waiting.set(waiting.files)
        self._metrics.dead_bytes_waiting.set(waiting.bytes)

    # ---- orphans
    async def sweep_orphans(self) -> SweptOrphans:
        """Raises TooManyOrphansError and ClocksApartError (nothing was deleted), JanitorHaltedError, and the errors of
        the stores. A refusal is logged once."""
        await self.check_history()
        try:
            found = await self._find_orphans()
        except (TooManyOrphansError, ClocksApartError) as error:
            self._metrics.orphans_refused.set(1)
            if self._refused is not type(error):
                _log.error("the sweep of orphans refuses", why=error.message, remedy=error.remedy)
            self._refused = type(error)
            raise
        listed, foreign, judged = found
        self._metrics.orphans_refused.set(0)
        if self._refused is not None:
            _log.info("the sweep of orphans resumes")
        self._refused = None
        self._metrics.orphans_spared.set(len(judged.spared))
        self._metrics.foreign_objects.set(foreign)
        deleted = await self._delete_orphans(judged.orphans)
        self._metrics.orphans.set(len(judged.orphans) - deleted)
        if judged.orphans or foreign:
            _log.info("orphans swept", listed=listed, orphans=len(judged.orphans), deleted=deleted, foreign=foreign)
        return SweptOrphans(
            listed=listed, foreign=foreign, orphans=len(judged.orphans), spared=len(judged.spared), deleted=deleted
        )

    async def _find_orphans(self) -> tuple[int, int, Judged]:
        """Returns the number of listed objects, the number of foreign ones among them, and the unknown ones, judged."""
        now_ms = await self._metadata.now_ms()
        listed = foreign = 0
        strange: list[ObjectStat] = []
        old: list[ObjectStat] = []
        for prefix in LEVEL_PREFIXES:
            async for stat in self._store.list(prefix):
                listed += 1
                found = old_by_its_key(stat, now_ms=now_ms, age_ms_min=self._limits.orphan_age_ms)
                if found is Skipped.FOREIGN:
                    foreign += 1
                elif found is None:
                    old.append(stat)
                if len(old) >= BATCH:
                    strange += await self._unknown(old)
                    old.clear()
        strange += await self._unknown(old)
        unknown = await self._old_enough(strange) if strange else ()
        # Queried after the listing: a writer that began to work meanwhile has written no old object.
        judged = judge(unknown, patience_ms=await self._writers_patience_ms(unknown) if unknown else {})
        self._metrics.orphans.set(len(judged.orphans))
        allowed = orphans_allowed(listed, setting=self._limits.orphan_refuse_files)
        if len(judged.orphans) > allowed:
            await self._check_count(judged.orphans, allowed, listed)
        return listed, foreign, judged

    async def _old_enough(self, strange: Sequence[ObjectStat]) -> Sequence[OrphanCandidate]:
        """Those that are old by the store's clock as well and that still have no row. Raises ClocksApartError."""
        store_now_ms = await self._store_now_ms()
        now_ms = await self._metadata.now_ms()
        if not clocks_agree(store_now_ms, now_ms):
            raise ClocksApartError(
                "the clocks of the object store and the metadata store are"
                f" {abs(store_now_ms - now_ms) // 1000} s apart; no orphan is deleted until they agree,"
                " because the ages of objects are unknown",
                remedy="correct the clocks (`siltstone doctor` shows them)",
            )
        age_ms_min = self._limits.orphan_age_ms
        found = (candidate(each, store_now_ms=store_now_ms, now_ms=now_ms, age_ms_min=age_ms_min) for each in strange)
        old = {each.key: each for each in found if isinstance(each, OrphanCandidate)}
        # Again, because the ages are of this moment: a row may have come since the listing.
        unknown: list[OrphanCandidate] = []
        keys = list(old)
        for start in range(0, len(keys), BATCH):
            some = keys[start : start + BATCH]
            known = await self._metadata.deletion.known_keys(some)
            unknown += [old[key] for key in some if key not in known]
        return unknown

    async def _check_count(self, orphans: Sequence[OrphanCandidate], allowed: int, listed: int) -> None:
        """Raises TooManyOrphansError if too many orphans may be the last copy of a record."""
        counted = len(orphans)
        # Only a merged file can be a copy. An L0 file that nobody knows may be the only copy of its records, so it
        # always counts.
        merged = [each for each in orphans if each.is_merged][:FOOTERS_MAX]
        counted_least = counted - len(merged)
        jobs: dict[int, MergeJob | None] = {}
        inputs: dict[tuple[int, str], tuple[FileState | None, bool]] = {}
        # Ends early either way: as soon as few enough count, or too many count whatever the other footers say.
        while merged and counted > allowed >= counted_least:
            some, merged = merged[:FOOTERS_AT_ONCE], merged[FOOTERS_AT_ONCE:]
            said = await asyncio.gather(*(self._footer(each) for each in some))
            for job_id in {each.job_id for each in said if each is not None} - jobs.keys():
                jobs[job_id] = await self._metadata.compactors.job(job_id)
            for orphan, footer in zip(some, said, strict=True):
                if footer is not None and (
                    is_done_again(orphan, epoch=footer.epoch, job=jobs[footer.job_id])
                    or is_copy(await self._inputs(footer, inputs))
                ):
                    counted -= 1
                else:
                    counted_least += 1
        if counted > allowed:
            others = f" ({len(orphans) - counted} of merges that lost nothing are not counted)"
            raise TooManyOrphansError(
                f"{counted} of {listed} objects are unknown to the metadata, more than the {allowed} that may be"
                f" deleted at once{others if counted < len(orphans) else ''}; the first is {orphans[0].key!r}",
                remedy="check whether the database was restored or is the wrong one; if these objects may be deleted,"
                " raise orphan.refuse.files",
            )
        _log.info("orphans left by merges that lost nothing", orphans=len(orphans), counted=counted, allowed=allowed)

    async def _footer(self, orphan: OrphanCandidate) -> FileProperties | None:
        """The footer, which names the merge that wrote the file; None if it cannot be read."""
        try:
            return (await inspect_file(self._store, orphan.key, verify=False)).properties
        except (CorruptFileError, ObjectNotFoundError):
            return None

    async def _inputs(
        self, footer: FileProperties, known: dict[tuple[int, str], tuple[FileState | None, bool]]
    ) -> Sequence[tuple[FileState | None, bool]]:
        """The inputs as `is_copy` takes them; `known`: those already queried in this sweep."""
        new = [each for each in footer.inputs if each not in known]
        for start in range(0, len(new), FOOTERS_AT_ONCE):
            some = new[start : start + FOOTERS_AT_ONCE]
            known.update(zip(some, await asyncio.gather(*(self._input(*each) for each in some)), strict=True))
        return [known[each] for each in footer.inputs]

    async def _input(self, file_id: int, key: str) -> tuple[FileState | None, bool]:
        # The row must match by id and by key: a restored database gives ids a second time, to other files.
        rows = await self._metadata.operators.files(after_file_id=file_id - 1, limit=1)
        if not rows or (rows[0].file_id, rows[0].key) != (file_id, key):
            return None, False
        try:
            stat = await self._store.head(key)
        except ObjectNotFoundError:
            return rows[0].state, False
        return rows[0].state, stat.size_bytes == rows[0].size_bytes

    async def _unknown(self, old: Sequence[ObjectStat]) -> Sequence[ObjectStat]:
        if not old:
            return ()
        known = await self._metadata.deletion.known_keys([each.key for each in old])
        return [each for each in old if each.key not in known]

    async def _writers_patience_ms(self, unknown: Sequence[OrphanCandidate]) -> Mapping[int, int]:
        agents = [agent.writer_id for agent in await self._metadata.agents.live_agents()]
        at_work, all_known = await self.merging_ms()
        if not all_known:  # any merged file may belong to the unknown ones
            bound_ms = self._limits.orphan_bound_ms
            at_work = {**at_work, **{each.writer_id: bound_ms for each in unknown if each.is_merged}}
        return writers_patience_ms(agents, at_work, bound_ms=self._limits.orphan_bound_ms)

    async def merging_ms(self) -> tuple[Mapping[int, int], bool]:
        """Node id -> for how long the writer has been merging, and whether all such writers are known."""
        at_work = dict(await self._metadata.deletion.writers_at_work())
        makers = await plan_makers(self._store, self._metadata)
        for node_id, ms in makers.at_work.items():
            at_work[node_id] = max(at_work.get(node_id, 0), ms)
        return at_work, not makers.unreadable

    async def _delete_orphans(self, orphans: Sequence[OrphanCandidate]) -> int:
        deleted = 0
        for start in range(0, len(orphans), BATCH):
            await self.check_history()
            # `abort_file` refuses a key that was committed, or whose row changed, since the query above.
            batch = orphans[start : start + BATCH]
            aborted = [each.key for each in batch if await self._metadata.deletion.abort_file(each.key)]
            if aborted:
                # The aborts took time. A server that took over since may have lost them.
                await self.check_history()
                deleted += len(await self._delete_keys(aborted))
        self._metrics.orphans_deleted_total.inc(deleted)
        return deleted

    async def _store_now_ms(self) -> int:
        """The object store's clock, by the LastModified of a probe object."""
        key = f"{PROBE_PREFIX}{self._ids.uuid7(self._clock.wall_ms())}"
        body = b"what time is it?"
        await self._store.put_if_absent(key, body, crc32c=crc32c(body))
        try:
            return (await self._store.head(key)).last_modified_ms
        finally:
            try:
                await self._store.delete_many([key])
            except ObjectStoreError as error:
                _log.warning("probe not deleted", key=key, error=str(error))  # a later probe deletes it
