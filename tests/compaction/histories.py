"""Histories: random actions in a world, their frequencies, the end of a history, and the checks at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compactor.deletion.orphans import ATTEMPT_OUTLIVES_JOB_MS
from metadata.contract.jobs import JobState
from metadata.contract.leases import JOB_LEASE_MS
from metadata.contract.topics import Topic
from metadata.erasures.contract import ErasureStage
from metadata.rules.jobs import EXHAUSTED_RETRY_MS
from storage.keys import CLUSTER_KEY
from storage.objects import ObjectNotFoundError
from tests.compaction import erasures
from tests.compaction.model import UNREADABLE, repeated_keys
from tests.compaction.specs import GRACE_MS, LIMIT_MS, PURGE_MS
from tests.compaction.world import World

STEPS = 60
IDLE_ROUNDS = 3
"""Idle time, longer than any wait in the planner's options."""

ACTIONS = (
    ("write", 24),
    ("level now", 14),
    ("late", 2),
    ("write late", 4),
    ("send again", 6),
    ("plan", 20),
    ("arbitrary", 12),
    ("run", 22),
    ("run in trouble", 4),
    ("commit", 16),
    ("commit twice", 3),
    ("commit in doubt", 4),
    ("crash", 3),
    ("delete records", 2),
    ("expire", 4),
    ("sweep", 6),
    ("policy", 1),
    ("recreate", 1),
    ("request", 2),
    ("time", 18),
    ("read slowly", 10),
    ("erase", 10),
    ("advance erasures", 10),
    ("erase anything", 3),
)

NO_HABITS: Mapping[str, float] = {}
PARTIAL: Mapping[str, float] = {"plan": 0.3, "arbitrary": 3, "time": 1.5}
"""Mostly merges of a few extents, so that old values lie outside the inputs of a merge."""
NO_ERASURES: Mapping[str, float] = dict.fromkeys(("erase", "advance erasures", "erase anything"), 0.0)
"""They hide bugs of other kinds: old values that come back were erased."""
ALWAYS = frozenset({"write", "plan", "run", "commit", "time"})


@dataclass(frozen=True, slots=True)
class Outcome:
    seed: int
    violations: list[str]
    says: list[str]
    counts: dict[str, int]

    def __str__(self) -> str:
        return "\n".join([f"seed {self.seed}:", *self.says[-60:], *(f"  !! {each}" for each in self.violations[:8])])


def run_seed(
    seed: int,
    *,
    steps: int = STEPS,
    habits: Mapping[str, float] = NO_HABITS,
    heavy: bool = False,
    kind: type[World] = World,
) -> Outcome:
    """`habits`: factors for the frequency of some actions; without them the seed chooses. `heavy`: merges are cut into
    units. `kind`: what else happens in it."""
    world = kind(seed, heavy=heavy)
    try:
        asyncio.run(_history(world, steps, habits))
    except ObjectNotFoundError as error:
        world.violations.append(f"FILE-1: {error.message}")
    return Outcome(seed, world.violations, world.says, world.counts)


async def _history(world: World, steps: int, habits: Mapping[str, float]) -> None:
    await world.begin()
    actions = [*ACTIONS, *world.more_actions().items()]
    names = [name for name, _ in actions]
    # Each history has habits of its own, so that actions that are rare in general are common in some histories.
    weights = [
        weight * habits.get(name, world.random.choice([0.3, 1, 3] if name in ALWAYS else [0, 0.3, 1, 4]))
        for name, weight in actions
    ]
    for _ in range(steps):
        await act(world, world.random.choices(names, weights)[0])
        if world.violations:
            return
    await _end(world)


async def act(world: World, action: str) -> None:
    match action:
        case "write":
            await world.write()
        case "level now":
            await world.level_now()
        case "late":
            await world.write_late()
        case "write late":
            if world.late:
                await world.write(file_id=world.late.pop(0))
        case "send again":
            await world.producers.send_again()
        case "plan":
            await world.plan_round()
        case "arbitrary":
            await world.arbitrary_merge()
        case "run":
            await world.run_job()
        case "run in trouble":
            await world.run_job(trouble=True)
        case "commit":
            await world.commit_one()
        case "commit twice":
            await world.commit_one(twice=True)
        case "commit in doubt":
            await world.commit_one(doubts=True)
        case "crash":
            await world.crash()
        case "delete records":
            await world.delete_records()
        case "expire":
            await world.expire()
        case "sweep":
            await world.sweep()
        case "policy":
            await world.change_policy()
        case "recreate":
            await world.recreate_topic()
        case "request":
            await world.request()
        case "time":
            world.pass_time()
        case "read slowly":
            await world.read_slowly()
        case "erase":
            await erasures.request(world)
        case "advance erasures":
            await erasures.advance(world)
        case "erase anything":
            await erasures.arbitrary(world)
        case _:
            await world.act(action)


