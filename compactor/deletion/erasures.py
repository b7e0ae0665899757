"""The duty "erase" moves erasures through their stages, watches their files and ends them.

One round:

1. `advance_erasures`. If none is open, the round is over: one query.
2. For each open one: its pending files, which the compactor remembers for the report.
3. For each one without pending files that has no further stage to come, unless an open transaction began below its
   marks: the objects of the bucket, the batches that were sent again, and the uploads that never ended, by the rules of
   `compactor/deletion/erasure_end.py`. If nothing holds it back, `finish_erasure`.

The bucket is listed once for all erasures that may end. If strays hold one back, the next rounds ask after these strays
alone and list again when they are gone: no other object can come to hold it back, because only older ones do.

After a failover or restore of Postgres nothing is declared done until an operator has adopted it, as nothing is deleted
then. Merges do the erasing (`compactor/planning`), the janitor deletes the files and aborts the uploads. A crash leaves
nothing behind: the next round does the same again, with the report's list of files beginning anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from compactor.compaction_metrics import show_erasures, show_no_erasures
from compactor.deletion.erasure_end import (
    Listing,
    ListingDigest,
    TopicPartition,
    Watched,
    abort_before_ms,
    holding_uploads,
    is_blocked,
    may_be_older,
    partitions_of,
    report_of,
    watch,
    why_held,
)
from compactor.deletion.janitor import Janitor, JanitorHaltedError
from metadata.contract.jobs import JobState
from metadata.contract.store import MetadataStore
from metadata.erasures.contract import Erasure, ErasurePendingError
from runtime.logging import get_logger
from runtime.runtime import Runtime
from storage.format.file_format import CorruptFileError
from storage.format.inspect import inspect_file
from storage.keys import LEVEL_PREFIXES
from storage.objects import ObjectNotFoundError, ObjectStore

_log = get_logger(__name__)

BATCH = 1_000
"""Keys in one query to the metadata."""
FOOTERS_MAX, FOOTERS_AT_ONCE = 1_000, 8
"""Strays whose footers one round reads, three or four requests each; the others hold the erasure back unread."""
UPLOAD_AGE_MS = 300_000
"""Uploads that began so long ago, of writers that hold no job, are aborted."""

_Footer = tuple[frozenset[TopicPartition], int | None]
"""The partitions of a stray, and the job that wrote it (None in L0)."""


class ErasureDuty:
    """Metadata and store must be open and of one cluster. `upload_age_ms`: tests pass less."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        metadata: MetadataStore,
        runtime: Runtime,
        janitor: Janitor,
        upload_age_ms: int = UPLOAD_AGE_MS,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._metrics = runtime.metrics
        self._janitor = janitor
        self._upload_age_ms = upload_age_ms
        self._watched: dict[int, Watched] = {}
        self._strays: dict[int, Sequence[str]] = {}
        """By erasure: the strays that held it back."""
        self._refused: dict[int, Sequence[str]] = {}
        """By erasure: the L0 files with refused batches that held it back."""
        self._said: dict[int, str] = {}

    def forget(self) -> None:
        """Another compactor has the duty."""
        self._watched, self._strays, self._refused, self._said = {}, {}, {}, {}
        show_no_erasures(self._metrics)

    async def round(self) -> bool:
        """Returns whether an erasure is open. Raises the errors of the stores."""
        open_now = await self._metadata.erasures.advance_erasures()
        if not open_now:
            self.forget()
            return False
        ids = {each.erasure_id for each in open_now}
        self._strays = {key: strays for key, strays in self._strays.items() if key in ids}
        self._refused = {key: refused for key, refused in self._refused.items() if key in ids}
        self._said = {key: said for key, said in self._said.items() if key in ids}
        watched: dict[int, Watched] = {}
        pending_files = pending_bytes = 0
        blocked: set[int] = set()
        for erasure in open_now:
            pending = await self._metadata.erasures.pending_files(erasure.erasure_id)
            now_ms = await self._metadata.now_ms()
            number = erasure.erasure_id
            watched[number] = watch(self._watched.get(number), erasure, pending, now_ms)
            pending_files += len(pending)
            pending_bytes += sum(each.size_bytes for each in pending)
            if is_blocked(pending):
                blocked.add(number)
        self._watched = watched
        ended: set[int] = set()
        try:
            settled = [each for each in open_now if watched[each.erasure_id].settled_ms is not None]
            ended = await self._end([each for each in settled if not await self._waits_on_transactions(each)])
        finally:
            show_erasures(
                self._metrics,
                [each for each in open_now if each.erasure_id not in ended],
                now_ms=await self._metadata.now_ms(),
                blocked=len(blocked | {number for number, said in self._said.items() if said} - ended),
                pending_files=pending_files,
                pending_bytes=pending_bytes,
            )
        return True

    # ---- the end
    async def _end(self, settled: Sequence[Erasure]) -> set[int]:
        """Ends those that nothing holds back. Returns their ids."""
        refused_now = frozenset[str]()
        if any(self._refused.values()):
            refused_now = frozenset(await self._metadata.erasures.refused_files())
        free = [each for each in settled if not await self._still_held(each, refused_now)]
        if not free or await self._halts():
            return set()
        times = {each.erasure_id: self._watched[each.erasure_id].settled_ms or 0 for each in free}
        listing = await self._list()
        strays = await self._holding(free, times, listing.strays)
        # Asked after the listing: a file that was committed meanwhile is a stray of the listing or is found here.
        refused = await self._holding(free, times, await self._metadata.erasures.refused_files())
        uploads = [each async for each in self._store.begun_uploads()]
        ended: set[int] = set()
        for erasure in free:
            number = erasure.erasure_id
            holding = holding_uploads(uploads, times[number])
            self._strays[number], self._refused[number] = strays[number], refused[number]
            why = why_held(strays[number], len(holding), refused[number])
            self._say(erasure, why)
            if holding:
                await self._abort(times[number])
            if not why and await self._finish(erasure, listing):
                ended.add(number)
        return ended

    async def _waits_on_transactions(self, erasure: Erasure) -> bool:
        """A transaction ends by itself, by its time-out at the latest: nobody has to look into that, so it counts as no
        trouble of the erasure."""
        holding = await self._metadata.erasures.holding_transactions(erasure.erasure_id, limit=1)
        return bool(holding)

    async def _still_held(self, erasure: Erasure, refused_now: Collection[str]) -> bool:
        """Whether a stray of the last listing is still one, or one of its files with refused batches still there."""
        number = erasure.erasure_id
        left = [key for key in self._strays.get(number, ()) if await self._is_stray(key)]
        refused = [key for key in self._refused.get(number, ()) if key in refused_now]
        self._strays[number], self._refused[number] = left, refused
        why = why_held(left, 0, refused)
        if why:
            self._say(erasure, why)
        return bool(why)

    async def _is_stray(self, key: str) -> bool:
        if await self._metadata.deletion.known_keys([key]):
            return False
        try:
            await self._store.head(key)
        except ObjectNotFoundError:
            return False
        return True

    async def _halts(self) -> bool:
        """The answers of another database prove nothing."""
        try:
            await self._janitor.check_history()
        except JanitorHaltedError:
            return True
        return False

    async def _finish(self, erasure: Erasure, listing: Listing) -> bool:
        # Again, because a server may have taken over since the rows were read.
        if await self._halts():
            return False
        watched = self._watched[erasure.erasure_id]
        report = report_of(erasure, watched, listing, now_ms=await self._metadata.now_ms())
        try:
            await self._metadata.erasures.finish_erasure(erasure.erasure_id, report)
        except ErasurePendingError as error:
            _log.warning("erasure not done after all", erasure=erasure.erasure_id, why=error.message)
            return False
        self._metrics.erasures_done_total.inc()
        self._say(erasure, "")
        _log.info(
            "erasure done",
            erasure=erasure.erasure_id,
            topic=erasure.topic_name,
            files=len(watched.files),
            overdue=erasure.is_overdue(report["finished_ms"]),
        )
        return True

    def _say(self, erasure: Erasure, why: str) -> None:
        """Logs each reason once."""
        if why and self._said.get(erasure.erasure_id) != why:
            _log.warning("erasure waits", erasure=erasure.erasure_id, topic=erasure.topic_name, why=why)
        self._said[erasure.erasure_id] = why

    async def _abort(self, settled_ms: int) -> None:
        at_work, all_known = await self._janitor.merging_ms()
        if not all_known:
            return  # the uploads may belong to the unknown writers
        before_ms = abort_before_ms(
            settled_ms=settled_ms,
            now_ms=await self._metadata.now_ms(),
            at_work_ms=at_work.values(),
            age_ms=self._upload_age_ms,
        )
        await self._janitor.abort_uploads(older_than_ms=before_ms)

    # ---- what lies in the bucket
    async def _list(self) -> Listing:
        began_ms = await self._metadata.now_ms()
        digest = ListingDigest()
        strays: list[str] = []
        batch: list[str] = []
        for prefix in LEVEL_PREFIXES:
            async for stat in self._store.list(prefix):
                digest.add(stat.key, stat.size_bytes)
                batch.append(stat.key)
                if len(batch) >= BATCH:
                    strays += await self._unknown(batch)
                    batch.clear()
        strays += await self._unknown(batch)
        return Listing(
            began_ms=began_ms,
            ended_ms=await self._metadata.now_ms(),
            objects=digest.objects,
            size_bytes=digest.size_bytes,
            sha256=digest.hexdigest(),
            strays=strays,
        )

    async def _unknown(self, keys: Sequence[str]) -> Sequence[str]:
        # Asked after these keys were listed: a file that was committed meanwhile is known.
        known = await self._metadata.deletion.known_keys(keys) if keys else frozenset[str]()
        return [key for key in keys if key not in known]

    async def _holding(
        self, erasures: Sequence[Erasure], settled_ms: Mapping[int, int], keys: Sequence[str]
    ) -> Mapping[int, Sequence[str]]:
        """By erasure id, which of these strays or files with refused batches hold it back."""
        old = [key for key in keys if may_be_older(key, max(settled_ms.values()))]
        footers: dict[str, _Footer | None] = {}
        for start in range(0, min(len(old), FOOTERS_MAX), FOOTERS_AT_ONCE):
            some = old[start : start + FOOTERS_AT_ONCE]
            read = await asyncio.gather(*(self._footer(key) for key in some))
            footers.update(zip(some, read, strict=True))
        jobs = sorted({each[1] for each in footers.values() if each is not None and each[1] is not None})
        live = {job_id for job_id in jobs if await self._lives(job_id)}
        found: dict[int, Sequence[str]] = {}
        for erasure in erasures:
            wanted, before_ms = partitions_of(erasure), settled_ms[erasure.erasure_id]
            found[erasure.erasure_id] = [
                key
                for key in old
                if may_be_older(key, before_ms)
                and ((read := footers.get(key)) is None or (read[1] not in live and not read[0].isdisjoint(wanted)))
            ]
        return found

    async def _footer(self, key: str) -> _Footer | None:
        """None: it cannot be read, so it may hold anything."""
        try:
            report = await inspect_file(self._store, key, verify=False)
        except ObjectNotFoundError:
            return frozenset(), None  # the janitor deleted it since the listing
        except CorruptFileError:
            return None
        partitions = frozenset((each.row.topic_id, each.row.partition) for each in report.extents)
        return partitions, None if report.properties is None else report.properties.job_id

    async def _lives(self, job_id: int) -> bool:
        job = await self._metadata.compactors.job(job_id)
        return job is not None and job.state in (JobState.READY, JobState.RUNNING)
