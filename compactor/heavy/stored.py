"""Plans and manifests in the object store: writing, reading, and the choice between two manifests of a unit.

A plan is written before its driver is submitted, a manifest after all outputs of its unit are complete. Both are
written once. A crash before the manifest leaves outputs that nothing names.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from compactor.heavy.manifest import UnitResult, decode_result
from compactor.heavy.plan.codec import check_beginning, decode_head, decode_stretches
from compactor.heavy.plan.frames import (
    FIRST_READ_BYTES,
    Directory,
    FramesError,
    directory_bytes,
    piece,
    read_directory,
)
from compactor.heavy.plan.units import HeavyPlan, PlanError
from runtime.clock import Clock
from runtime.errors import UnavailableError
from runtime.logging import get_logger
from storage.cluster import decode_cluster_file
from storage.keys import CLUSTER_KEY, JOBS_PREFIX, PLAN_NAME, BadKeyError, job_key, parse_job_key, unit_key
from storage.objects import ObjectExistsError, ObjectNotFoundError, ObjectStore
from wire.crc import crc32c

_log = get_logger(__name__)

DECODED_AT_ONCE_BYTES = 64 << 10
LATE_SLACK_MS = 60_000
"""Allowed lead of a task's clock over the metadata store's. A clock further ahead ends its plans a little early."""


class PlanOverError(UnavailableError):
    """No compactor waits for the plan's units any more: its time is over, or the plan is gone. Further outputs would be
    orphans. The error counts as temporary, because the clock may be wrong here and right in the next task."""


def store_time_ms(plan: HeavyPlan, clock: Clock) -> int:
    """The metadata store's time as well as a task can know it: the machine's clock, kept within the plan's times."""
    return max(plan.claimed_ms, min(clock.wall_ms(), plan.commit_by_ms))


def check_time(plan: HeavyPlan, clock: Clock) -> None:
    """Raises PlanOverError when a unit begun now could not be committed any more."""
    late_ms = clock.wall_ms() - plan.commit_by_ms
    if late_ms > LATE_SLACK_MS:
        raise PlanOverError(f"the time of the plan of job {plan.job_id} is over: it ended {late_ms / 1000:.0f} s ago")


async def check_stands(store: ObjectStore, plan: HeavyPlan, clock: Clock) -> None:
    """Call before a unit begins and before its manifest is written.

    Raises PlanOverError when the plan's time is over, or when the janitor has deleted the plan because its job ended.
    """
    check_time(plan, clock)
    try:
        await store.head(plan_key(plan))
    except ObjectNotFoundError as error:
        raise PlanOverError(f"the plan of job {plan.job_id} is gone: the job is over") from error


class Frames:
    """A stored object of frames, of which only those that are asked for are read."""

    def __init__(self, store: ObjectStore, key: str, directory: Directory, head: bytes, beginning: bytes) -> None:
        self._store = store
        self.key = key
        self.directory = directory
        self.head = head
        """Its bytes as they are stored."""
        self._beginning = beginning if len(beginning) < FIRST_READ_BYTES else b""
        """The whole object, if the first read had it."""

    @staticmethod
    async def read(store: ObjectStore, key: str, *, check: Callable[[bytes], None] | None = None) -> Frames:
        """Read the directory and the head. `check`: looks at the object's beginning first, and may raise.

        Raises ObjectNotFoundError, FramesError, and the errors of the store.
        """
        beginning = await store.get_range(key, 0, FIRST_READ_BYTES)
        if check is not None:
            check(beginning)
        beginning = await _reaching(store, key, beginning, directory_bytes(beginning))
        directory = read_directory(beginning)
        beginning = await _reaching(store, key, beginning, directory.head.position + directory.head.length)
        return Frames(store, key, directory, bytes(piece(beginning, directory.head)), beginning)

    async def bodies(self, numbers: Sequence[int]) -> Mapping[int, bytes]:
        """The bytes of these frames as they are stored. Frames that lie one after another take one request.

        Raises IndexError for a frame that is not there, ObjectNotFoundError and the errors of the store.
        """
        found: dict[int, bytes] = {}
        for numbers_of_run in _runs(sorted(numbers)):
            frames = [self.directory.frames[number] for number in numbers_of_run]
            start, end = frames[0].position, frames[-1].position + frames[-1].length
            if self._beginning:
                stored, start = self._beginning, 0
            else:
                stored = await self._store.get_range(self.key, start, end - start)
            found |= {
                number: bytes(piece(stored, frame, start=start))
                for number, frame in zip(numbers_of_run, frames, strict=True)
            }
        return found


async def _reaching(store: ObjectStore, key: str, beginning: bytes, end: int) -> bytes:
    """The beginning of the object up to `end` at least, unless it ends before."""
    return beginning if len(beginning) >= end else await store.get_range(key, 0, end)


