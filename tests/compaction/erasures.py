"""Erasures in a history: requests with chance keys and bounds, their stages, and the judgement of those that are done.

A request follows the rules of `siltstone erase`. In a plain topic the records of a key below any offset go. In a
compacted topic the newest record of a key stays, or it is a tombstone, which goes later: where it is none, one is
written first. When an erasure says that no file is pending, no object with a row may hold a value that it erases.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from compactor.deletion.erasures import ErasureDuty
from compactor.planning.spec import MergeKind, MergeSpec
from metadata.configs.topic import resolve
from metadata.contract.jobs import ClaimedJob
from metadata.contract.leveled import FileClass
from metadata.contract.topics import Topic
from metadata.erasures.contract import Erasure, ErasurePendingError, ErasureStage, KeyMark, NewErasure
from tests.compaction.log import values_in
from tests.compaction.model import Erased, PartitionModel
from tests.compaction.specs import LIMIT_MS, OPTIONS
from tests.fixtures.erasures import hash_of, with_keys
from wire.records import NewRecord, build_batch

if TYPE_CHECKING:
    from tests.compaction.world import World

WEEK_MS = 604_800_000
ROUNDS_MAX = 40


@dataclass(slots=True)
class Requested:
    erasure_id: int
    topic_id: UUID
    name: str
    rows: list[Erased]
    values: frozenset[bytes]
    """Of all records that go, those of refused batches included."""
    done: bool = False


@dataclass(slots=True)
class Erasures:
    """The erasures of one history, and what is known of objects, which never change."""

    requested: list[Requested] = field(default_factory=list[Requested])
    decoded: dict[str, frozenset[bytes]] = field(default_factory=dict[str, frozenset[bytes]])


async def request(world: World) -> None:
    r = world.random
    topic = r.choice(world.topics)
    current = next(each for each in await world.metadata.agents.list_topics() if each.topic_id == topic.topic_id)
    is_compacted = "compact" in current.configs.get("cleanup.policy", "delete")
    if is_compacted and r.random() < 0.5:
        await _write_tombstones(world, topic)
    wait_ms = int(current.configs.get("min.compaction.lag.ms", 0)) if is_compacted else r.choice([0, 0, 300])
    rest_ms = int(resolve(current.configs)["delete.retention.ms"])
    chosen: dict[int, list[Erased]] = {}
    for partition_id in topic.partition_ids:
        model = world.models[partition_id]
        rows = [_chosen(world, model, key, is_compacted=is_compacted) for key in _keys(world, model)]
        for row in rows:
            row.from_ms = world.clock.wall_ms() + wait_ms
            row.rest_ms = rest_ms
        if rows:
            chosen[partition_id] = rows
    if not chosen:
        return
    rows = [row for each in chosen.values() for row in each]
    marks = {
        topic.partition_ids.index(partition_id): [
            KeyMark(hash_of(row.key), row.before_offset, row.tombstone) for row in each
        ]
        for partition_id, each in chosen.items()
    }
    erasure_id = await world.metadata.erasures.request_erasure(
        NewErasure(
            topic_id=topic.topic_id,
            marks=marks,
            wait_ms=wait_ms,
            rest_ms=rest_ms if any(row.tombstone for row in rows) else None,
            begin_ms=r.choice([0, 0, 500]),
            deadline_ms=WEEK_MS,
            secret=r.randbytes(32),
        )
    )
    values: set[bytes] = set()
    for partition_id, each in chosen.items():
        world.models[partition_id].erased += each
        values |= _values(world, partition_id, each)
    world.erasures.requested.append(Requested(erasure_id, topic.topic_id, topic.name, rows, frozenset(values)))
    shown = [f"{row.key!r} below {row.before_offset}{' and its tombstone' if row.tombstone else ''}" for row in rows]
    world.say(f"erasure {erasure_id} of {topic.name}: {', '.join(shown)}")
    world.count("erasure")
    world.count("erasure with tombstones", any(row.tombstone for row in rows))


def _keys(world: World, model: PartitionModel) -> list[bytes]:
    known = sorted({record.key for record in model.records if record.key is not None})
    return world.random.sample(known, k=world.random.randint(0, min(3, len(known))))


def _chosen(world: World, model: PartitionModel, key: bytes, *, is_compacted: bool) -> Erased:
    newest = max(record.offset for record in model.records if record.key == key)
    if not is_compacted:
        return Erased(key, world.random.choice([model.end, model.end, world.random.randint(0, model.end)]))
    if model.records[newest].value is None:
        return Erased(key, newest, tombstone=True)
    return Erased(key, world.random.choice([newest, world.random.randint(0, newest)]))


def _values(world: World, partition_id: int, rows: list[Erased]) -> set[bytes]:
    ends = {row.key: row.before_offset for row in rows}
    values = {
        record.value
        for record in world.models[partition_id].records
        if record.key in ends and record.offset < ends[record.key] and record.value is not None
    }
    # Refused batches lie in L0 files without a row of the index, as duplicates do.
    return values | {value for place, key, value in world.refused if place == partition_id and key in ends}


async def _write_tombstones(world: World, topic: Topic) -> None:
    now_ms, built = world.clock.wall_ms(), {}
    for partition_id in topic.partition_ids:
        if keys := _keys(world, world.models[partition_id]):
            records = [NewRecord(now_ms, key, None) for key in keys]
            built[partition_id] = [(build_batch(records), records)]
    if built:
        await world.write(built=built)


async def with_erased_keys(world: World, claimed: ClaimedJob) -> ClaimedJob:
    """As a worker asks for them."""
    if claimed.job.kind != MergeKind.ERASE:
        return claimed
    return with_keys(claimed, await world.metadata.erasures.erased_keys(sorted(claimed.partitions)))


def no_duty() -> ErasureDuty | None:
    """The test itself ends erasures, without waiting for objects that no row names."""
    return None


async def ended_by(world: World, duty: ErasureDuty) -> None:
    """A round of the compactor's own duty, which looks at every object."""
    await duty.round()
    for mine in world.erasures.requested:
        (erasure,) = await world.metadata.erasures.erasures(erasure_id=mine.erasure_id)
        if erasure.stage is ErasureStage.DONE and not mine.done:
            _done(world, mine)


