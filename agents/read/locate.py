"""Finds the information that a plan is missing: which merged file holds an offset, and where to begin in it.

Each request keeps its own findings in a `Found`, above the caches, so that it makes progress whatever they evict.

Two things can be wrong with cached knowledge. If a block index is gone (404), the file was merged again and its grace
is over: the look-up is forgotten and repeated. If no live extent holds an offset below the end, the index is late,
usually because the log start has moved past the offset: the tail is read and the plan made again. Both have a limit of
tries.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from agents.read.leveled import BlockIndexes, LeveledExtents, Window
from agents.read.plan import KnownExtent, MissingBlocks, MissingSurvey, ReadRange, Resume, plan_partition
from agents.read.surveys import Surveys
from agents.tail.log_index import LogIndex
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.leveled import LeveledExtent
from runtime.logging import get_logger
from storage.format.block_index import BlockEntry
from storage.format.file_format import CorruptFileError
from storage.format.survey import SoundParts
from storage.objects import ObjectNotFoundError, ObjectStoreError
from wire.error_codes import ErrorCode

_log = get_logger(__name__)

TRIES_MAX = 3
"""Tries per request and partition, each with a fresh look-up."""

CatchUp = Callable[[], Awaitable[None]]
"""Take in everything that was committed before the call. Raises MetadataUnavailableError."""


class Found:
    """A `KnownLog`: the findings of this request, else those in the caches; and the tail."""

    def __init__(self, index: LogIndex, leveled: LeveledExtents, blocks: BlockIndexes, surveys: Surveys) -> None:
        self.index = index
        self._leveled = leveled
        self._blocks = blocks
        self._surveys = surveys
        self._windows: dict[int, list[Window]] = {}
        self._indexes: dict[tuple[str, int], Sequence[BlockEntry]] = {}
        self._surveyed: dict[tuple[str, int], SoundParts] = {}

    def extent_at(self, partition_id: int, offset: int, aborted_from: int | None) -> KnownExtent | None:
        for window in self._windows.get(partition_id, ()):
            if (known := window.extent_at(offset, aborted_from)) is not None:
                return known
        return self._leveled.extent_at(partition_id, offset, aborted_from)

    def blocks_of(self, extent: LeveledExtent) -> Sequence[BlockEntry] | None:
        return self._indexes.get((extent.key, extent.block_index_position)) or self._blocks.get(extent)

    def sound_parts_of(self, extent: LeveledExtent) -> SoundParts | None:
        return self._surveyed.get((extent.key, extent.position)) or self._surveys.get(extent)

    def add(self, partition_id: int, window: Window) -> None:
        self._windows.setdefault(partition_id, []).insert(0, window)

    def add_blocks(self, extent: LeveledExtent, blocks: Sequence[BlockEntry]) -> None:
        self._indexes[extent.key, extent.block_index_position] = blocks

    def add_sound_parts(self, extent: LeveledExtent, parts: SoundParts) -> None:
        self._surveyed[extent.key, extent.position] = parts

    def forget(self, partition_id: int) -> None:
        """Forget the extents of the partition, in the caches too."""
        self._windows.pop(partition_id, None)
        self._leveled.forget(partition_id)


class Locator:
    def __init__(
        self,
        *,
        index: LogIndex,
        leveled: LeveledExtents,
        blocks: BlockIndexes,
        surveys: Surveys,
        catch_up: CatchUp,
    ) -> None:
        self._index = index
        self._leveled = leveled
        self._blocks = blocks
        self._surveys = surveys
        self._catch_up = catch_up

    def begin(self) -> Found:
        return Found(self._index, self._leveled, self._blocks, self._surveys)

    def is_log_start(self, partition_id: int, offset: int) -> bool:
        log = self._index.partition(partition_id)
        return log is not None and offset == log.start

    async def locate(
        self,
        found: Found,
        partition_id: int,
        offset: int,
        bytes_max: int,
        resume: Resume | None,
        *,
        committed_only: bool = False,
    ) -> ErrorCode:
        """Find everything that a plan from `offset` on needs. Returns the error if the partition cannot be read now, or
        NONE."""
        tries = 0
        plan = partial(plan_partition, found, partition_id, offset, bytes_max, resume, committed_only=committed_only)
        try:
            while (missing := plan().missing) is not None:
                try:
                    if isinstance(missing, MissingBlocks):
                        found.add_blocks(missing.extent, await self._blocks.read(missing.extent))
                        continue
                    if isinstance(missing, MissingSurvey):
                        found.add_sound_parts(missing.extent, await self._surveys.read(missing.extent))
                        continue
                    window = await self._look_up(partition_id, missing.offset)
                    if window.extent_at(missing.offset, None) is not None:
                        found.add(partition_id, window)
                        continue
                except ObjectNotFoundError as error:
                    _log.info("a merged file is gone, looking again", key=error.key, partition_id=partition_id)
                tries += 1
                if tries == TRIES_MAX:
                    _log.error("no live file holds an offset", partition_id=partition_id, missing=repr(missing))
                    return ErrorCode.KAFKA_STORAGE_ERROR
                # The tail is read too: the log start may have moved past the offset, and then no look-up finds it.
                found.forget(partition_id)
                await self._catch_up()
                log = self._index.partition(partition_id)
                if log is not None and offset < log.start:
                    return ErrorCode.OFFSET_OUT_OF_RANGE
        except CorruptFileError as error:
            _log.error("block index not readable", partition_id=partition_id, error=str(error))
            return ErrorCode.CORRUPT_MESSAGE
        except (MetadataUnavailableError, ObjectStoreError) as error:
            _log.warning("merged files not looked up", partition_id=partition_id, error=str(error))
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE

    async def look_again(self, found: Found, partition_id: int, where: ReadRange) -> None:
        """The object of `where` is gone: forget what led to it. Raises MetadataUnavailableError.

        An L0 file is dropped only if a merged file has replaced it. Otherwise the object is missing: its extent stays,
        so that it is tried again and reported.
        """
        found.forget(partition_id)
        if where.is_merged:
            return
        await self._catch_up()
        log = self._index.partition(partition_id)
        extent = log.extent_at(where.from_offset) if log is not None else None
        # The tail brought the merge: the next plan goes another way.
        if extent is None or extent.file_id != where.file_id:
            return
        window = await self._look_up(partition_id, extent.base_offset)
        if window.extent_at(extent.base_offset, None) is not None:
            for _ in self._index.drop_files([where.file_id]):
                pass  # one file: there is nothing to pause for
            found.add(partition_id, window)

    async def _look_up(self, partition_id: int, offset: int) -> Window:
        log = self._index.partition(partition_id)
        return await self._leveled.look_up(partition_id, offset, log.end if log is not None else 0)