def _runs(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    start = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
            yield numbers[start:at]
            start = at


class StoredPlan:
    """A plan in the object store: its head, and the inputs of units as they are asked for."""

    def __init__(self, frames: Frames, head: HeavyPlan) -> None:
        self._frames = frames
        self.head = head
        """The plan without stretches."""

    @staticmethod
    async def opened(store: ObjectStore, key: str) -> StoredPlan:
        """Raises PlanError for a plan that is gone, of another cluster than the store's, or of another version;
        BadKeyError for a key of something else."""
        if parse_job_key(key).name != PLAN_NAME:
            raise BadKeyError(f"{key!r} is not the key of a plan")
        try:
            cluster = decode_cluster_file(await store.get(CLUSTER_KEY))
        except ObjectNotFoundError as error:
            raise PlanError(
                f"the object store has no {CLUSTER_KEY}", remedy="give the task the compactor's object store"
            ) from error
        return await _opened(store, key, cluster.cluster_id)

    async def with_unit(self, number: int) -> HeavyPlan:
        """The plan with the inputs of one unit. Raises PlanError and the errors of the store."""
        return await self._with([self.head.unit(number).stretch])

    async def whole(self) -> HeavyPlan:
        """The plan with all inputs. Raises PlanError and the errors of the store."""
        return await self._with(range(len(self._frames.directory.frames)))

    async def _with(self, numbers: Sequence[int]) -> HeavyPlan:
        directory = self._frames.directory
        try:
            bodies = await self._frames.bodies(numbers)
        except ObjectNotFoundError as error:
            raise _no_plan(self._frames.key) from error

        def decoded() -> HeavyPlan:
            return replace(self.head, stretches=decode_stretches(bodies, self.head, directory))

        # The whole of a large plan takes a second or two, in which an event loop must not stand still.
        is_small = sum(map(len, bodies.values())) <= DECODED_AT_ONCE_BYTES
        return decoded() if is_small else await asyncio.to_thread(decoded)


async def _opened(store: ObjectStore, key: str, cluster_id: str | None) -> StoredPlan:
    named = parse_job_key(key)
    try:
        frames = await Frames.read(store, key, check=check_beginning)
    except ObjectNotFoundError as error:
        raise _no_plan(key) from error
    except FramesError as error:
        raise PlanError(f"{key!r} is not a plan: {error.message}") from error
    if frames.directory.fingerprint != named.fingerprint:
        raise PlanError(f"the plan has the fingerprint {frames.directory.fingerprint}, but its key is {key!r}")
    head = decode_head(frames.head, frames.directory, cluster_id=cluster_id)
    if head.job_id != named.job_id:
        raise PlanError(f"the plan at {key!r} is of another job, {head.job_id}")
    return StoredPlan(frames, head)


def _no_plan(key: str) -> PlanError:
    return PlanError(
        f"there is no plan {key!r}",
        remedy="nothing to do if its job has ended: the janitor deletes the plans of ended jobs",
    )


def plan_key(plan: HeavyPlan) -> str:
    return job_key(plan.job_id, plan.fingerprint, PLAN_NAME)


async def store_plan(store: ObjectStore, plan: HeavyPlan) -> str:
    """Writes the plan and returns its key. A plan that is already there is the same, because the key contains the
    fingerprint."""
    key = plan_key(plan)
    if plan.body:
        with suppress(ObjectExistsError):
            await store.put_if_absent(key, plan.body, crc32c=crc32c(plan.body))
    return key


async def read_plan(store: ObjectStore, key: str, cluster_id: str | None = None) -> HeavyPlan:
    """A whole plan. Raises PlanError."""
    return await (await _opened(store, key, cluster_id)).whole()


async def read_plan_head(store: ObjectStore, key: str) -> HeavyPlan:
    """A plan without its inputs. Raises PlanError."""
    return (await _opened(store, key, None)).head


async def stored_plans(store: ObjectStore, job_id: int, *, cluster_id: str) -> Sequence[HeavyPlan]:
    """The plans of one job that this release can read, the latest first."""
    plans: list[HeavyPlan] = []
    async for key in plan_keys(store, f"{JOBS_PREFIX}{job_id}/"):
        try:
            plans.append(await read_plan(store, key, cluster_id))
        except PlanError as error:
            _log.warning("a stored plan cannot be used", key=key, error=str(error))
    # The latest first: it has the most time left.
    return sorted(plans, key=lambda each: each.claimed_ms, reverse=True)


async def plan_keys(store: ObjectStore, prefix: str) -> AsyncIterator[str]:
    """Keys of plans below `prefix`."""
    async for stat in store.list(prefix):
        try:
            if parse_job_key(stat.key).name == PLAN_NAME:
                yield stat.key
        except BadKeyError:
            continue


async def read_result(store: ObjectStore, plan: HeavyPlan, number: int) -> UnitResult | None:
    """The result in a unit's manifest; None if there is no manifest. Raises ManifestMismatchError."""
    try:
        return decode_result(await store.get(unit_key(plan.job_id, plan.fingerprint, number)))
    except ObjectNotFoundError:
        return None


async def settle(store: ObjectStore, plan: HeavyPlan, result: UnitResult) -> UnitResult:
    """Writes the manifest of a finished unit. Returns the result that counts: this one, or that of an earlier try."""
    key, body = unit_key(plan.job_id, plan.fingerprint, result.unit), result.encode()
    try:
        await store.put_if_absent(key, body, crc32c=crc32c(body))
    except ObjectExistsError:
        _log.info("another try finished the unit first", job=plan.job_id, unit=result.unit)
        return decode_result(await store.get(key))
    return result