def _done(world: World, mine: Requested) -> None:
    mine.done = True
    for row in mine.rows:
        row.done = True
    world.say(f"erasure {mine.erasure_id} is done")
    world.count("erasure done")


async def advance(world: World) -> list[Erasure]:
    """As the compactor's duty does, except that objects without rows are not waited for. Returns those still open."""
    if world.duty is not None:
        await ended_by(world, world.duty)
        return []
    known = {each.erasure_id: each for each in world.erasures.requested}
    open_: list[Erasure] = []
    for erasure in await world.metadata.erasures.advance_erasures():
        mine = known.get(erasure.erasure_id)
        if mine is None:
            continue  # of a topic that is deleted
        open_.append(erasure)
        pending = await world.metadata.erasures.pending_files(erasure.erasure_id)
        is_last = erasure.stage is ErasureStage.ERASING and (erasure.erases_tombstones or not erasure.tombstones)
        held = await world.metadata.erasures.holding_transactions(erasure.erasure_id)
        if pending or held or not is_last:
            if world.random.random() < 0.3:
                await _refuses_to_end(world, erasure.erasure_id)
            continue
        if await world.metadata.erasures.refused_files():
            world.count("refused batches waited for")
            continue
        await world.metadata.erasures.finish_erasure(erasure.erasure_id, {})
        _done(world, mine)
        open_.pop()
        await judge(world)
        await world.check()
    return open_


async def _refuses_to_end(world: World, erasure_id: int) -> None:
    try:
        await world.metadata.erasures.finish_erasure(erasure_id, {})
    except ErasurePendingError:
        world.count("erasure pending")
    else:
        world.violations.append(
            f"erasure {erasure_id} ended while files were pending, a transaction was open, or a stage was to come"
        )


async def judge(world: World) -> None:
    """No object with a row holds a value of an erasure that is done."""
    done = [each for each in world.erasures.requested if each.done]
    files = await world.metadata.operators.files(limit=1_000_000)
    there = {stat.key async for stat in world.objects.list()}
    for file in files:
        if file.key not in there:
            continue
        if file.key not in world.erasures.decoded:
            world.erasures.decoded[file.key] = await values_in(world.objects, file.key)
        for each in done:
            if found := world.erasures.decoded[file.key] & each.values:
                world.violations.append(
                    f"erasure {each.erasure_id} of {each.name} is done;"
                    f" {file.state} file {file.file_id} (L{file.level}) holds {sorted(found)}"
                )


async def arbitrary(world: World) -> None:
    """An erasing merge that no planner would make, over any free files of one level and class."""
    view = await world.metadata.compactors.compaction_view()
    level, file_class = world.random.choice([1, 2]), world.random.choice(list(FileClass))
    free = [
        file
        for file in view.files
        if (file.level, file.file_class) == (level, file_class) and file.file_id not in view.busy_files
    ]
    if not free:
        return
    chosen = world.random.sample(free, k=world.random.randint(1, len(free)))
    await world.create(
        MergeSpec(
            kind=MergeKind.ERASE,
            now_ms=view.now_ms,
            limit_ms=LIMIT_MS,
            level=level,
            output_bytes=world.random.choice([300, OPTIONS.output_bytes]),
            dedupe=False,
            file_ids=tuple(sorted(file.file_id for file in chosen)),
            reason="chance",
        )
    )
    world.count("arbitrary erasing merge")