async def settle(world: World, rounds: int = 12) -> None:
    """Plans, runs and commits everything that the planner wants, while time passes, until it wants nothing."""
    idle = 0
    for _ in range(rounds):
        world.clock.advance_ms(1_100)
        await world.expire()
        await world.plan_round()
        idle += 1
        for _ in range(40):
            before = len(world.held)
            if not await world.run_job():
                break
            if len(world.held) > before:  # else an erasing merge met a batch that cannot be read
                await world.commit_one()
                idle = 0
        if world.violations or idle == IDLE_ROUNDS:
            return


async def _end(world: World) -> None:
    """Without further faults, everything is leveled and cleaned, tombstones go, and no object is left behind."""
    world.say("---- the end begins")
    await world.before_the_end()
    # Batches that nobody can read fail erasing merges again and again, and time is short.
    world.erases = not world.counts.get("poison")
    zombies, world.held = world.held, []
    world.clock.advance_ms(JOB_LEASE_MS + LIMIT_MS + 1_000)
    await settle(world)
    if await world.metadata.operators.jobs(states=[JobState.FAILED]):
        world.clock.advance_ms(EXHAUSTED_RETRY_MS)  # the rest of the inputs of an unfinished job
        await settle(world)
    for held in zombies:  # their time limits have passed: none may commit
        world.held = [held]
        done = world.counts.get("commit", 0)
        await world.commit_one()
        if world.counts.get("commit", 0) != done:
            world.violations.append(f"the zombie of job {held.claimed.job.job_id} committed")
    compacted = [
        topic
        for topic in await world.metadata.agents.list_topics()
        if "compact" in topic.configs.get("cleanup.policy", "delete")
    ]
    for turn in range(3):
        await world.before_turn(last=turn == 2)
        world.clock.advance_ms(3_000)  # past every min.compaction.lag.ms
        for topic in compacted:
            await world.metadata.operators.request_compaction(topic.topic_id)
        await settle(world)
        if world.violations:
            return
        world.clock.advance_ms(LIMIT_MS + GRACE_MS + 5_000)  # past every horizon that the turn before stamped
        await _check_clean(world, compacted, last=turn == 2)
    await world.check()
    await _check_nothing_left(world)
    if not world.violations:
        await _check_erasures(world)


async def _check_clean(world: World, compacted: Sequence[Topic], *, last: bool) -> None:
    for topic in compacted:
        views = {view.partition_id: view for view in await world.metadata.operators.partition_views(topic.topic_id)}
        for partition_id in topic.partition_ids:
            view, model = views[partition_id], world.models[partition_id]
            through = max(view.cleaned_through_offset, view.log_start_offset)
            if through < min(view.high_watermark, view.last_stable_offset):
                world.violations.append(
                    f"{model.name}: cleaned through {through} of {view.high_watermark} after a request"
                )
                continue
            present, start, _ = await world.read(partition_id)
            # It may hide a value of any key, even below the log start while its extent lives.
            waits = any(each.headers == UNREADABLE for each in present)
            present = [record for record in present if record.offset >= start]
            if repeated := repeated_keys(present, below=view.cleaned_through_offset):
                world.violations.append(f"{model.name}: {repeated} more than once after the pass")
            tombstones = [each.offset for each in present if each.value is None]
            await world.check_clean(partition_id, view.cleaned_through_offset, last=last)
            if last and tombstones and not waits and model.delete_retention_ms <= 5_000:
                world.violations.append(f"{model.name}: tombstones {tombstones} are still there")


async def _check_nothing_left(world: World) -> None:
    """After grace, purge deadline and the age of what jobs leave, the bucket holds the live files alone."""
    for _ in range(3):
        world.clock.advance_ms(PURGE_MS + 1_000)
        await settle(world, rounds=3)
        world.clock.advance_ms(GRACE_MS + ATTEMPT_OUTLIVES_JOB_MS + 1_000)
        await world.sweep()
    live = {file.key for file in await world.metadata.operators.files(limit=1_000_000) if file.state == "live"}
    stored = {stat.key async for stat in world.objects.list()}
    if missing := live - stored:
        world.violations.append(f"FILE-1: {sorted(missing)} are gone")
    if left := stored - live - {CLUSTER_KEY}:
        world.violations.append(f"{sorted(left)} are left")
    await world.check()


async def _check_erasures(world: World) -> None:
    """Every erasure ends, unless a batch that nobody can read is in its way; then no object holds a value of it."""
    for _ in range(erasures.ROUNDS_MAX):
        still_open = await erasures.advance(world)
        if world.violations or not still_open:
            break
        resting_ms = [each.next_ms for each in still_open if each.stage in (ErasureStage.WAITING, ErasureStage.RESTING)]
        world.clock.advance_ms(max([GRACE_MS + 1_000, *(each - world.clock.wall_ms() for each in resting_ms)]))
        await settle(world, rounds=4)
        await world.sweep()
    else:
        if not world.counts.get("poison"):
            for each in still_open:
                pending = await world.metadata.erasures.pending_files(each.erasure_id)
                world.violations.append(f"erasure {each.erasure_id} never ended: {each.stage}, pending {pending}")
    await erasures.judge(world)
    await world.check()
