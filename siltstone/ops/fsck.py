"""`siltstone fsck`: the invariants of `metadata/invariants*.py`, checked on a live system. Reads, never writes.

The order of reads matters, so that changes of a running system meanwhile do not look like faults:

1. the list of objects, the file rows and the producers;
2. one view of everything that lives, one of the consumer groups, one of the transactions. Watermarks only grow, so
   offsets seen before must lie below those seen later;
3. the objects, which stay for the grace after they are replaced;
4. again the objects that looked wrong: a merge may have replaced the file, or the janitor may have deleted it.

L0 objects are read whole, a few ahead: once for CRC and batches, and once for the producers' sequences. Larger objects
are streamed in chunks. So memory is bounded by READ_AHEAD files or chunks. The bytes of inline files, the markers of
transactions, are in their rows; they are checked like those of objects.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from compactor.heavy.leftovers import plan_makers
from metadata.contract.files import FileInfo, FileState
from metadata.contract.leveled import LeveledExtent
from metadata.contract.operators import SystemView
from metadata.contract.store import MetadataStore
from metadata.rules.invariants.all_levels import (
    LiveExtent,
    Violation,
    check_file_1,
    check_log_1,
    check_log_2,
    check_log_2_bytes,
    check_log_3,
    check_one_row_each,
    check_prod_1,
    check_prod_1_bytes,
    live_extents,
)
from metadata.rules.invariants.groups import check_grp_1, check_grp_2, check_grp_3
from metadata.rules.invariants.leveled import (
    Allowances,
    check_file_2,
    check_file_3,
    check_flagged,
    check_leveled_bytes,
    check_merge_1,
    check_sum_1,
)
from metadata.rules.invariants.transactions import check_txn_1, check_txn_2, check_txn_3
from storage.keys import LEVEL_PREFIXES, BadKeyError, parse_file_key
from storage.objects import ObjectNotFoundError, ObjectStat, ObjectStore
from wire.crc import crc32c

PAGE_FILES = 1000
READ_AHEAD = 8
CHUNK_BYTES = 8 << 20

INVARIANTS = {
    "LOG-1": "each offset of a partition is given once, in order",
    "LOG-2": "every acknowledged record is readable at its offset",
    "LOG-3": "live extents are disjoint and leave no gap",
    "FILE-1": "a live file's object exists, with its length and CRC; an inline file's row has both",
    "FILE-2": "every object is live, in grace, pinned, in flight or a young orphan",
    "FILE-3": "a merged file counts its live extents right",
    "SUM-1": "the sums for planning and retention are those of the live extents",
    "MERGE-1": "nothing is input of two live merges",
    "PROD-1": "a retried batch is stored once",
    "TXN-1": "what a transaction entered agrees with it",
    "TXN-2": "no transaction hangs",
    "TXN-3": "the markers of aborted transactions are in the log",
    "GRP-1": "no group has an epoch that another was given",
    "GRP-2": "a committed offset belongs to a group and a partition",
    "GRP-3": "a group's members, leader and protocol fit together",
}

Progress = Callable[[int, int], None]
"""Called with (files done, all files)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One invariant after its check."""

    id: str
    rule: str
    checked: int
    unit: str
    """The unit of `checked`."""
    violations: Sequence[Violation]


async def check_system(
    metadata: MetadataStore,
    store: ObjectStore,
    *,
    quick: bool,
    progress: Progress,
    allowances: Allowances | None = None,
) -> Sequence[Finding]:
    """Check every invariant. `quick` reads no bodies of objects: FILE-1 then compares only lengths.

    Raises the errors of both services. Faults of the data are in the findings.
    """
    objects = [(stat.key, stat.last_modified_ms) for level in LEVEL_PREFIXES async for stat in store.list(level)]
    files = await all_files(metadata)
    states = await metadata.agents.producer_states()
    view = await metadata.operators.system_view()
    groups = await metadata.operators.groups_view()
    transactions = await metadata.operators.transactions_view()
    marks = {mark.partition_id: mark for mark in view.watermarks}
    extents = live_extents(view.l0_files, marks, view.extents)
    live = [file for file in files if file.state is FileState.LIVE]
    unsettled = [
        *await check_objects(live, extents, view, StoreAndRows(store, files, view), quick=quick, progress=progress),
        *await _check_listed(objects, files, view, metadata, store, allowances or Allowances()),
    ]
    found: dict[str, list[Violation]] = defaultdict(list)
    for violation in [
        *check_one_row_each(view.watermarks, states),
        *check_log_1(files, marks, complete=False),
        *check_log_2(extents, marks),
        *check_flagged(view.extents),
        *check_log_3(extents, marks),
        *check_file_3(view),
        *check_sum_1(view),
        *check_merge_1(view),
        *check_prod_1(states, marks),
        *check_txn_1(transactions),
        *check_txn_2(transactions),
        *check_txn_3(transactions),
        *check_grp_1(groups),
        *check_grp_2(groups),
        *check_grp_3(groups),
        *await _looked_at_again(unsettled, metadata, store),
    ]:
        found[violation.id].append(violation)
    counts = {
        "LOG-1": (len(files), "files"),
        "LOG-2": (len(extents), "extents"),
        "LOG-3": (len(marks), "partitions"),
        "FILE-1": (len(live), "files"),
        "FILE-2": (len(objects), "objects"),
        "FILE-3": (len(view.live_extents), "files"),
        "SUM-1": (len(view.extents), "extents"),
        "MERGE-1": (len(view.job_inputs), "inputs"),
        "PROD-1": (len(states), "producers"),
        "TXN-1": (len(transactions.entered), "partitions"),
        "TXN-2": (len(transactions.entered), "partitions"),
        "TXN-3": (len(transactions.aborted), "transactions"),
        "GRP-1": (len(groups.groups), "groups"),
        "GRP-2": (sum(summary.offsets for summary, _ in groups.groups), "offsets"),
        "GRP-3": (len(groups.groups), "groups"),
    }
    return [
        Finding(id=id_, rule=rule, checked=counts[id_][0], unit=counts[id_][1], violations=_distinct(found[id_]))
        for id_, rule in INVARIANTS.items()
    ]


async def all_files(metadata: MetadataStore) -> list[FileInfo]:
    """Every file row, of any state, by file id."""
    files: list[FileInfo] = []
    while page := await metadata.operators.files(after_file_id=files[-1].file_id if files else 0, limit=PAGE_FILES):
        files += page
    return files


async def _check_listed(
    objects: Sequence[tuple[str, int]],
    files: Sequence[FileInfo],
    view: SystemView,
    metadata: MetadataStore,
    store: ObjectStore,
    allowances: Allowances,
) -> list[Violation]:
    at_work = {
        *await metadata.deletion.writers_at_work(),
        *(agent.writer_id for agent in await metadata.agents.live_agents()),
    }
    # The makers of stored plans count as at work: their units' outputs may still be committed by another compactor.
    at_work |= (await plan_makers(store, metadata)).at_work.keys()
    return check_file_2(
        objects,
        {file.key: file for file in files},
        view,
        in_flight=lambda key: _writer_of(key) in at_work,
        allowances=allowances,
    )


def _writer_of(key: str) -> int | None:
    try:
        return parse_file_key(key).writer_id
    except BadKeyError:
        return None


async def _looked_at_again(
    violations: Sequence[Violation], metadata: MetadataStore, store: ObjectStore
) -> Sequence[Violation]:
    """The violations that still hold: the file of a missing object is still live, a superfluous object still exists."""
    # Only a violation about an object can have ended meanwhile; without one, spare the second listing of all files.
    if not any(violation.key for violation in violations):
        return violations
    files = {file.key: file for file in await all_files(metadata)}
    still: list[Violation] = []
    for violation in violations:
        file = files.get(violation.key)
        state = None if file is None else file.state
        if violation.id == "FILE-2":
            was_committed = file is not None and state is FileState.LIVE and not file.inline
            holds = not was_committed and await _exists(store, violation.key)
        else:
            holds = not violation.key or state is FileState.LIVE
        if holds:
            still.append(violation)
    return still


async def _exists(store: ObjectStore, key: str) -> bool:
    try:
        await store.head(key)
    except ObjectNotFoundError:
        return False
    return True


async def check_objects(
    live: Sequence[FileInfo],
    extents: Sequence[LiveExtent],
    view: SystemView,
    store: StoreAndRows,
    *,
    quick: bool,
    progress: Progress,
) -> list[Violation]:
    """FILE-1 and the bytes of every live file. `progress` counts L0 files twice if they are read, for their two
    passes."""
    l0 = [file for file in live if file.level == 0]
    leveled = [file for file in live if file.level > 0]
    total = (1 if quick else 2) * len(l0) + len(leveled)

    def l0_progress(done: int, _: int) -> None:
        progress(done, total)

    violations = await _check_l0(
        l0, [extent for extent in extents if extent.level == 0], store, quick=quick, progress=l0_progress
    )
    of_file: dict[int, list[LeveledExtent]] = defaultdict(list)
    for extent in view.extents:
        of_file[extent.file_id].append(extent)
    for done, file in enumerate(leveled, start=total - len(leveled) + 1):
        violations += await _check_leveled(file, of_file[file.file_id], store, quick=quick)
        progress(done, total)
    return violations


async def _check_leveled(
    file: FileInfo, extents: Sequence[LeveledExtent], store: StoreAndRows, *, quick: bool
) -> list[Violation]:
    violations: list[Violation] = []
    try:
        stat = await store.head(file.key)
        # A quick check reads no bytes and compares lengths alone.
        crc = file.crc32c
        if not quick:
            violations, _, crc = await check_leveled_bytes(file.key, extents, _chunks(store, stat))
    except ObjectNotFoundError:
        message = f"live file {file.file_id} has no object {file.key}"
        return [Violation(id="FILE-1", message=message, key=file.key)]
    if (stat.size_bytes, crc) != (file.size_bytes, file.crc32c):
        message = (
            f"live file {file.file_id}, object {file.key}: {stat.size_bytes} bytes with CRC-32C {crc},"
            f" not {file.size_bytes} with {file.crc32c}"
        )
        violations.append(Violation(id="FILE-1", message=message, key=file.key))
    return violations


async def _chunks(store: StoreAndRows, stat: ObjectStat) -> AsyncIterator[bytes]:
    for position in range(0, stat.size_bytes, CHUNK_BYTES):
        yield await store.get_range(stat.key, position, min(CHUNK_BYTES, stat.size_bytes - position))


async def _check_l0(
    live: Sequence[FileInfo], extents: Sequence[LiveExtent], store: StoreAndRows, *, quick: bool, progress: Progress
) -> list[Violation]:
    violations: list[Violation] = []
    by_key: dict[str, list[LiveExtent]] = defaultdict(list)
    for extent in extents:
        by_key[extent.key].append(extent)
    passes = 1 if quick else 2
    assumed = {file.key: file.crc32c for file in live} if quick else None
    async with ReadAhead(store, [file.key for file in live], assumed_crc32c=assumed) as objects:
        for done, file in enumerate(live, start=1):
            violations += await check_file_1([file], objects)
            if not quick:
                violations += await check_log_2_bytes(by_key.pop(file.key, []), objects)
            progress(done, passes * len(live))
    if quick:
        return violations
    # Extents of files that the listing of rows did not have yet: they were committed between the two reads.
    newer = [extent for of_file in by_key.values() for extent in of_file]
    async with ReadAhead(store, list(by_key)) as objects:
        violations += await check_log_2_bytes(newer, objects)
    read = 0

    def count_one() -> None:
        nonlocal read
        read += 1
        progress(min(len(live) + read, passes * len(live)), passes * len(live))

    keys = list(dict.fromkeys(extent.key for extent in extents))
    async with ReadAhead(store, keys, on_read=count_one) as objects:
        # Only PROD-1: the passes above have reported everything else that is wrong with these objects.
        violations += [each for each in await check_prod_1_bytes(extents, objects) if each.id == "PROD-1"]
    return violations


class StoreAndRows:
    """The object store, and the bytes of inline files, which are in their rows and in no object."""

    def __init__(self, store: ObjectStore, files: Iterable[FileInfo], view: SystemView) -> None:
        self._store = store
        self._inline = {file.key: file.inline for file in (*files, *view.l0_files) if file.inline}

    async def head(self, key: str) -> ObjectStat:
        body = self._inline.get(key)
        if body is None:
            return await self._store.head(key)
        return ObjectStat(key=key, size_bytes=len(body), last_modified_ms=0, crc32c=crc32c(body))

    async def get(self, key: str) -> bytes:
        body = self._inline.get(key)
        return await self._store.get(key) if body is None else body

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self._store.get_range(key, start, length)


class ReadAhead:
    """Fetches objects a few ahead, in the order of `keys`, in which the caller must ask for them.

    The caller may ask for the present key several times. A missing object is None, as the invariants expect.
    """

    def __init__(
        self,
        store: StoreAndRows,
        keys: Iterable[str],
        *,
        assumed_crc32c: Mapping[str, int] | None = None,
        on_read: Callable[[], None] = lambda: None,
    ) -> None:
        """With `assumed_crc32c` (by key) no body is read; its values are used if the store keeps no CRC."""
        self._store = store
        self._assumed_crc32c = assumed_crc32c
        self._on_read = on_read
        self._keys = iter(keys)
        self._ahead: deque[tuple[str, asyncio.Task[tuple[ObjectStat, bytes] | None]]] = deque()
        self._current: tuple[str, tuple[ObjectStat, bytes] | None] = ("", None)

    async def __aenter__(self) -> ReadAhead:
        self._fill()
        return self

    async def __aexit__(self, *_exit: object) -> None:
        for _, task in self._ahead:
            task.cancel()
        await asyncio.gather(*(task for _, task in self._ahead), return_exceptions=True)

    async def head(self, key: str) -> ObjectStat | None:
        found = await self._find(key)
        if found is None:
            return None
        stat = found[0]
        if self._assumed_crc32c is None or stat.crc32c is not None:
            return stat
        return replace(stat, crc32c=self._assumed_crc32c[key])

    async def get(self, key: str) -> bytes | None:
        found = await self._find(key)
        return None if found is None else found[1]

    async def _find(self, key: str) -> tuple[ObjectStat, bytes] | None:
        if self._current[0] != key:
            if not self._ahead or self._ahead[0][0] != key:
                raise KeyError(f"object {key} is not the next one in the order of keys")
            _, task = self._ahead.popleft()
            self._fill()
            self._current = (key, await task)
            self._on_read()
        return self._current[1]

    def _fill(self) -> None:
        while len(self._ahead) < READ_AHEAD and (key := next(self._keys, None)) is not None:
            self._ahead.append((key, asyncio.create_task(self._read(key))))

    async def _read(self, key: str) -> tuple[ObjectStat, bytes] | None:
        try:
            stat = await self._store.head(key)
            return stat, (await self._store.get(key) if self._assumed_crc32c is None else b"")
        except ObjectNotFoundError:
            return None


def _distinct(violations: Iterable[Violation]) -> list[Violation]:
    return list(dict.fromkeys(violations))
