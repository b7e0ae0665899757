"""The state of an erasure, and what it waits on, in words and as JSON. Pure but for `read_states`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from compactor.deletion.erasure_end import may_be_older
from compactor.planning.spec import PlanOptions
from metadata.contract.files import FileState
from metadata.contract.store import MetadataStore
from metadata.contract.topics import Topic
from metadata.erasures.contract import Erasure, ErasureStage, HoldingTransaction, PendingFile
from runtime.errors import BadInputError
from runtime.text import age_text, plural, size_text
from siltstone.kafka.record_format import shown_field, time_text
from siltstone.ops.erasure.report import NOT_COVERED
from siltstone.ops.hint_options import NO_HINT_OPTIONS, HintOptions
from siltstone.ops.remains import stray_objects
from storage.objects import ObjectStore

PENDING_MAX = 10_000
"""Pending files that are read; of more, that many are counted."""
YOUNG_MS = 120_000
"""An object without a row that is younger is not counted."""


class NoSuchErasureError(BadInputError):
    pass


class Reason(StrEnum):
    LAG = "min.compaction.lag.ms"
    REST = "delete.retention.ms"
    LATER = "it begins later"
    L0 = "L0 files to be merged"
    REWRITE = "files to be rewritten"
    TROUBLE = "a merge failed"
    FLAGGED = "cannot be read"
    GRACE = "dead files in their grace"
    PINNED = "pinned by a reader"
    STRAY = "objects without a row"
    REFUSED = "batches that were sent again"
    TRANSACTION = "an open transaction"
    CHECK = "the last check of a compactor"
    NOBODY = "no compactor runs"


@dataclass(frozen=True, slots=True)
class Wait:
    """One reason why an erasure is not done."""

    reason: Reason
    files: int = 0
    size_bytes: int = 0
    until_ms: int | None = None
    detail: str = ""
    """The error or the reason, of one of the files; the transaction."""

    @property
    def text(self) -> str:
        until = "" if self.until_ms is None else f" until {time_text(self.until_ms)}"
        size = f" ({size_text(self.size_bytes)})" if self.size_bytes else ""
        match self.reason:
            case Reason.LAG | Reason.REST:
                return f"{self.reason.value}{until}"
            case Reason.LATER:
                begins = time_text(self.until_ms or 0)
                return f"merges for its sake alone begin at {begins}; until then files go with other merges"
            case Reason.L0:
                return f"{plural(self.files, 'L0 file')} to be merged{size}"
            case Reason.REWRITE:
                return f"{plural(self.files, 'file')} to be rewritten{size}"
            case Reason.TROUBLE:
                return f"{plural(self.files, 'file')} whose merge failed{size}: {self.detail}"
            case Reason.FLAGGED:
                return f"{plural(self.files, 'file')} with records that cannot be read{size}: {self.detail}"
            case Reason.GRACE:
                return f"{plural(self.files, 'dead file')} in gc.grace.ms{until}{size}"
            case Reason.PINNED:
                return f"{plural(self.files, 'dead file')} pinned by a reader{size}"
            case Reason.STRAY:
                return f"{plural(self.files, 'object')} without a row that may hold records of it"
            case Reason.REFUSED:
                return (
                    f"{plural(self.files, 'L0 file')} with a batch that was sent again or refused, and may hold records"
                    " of it, until it is merged and deleted"
                )
            case Reason.TRANSACTION:
                return f"{self.detail}: readers of committed records get no further before it ends"
            case Reason.CHECK | Reason.NOBODY:
                return self.reason.value


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    erasure: Erasure
    pending: Sequence[PendingFile]
    waits: Sequence[Wait]
    now_ms: int

    @property
    def pending_bytes(self) -> int:
        return sum(each.size_bytes for each in self.pending)


def waits_of(
    erasure: Erasure,
    pending: Sequence[PendingFile],
    *,
    now_ms: int,
    grace_ms: int,
    holding: Sequence[HoldingTransaction] = (),
    strays: int = 0,
    refused: int = 0,
    compactors: int = 1,
) -> Sequence[Wait]:
    """All reasons, the first to be resolved first. `strays`: objects in the bucket that no live or dead row names;
    `refused`: L0 files with batches that have no row of the index; `holding`: the open transactions below its marks."""
    if erasure.stage is ErasureStage.DONE:
        return ()
    found: list[Wait] = [] if compactors else [Wait(Reason.NOBODY)]
    if erasure.stage is ErasureStage.WAITING:
        return [*found, Wait(Reason.LAG, until_ms=erasure.next_ms)]
    found += [Wait(Reason.TRANSACTION, detail=holding_text(each)) for each in _each_once(holding)]
    if erasure.stage is ErasureStage.RESTING:
        found.append(Wait(Reason.REST, until_ms=erasure.next_ms))
    live = [each for each in pending if each.state is FileState.LIVE]
    dead = [each for each in pending if each.state is not FileState.LIVE]
    merged = [each for each in live if each.level]
    # An L0 file whose merge fails holds up every erasure, whatever topics are in it.
    unmerged = [each for each in live if not each.level]
    found += _wait(Reason.L0, [each for each in unmerged if not each.trouble])
    found += _wait(Reason.TROUBLE, [each for each in unmerged if each.trouble], lambda each: each.trouble)
    if erasure.stage is ErasureStage.ERASING:
        if merged and now_ms < erasure.begin_ms:
            found.append(Wait(Reason.LATER, until_ms=erasure.begin_ms))
        sound = [each for each in merged if not each.trouble and each.flagged_reason is None]
        found += _wait(Reason.REWRITE, sound)
        found += _wait(Reason.TROUBLE, [each for each in merged if each.trouble], lambda each: each.trouble)
        flagged = [each for each in merged if not each.trouble and each.flagged_reason is not None]
        found += _wait(Reason.FLAGGED, flagged, lambda each: each.flagged_reason or "")
    graced = [each for each in dead if not each.is_pinned]
    latest = max((each.dead_ms or 0 for each in graced), default=0) + grace_ms
    found += _wait(Reason.GRACE, graced, until_ms=latest)
    found += _wait(Reason.PINNED, [each for each in dead if each.is_pinned])
    if not pending and erasure.stage is ErasureStage.ERASING:
        if strays:
            found.append(Wait(Reason.STRAY, files=strays))
        if refused:
            found.append(Wait(Reason.REFUSED, files=refused))
        if not strays and not refused and not holding:
            found.append(Wait(Reason.CHECK))
    return found


def holding_text(each: HoldingTransaction) -> str:
    """For example "transaction 'pay-1' of producer 7, open since offset 12 of partition 0"."""
    name = shown_field(each.transactional_id.encode("utf-8", "surrogatepass"))
    open_since = f"open since offset {each.first_offset} of partition {each.partition}"
    return f"transaction '{name}' of producer {each.producer_id}, {open_since}"


async def open_text(metadata: MetadataStore, topic: Topic, open_at: Mapping[int, int]) -> str:
    """The transactions that are open at these offsets, by partition number; each is named once."""
    numbers = {topic.partition_ids[number]: number for number in open_at}
    found = [
        each
        for each, _ in await metadata.transactions.open_transactions(list(numbers))
        if each.first_offset <= open_at[numbers[each.partition_id]]
    ]
    infos = await metadata.transactions.transactions_of([each.producer_id for each in found])
    names = {each.producer_id: each.transactional_id for each in infos}
    holding = [
        HoldingTransaction(
            numbers[each.partition_id], each.producer_id, each.first_offset, names.get(each.producer_id, "")
        )
        for each in found
    ]
    return "; ".join(holding_text(each) for each in _each_once(holding)) or "a transaction that ends now"


def _each_once(holding: Sequence[HoldingTransaction]) -> Sequence[HoldingTransaction]:
    """Each transaction once, by the first of its partitions."""
    return list({each.producer_id: each for each in reversed(holding)}.values())[::-1]


def _wait(
    reason: Reason,
    files: Sequence[PendingFile],
    detail: Callable[[PendingFile], str] = lambda _each: "",
    *,
    until_ms: int | None = None,
) -> Sequence[Wait]:
    if not files:
        return ()
    return [Wait(reason, len(files), sum(each.size_bytes for each in files), until_ms, detail(files[0]))]


async def read_states(
    metadata: MetadataStore,
    store: ObjectStore | None,
    options: PlanOptions,
    *,
    erasure_id: int | None = None,
    hints: HintOptions = NO_HINT_OPTIONS,
) -> Sequence[State]:
    """One erasure, or all, newest first. `store`: is listed if an erasure may wait on objects without a row.

    Raises NoSuchErasureError and the errors of both services.
    """
    found = await metadata.erasures.erasures(erasure_id=erasure_id)
    if erasure_id is not None and not found:
        raise NoSuchErasureError(
            f"there is no erasure {erasure_id}", remedy=f"`siltstone erase status{hints.places}` lists them"
        )
    now_ms = await metadata.now_ms()
    compactors = len(await metadata.compactors.live_compactors())
    strays: int | None = None
    refused = 0
    states: list[State] = []
    for erasure in found:
        is_done = erasure.stage is ErasureStage.DONE
        pending = () if is_done else await metadata.erasures.pending_files(erasure.erasure_id, limit=PENDING_MAX)
        if erasure.stage is ErasureStage.ERASING and not pending and strays is None and store is not None:
            strays = sum(_is_old(key, now_ms) for key in await stray_objects(metadata, store))
            refused = len(await metadata.erasures.refused_files())
        holding = () if is_done else await metadata.erasures.holding_transactions(erasure.erasure_id)
        waits = waits_of(
            erasure,
            pending,
            holding=holding,
            now_ms=now_ms,
            grace_ms=options.grace_ms,
            strays=strays or 0,
            refused=refused,
            compactors=compactors,
        )
        states.append(State(erasure=erasure, pending=pending, waits=waits, now_ms=now_ms))
    return states


def _is_old(key: str, now_ms: int) -> bool:
    """Whether the object is no upload of a moment ago, whose commit is on its way."""
    return may_be_older(key, now_ms - YOUNG_MS)


def deadline_text(erasure: Erasure, now_ms: int) -> str:
    """For example "2026-11-30T12:00:00.000Z, in 6d23h"."""
    if erasure.done_ms is not None:
        late = erasure.done_ms - erasure.deadline_ms
        kept = f"missed by {age_text(late)}" if late > 0 else "kept"
        return f"{time_text(erasure.deadline_ms)}, {kept}"
    left = erasure.deadline_ms - now_ms
    said = f"in {age_text(left)}" if left >= 0 else f"overdue for {age_text(-left)}"
    return f"{time_text(erasure.deadline_ms)}, {said}"


def state_pairs(state: State) -> dict[str, str]:
    erasure = state.erasure
    left = f"{plural(len(state.pending), 'file')} ({size_text(state.pending_bytes)})"
    pairs = {
        "topic": erasure.topic_name,
        "keys": f"{plural(erasure.keys, 'mark')} in {plural(len(erasure.partitions), 'partition')}"
        + (f", {plural(erasure.tombstones, 'tombstone')}" if erasure.tombstones else ""),
        "stage": erasure.stage.value,
        "requested": time_text(erasure.created_ms),
        "deadline": deadline_text(erasure, state.now_ms),
    }
    if erasure.done_ms is not None:
        return {**pairs, "done": time_text(erasure.done_ms), "not covered": NOT_COVERED}
    return {**pairs, "left": left}


def state_json(state: State) -> dict[str, Any]:
    erasure = state.erasure
    return {
        "erasure": erasure.erasure_id,
        "topic": erasure.topic_name,
        "topic_id": str(erasure.topic_id),
        "stage": erasure.stage.value,
        "partitions": sorted(erasure.partitions),
        "marks": erasure.keys,
        "tombstones": erasure.tombstones,
        "requested_ms": erasure.created_ms,
        "next_ms": erasure.next_ms,
        "begin_ms": erasure.begin_ms,
        "deadline_ms": erasure.deadline_ms,
        "is_overdue": state.now_ms > erasure.deadline_ms and erasure.done_ms is None,
        "done_ms": erasure.done_ms,
        "pending_files": len(state.pending),
        "pending_bytes": state.pending_bytes,
        "waits_on": [{**asdict(each), "reason": each.reason.value, "text": each.text} for each in state.waits],
        "report": dict(erasure.report),
        "not_covered": NOT_COVERED,
    }
