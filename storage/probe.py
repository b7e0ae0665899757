"""Tests whether a store honours `If-None-Match: *`. Without it two writers can take one key and records are lost.

`siltstone doctor` and every agent at its start run this probe. Some servers ignore the header and overwrite. Some check
it, but let several concurrent PUTs of a key through. So the probe creates a key twice in a row, and then by eight PUTs
at once, a few times over.

All keys lie under `probe/`, and the probe deletes them before it returns, also when it fails. The next probe deletes
the leftovers of a killed one once they are old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.clock import Clock
from runtime.ids import IdSource
from storage.keys import PROBE_PREFIX
from storage.objects import (
    ObjectExistsError,
    ObjectStore,
    ObjectStoreError,
    PutInDoubtError,
    StoreMisconfiguredError,
)
from wire.crc import crc32c

CROWD = 8
ROUNDS = 3
LEFTOVER_AGE_MS = 600_000
"""Older keys belong to no probe that still runs."""
REMEDY = "use a store that honours If-None-Match on PUT (AWS S3, MinIO, versitygw and others do)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The store's behaviour."""

    honours_if_none_match: bool
    detail: str
    """The observation, for people."""
    keeps_crc32c: bool
    """Whether HEAD answers with the CRC-32C. If not, a PUT in doubt is settled by reading the object."""
    store_clock_ms: int
    """The store's clock at the time it wrote an object; S3 rounds it to seconds."""
    clock_ms: int
    """Our clock, read just after."""

    def check(self) -> None:
        """Raises StoreMisconfiguredError unless the store can be used."""
        if not self.honours_if_none_match:
            raise StoreMisconfiguredError(
                f"the object store does not honour If-None-Match: {self.detail}", remedy=REMEDY
            )


async def probe_conditional_create(store: ObjectStore, ids: IdSource, clock: Clock) -> ProbeResult:
    """Create, create again, create at once, look, clean up. Takes about 40 requests.

    Raises the store's errors, and StoreMisconfiguredError when it cannot delete.
    """
    name = f"{PROBE_PREFIX}{ids.uuid7(clock.wall_ms())}"
    keys = [f"{name}-{number}" for number in range(ROUNDS + 1)]
    try:
        detail = await _create_twice(store, keys[0])
        # Right behind the PUT, so that the two clocks are compared at nearly one moment.
        clock_ms = clock.wall_ms()
        stat = await store.head(keys[0])
        for key in keys[1:]:
            detail = detail or await _create_at_once(store, key)
        return ProbeResult(
            honours_if_none_match=not detail,
            detail=detail or f"of {CROWD} concurrent PUTs of a key exactly one succeeded, in each of {ROUNDS} rounds",
            keeps_crc32c=stat.crc32c is not None,
            store_clock_ms=stat.last_modified_ms,
            clock_ms=clock_ms,
        )
    finally:
        await _remove(store, [*keys, *await _leftovers(store, clock)])


async def _create_twice(store: ObjectStore, key: str) -> str:
    """The fault found, or ""."""
    await _create(store, key, b"first")
    try:
        await _create(store, key, b"second")
    except ObjectExistsError:
        stored = await store.get(key)
        return "" if stored == b"first" else "a PUT that the store refused changed the object"
    # Some servers reset the connection of a losing PUT instead of answering 412: only the object tells.
    except PutInDoubtError:
        stored = await store.get(key)
        return "" if stored == b"first" else "a second PUT of a key replaced the object"
    return "a second PUT of a key was accepted"


async def _create_at_once(store: ObjectStore, key: str) -> str:
    """The fault found, or ""."""
    bodies = [f"{number}".encode() * 1024 for number in range(CROWD)]
    answers = await asyncio.gather(*(_create(store, key, body) for body in bodies), return_exceptions=True)
    for answer in answers:
        if answer is not None and not isinstance(answer, ObjectExistsError | PutInDoubtError):
            raise answer
    winners = [number for number, answer in enumerate(answers) if answer is None]
    doubtful = [number for number, answer in enumerate(answers) if isinstance(answer, PutInDoubtError)]
    stored = await store.get(key)
    if len(winners) > 1:
        return f"{len(winners)} of {CROWD} concurrent PUTs of a key were accepted"
    # Without a winner, one of the doubtful PUTs must have got through.
    if stored not in [bodies[number] for number in winners or doubtful]:
        return "the object is not the one of the PUT that was accepted"
    return ""


async def _create(store: ObjectStore, key: str, body: bytes) -> None:
    await store.put_if_absent(key, body, crc32c=crc32c(body))


async def _leftovers(store: ObjectStore, clock: Clock) -> Sequence[str]:
    try:
        oldest_ms = clock.wall_ms() - LEFTOVER_AGE_MS
        return [stat.key async for stat in store.list(PROBE_PREFIX) if stat.last_modified_ms < oldest_ms]
    except ObjectStoreError:
        return []  # the next probe finds them; our own keys are deleted in any case


async def _remove(store: ObjectStore, keys: Sequence[str]) -> None:
    deleted = await store.delete_many(keys)
    if deleted.failed:
        key, reason = next(iter(deleted.failed.items()))
        raise StoreMisconfiguredError(f"the store does not delete {key!r}: {reason}", remedy="grant s3:DeleteObject")
