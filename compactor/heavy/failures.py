"""The notes that failed units leave: value, stored form, and their consequences for the merge.

A task whose unit fails for good (an input is gone, or of a later release) writes a note beside the manifests before it
ends, so that the compactor need not guess the reason from the driver's last lines. The note is written once; the first
failure counts. The note counts only while the unit has no manifest and its driver has ended, because another try may
have succeeded. If the task crashes before it writes the note, the driver failed for an unknown reason, and the
compactor starts another driver.

A task that cannot read an input now (access denied, archived, the store in trouble) leaves a weaker note under another
name. It does not end the merge. It names the files to blame if all tries are used up and the unit is still not done.
The note may be from an earlier try, and its cause may have passed: then a file rests for a while without need.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Container, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

import zstandard

from compactor.heavy.manifest import ManifestMismatchError
from compactor.heavy.plan.frames import FramesError, decompress, load_json
from compactor.heavy.plan.units import HeavyPlan
from compactor.merging.kway_merge import InputUnavailableError, MergeInputError
from runtime.errors import SiltstoneError
from runtime.logging import get_logger
from storage.keys import (
    FAILED_NAME,
    UNREAD_NAME,
    BadKeyError,
    failed_key,
    job_key,
    parse_job_key,
    unread_key,
)
from storage.objects import ObjectExistsError, ObjectStore
from wire.crc import crc32c

_log = get_logger(__name__)

FAILURE_VERSION = 1
FAILURE_BYTES_MAX = 64 << 20
MESSAGE_CHARS_MAX = 2_000
FAILURES_READ_MAX = 100
"""Notes read at most: further ones add nothing new."""


_KeyOf = Callable[[int, str, int], str]
"""(job id, fingerprint of the plan, unit) -> key."""


class UnitFailedError(SiltstoneError):
    """A unit cannot be done as planned, and another try would not help. Finished units keep their manifests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFailure:
    plan: str
    """Fingerprint of the plan."""
    unit: int
    kind: str
    """Name of the error's class."""
    message: str
    file_ids: Sequence[int] = ()
    """Input files to blame; empty when the inputs are not at fault."""

    def encode(self) -> bytes:
        body = {
            "version": FAILURE_VERSION,
            "plan": self.plan,
            "unit": self.unit,
            "kind": self.kind,
            "message": self.message,
            "file_ids": list(self.file_ids),
        }
        return zstandard.ZstdCompressor(level=3).compress(json.dumps(body, sort_keys=True).encode())


def decode_failure(stored: bytes, plan: HeavyPlan, unit: int) -> UnitFailure:
    """Raises ManifestMismatchError for a note of another plan or unit, or one that blames a file that is no input."""
    try:
        loaded = load_json(decompress(stored, FAILURE_BYTES_MAX))
        fields = cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else {}
        failure = UnitFailure(
            plan=str(fields["plan"]),
            unit=int(fields["unit"]),
            kind=str(fields["kind"]),
            message=str(fields["message"])[:MESSAGE_CHARS_MAX],
            file_ids=tuple(int(each) for each in fields["file_ids"]),
        )
        known = fields["version"] == FAILURE_VERSION
    except (FramesError, KeyError, TypeError, ValueError) as error:
        raise ManifestMismatchError(f"the failure note of unit {unit} cannot be read: {error!r}") from error
    if not known or (failure.plan, failure.unit) != (plan.fingerprint, unit):
        raise ManifestMismatchError(f"the failure note of unit {unit} is of another plan, unit or release")
    if not plan.file_ids.issuperset(failure.file_ids):
        raise ManifestMismatchError(f"unit {unit} blames files that are no inputs of job {plan.job_id}")
    return failure


@asynccontextmanager
async def failure_told(store: ObjectStore, plan: HeavyPlan, unit: int) -> AsyncGenerator[None]:
    """Writes a note when the block ends with an error that another try cannot heal, or because an input could not be
    read."""
    try:
        yield
    except InputUnavailableError as error:
        await _tell(store, unread_key, plan, unit, error)
        raise
    except SiltstoneError as error:
        if not error.retriable:
            await _tell(store, failed_key, plan, unit, error)
        raise


async def _tell(store: ObjectStore, key_of: _KeyOf, plan: HeavyPlan, unit: int, error: SiltstoneError) -> None:
    failure = UnitFailure(
        plan=plan.fingerprint,
        unit=unit,
        kind=type(error).__name__,
        message=str(error)[:MESSAGE_CHARS_MAX],
        file_ids=error.file_ids if isinstance(error, MergeInputError | InputUnavailableError) else (),
    )
    body = failure.encode()
    try:
        with suppress(ObjectExistsError):
            await store.put_if_absent(key_of(plan.job_id, plan.fingerprint, unit), body, crc32c=crc32c(body))
    except SiltstoneError as trouble:  # the unit's own error matters more, and the driver logs it too
        _log.warning("could not write the failure note of a unit", job=plan.job_id, unit=unit, error=str(trouble))


async def stored_failures(store: ObjectStore, plan: HeavyPlan, *, done: Container[int] = ()) -> Sequence[UnitFailure]:
    """The permanent failures of units that are not `done`, by unit. Raises ManifestMismatchError."""
    return await _stored(store, FAILED_NAME, failed_key, plan, done)


async def stored_unread(store: ObjectStore, plan: HeavyPlan, *, done: Container[int] = ()) -> Sequence[UnitFailure]:
    """The notes of units that could not read an input and are not `done`, by unit. Raises ManifestMismatchError."""
    return await _stored(store, UNREAD_NAME, unread_key, plan, done)


async def _stored(
    store: ObjectStore, name: str, key_of: _KeyOf, plan: HeavyPlan, done: Container[int]
) -> Sequence[UnitFailure]:
    units: list[int] = []
    async for stat in store.list(job_key(plan.job_id, plan.fingerprint) + name):
        with suppress(BadKeyError):
            unit = parse_job_key(stat.key).failed_unit
            if unit is not None and unit not in done:
                units.append(unit)
    found: list[UnitFailure] = []
    for unit in sorted(units)[:FAILURES_READ_MAX]:
        stored = await store.get(key_of(plan.job_id, plan.fingerprint, unit))
        found.append(decode_failure(stored, plan, unit))
    return found


def failure_of_all(failures: Sequence[UnitFailure]) -> SiltstoneError | None:
    """The error that ends the merge: MergeInputError with all inputs to blame, if any, else UnitFailedError. Pure."""
    if not failures:
        return None
    blaming = [each for each in failures if each.file_ids]
    first = (blaming or failures)[0]
    said = f"unit {first.unit}: {first.message}"
    if blaming:
        return MergeInputError(said, file_ids=_blamed(blaming))
    return UnitFailedError(f"{said} [{first.kind}]")


def unread_of_all(unread: Sequence[UnitFailure], said: str) -> InputUnavailableError | None:
    """The error that ends a claim's wait when units could not read inputs; it names all these files. Pure."""
    file_ids = _blamed(unread)
    if not file_ids:
        return None
    return InputUnavailableError(f"unit {unread[0].unit}: {unread[0].message}; {said}", file_ids=file_ids)


def _blamed(failures: Sequence[UnitFailure]) -> Sequence[int]:
    return sorted({id_ for each in failures for id_ in each.file_ids})
