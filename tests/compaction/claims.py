"""Claims that something is gone, held against the bytes: what a tool says is gone must be in no object.

A claim comes from the product's own report (`topics explain`, `record diagnose`, the end of an erasure) about a running
history. It is judged by a grep of every object in the bucket, batches decompressed. Every value of a history is written
once, so a value that is found is the record that was claimed to be gone. A new kind of claim is a function in `CLAIMS`:
it yields what the tool says, and the values that may then be in no object.

Random steps take turns with calm, in which the real janitor deletes dead files and orphans: without it little is ever
gone.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from compactor.deletion.erasures import ErasureDuty
from compactor.deletion.janitor import ClocksApartError
from metadata.contract.leases import JOB_LEASE_MS
from runtime.settings.table import Settings
from siltstone.cli.options.system_options import SystemOptions
from siltstone.cli.topics.explain import explained
from siltstone.ops.compaction.causes import Cause
from siltstone.ops.hint_options import NO_HINT_OPTIONS
from siltstone.ops.record_report import Verdict
from siltstone.ops.record_trace import diagnose
from storage.keys import LEVEL_PREFIXES
from storage.objects import ObjectStore
from tests.compaction import erasures
from tests.compaction.histories import ACTIONS, act, settle
from tests.compaction.log import values_in
from tests.compaction.model import UNREADABLE, Rec
from tests.compaction.specs import GRACE_MS, LIMIT_MS, PURGE_MS
from tests.compaction.world import NEVER, World

SHARE = 0.2
"""Of the random steps after which claims are asked for; in the calm, after each step."""
PERIODS, STEPS = 4, 14
LAZY = 0.5
"""The chance that in a calm nothing but requested passes and the purge deadline rewrites files: shared files live on
with dead bytes."""
FEW_MERGES: Mapping[str, Any] = {
    "l1_runs_min": NEVER,
    "l2_runs_min": NEVER,
    "daily_interval_ms": NEVER,
    "mostly_dead_bytes_min": NEVER,
    "forced_dirty_bytes_min": NEVER,
    "forced_dirty_wait_ms": NEVER,
}
REQUESTED = 0.6
"""The chance that a compacted topic is asked to be compacted in the calm."""
PARTITIONS_MAX = 1_000
DIAGNOSED = 4
"""Offsets asked about at once."""
GIVEN = SystemOptions(
    data=None,
    metadata_url="",
    object_store_url="",
    settings=Settings(metadata_url="memory://", object_store_url="memory://"),
)


class Claim(NamedTuple):
    says: str
    gone: frozenset[bytes]
    """Values that no object may hold."""


@dataclass
class Claims:
    """Asks for claims about one history, and judges them."""

    seed: int
    asked: dict[str, int] = field(default_factory=dict[str, int])
    """How many claims were made, by kind, and how many of them named values ("... of values")."""
    decoded: dict[str, frozenset[bytes]] = field(default_factory=dict[str, frozenset[bytes]])
    """Values by object, which never changes."""

    def __post_init__(self) -> None:
        # Its own chance, so that asking does not change the history.
        self.random = random.Random(self.seed)

    async def ask(self, world: World) -> None:
        values: Mapping[str, frozenset[bytes]] | None = None
        for kind, claims in CLAIMS.items():
            async for claim in claims(world, self.random):
                self._count(kind)
                self._count(f"{kind} of values", len(claim.gone))
                values = await self.grep(world.objects) if values is None else values
                for key, held in values.items():
                    if found := held & claim.gone:
                        world.violations.append(f"seed {self.seed}: {claim.says}; but {key} holds {sorted(found)}")

    async def grep(self, store: ObjectStore) -> Mapping[str, frozenset[bytes]]:
        """The values of all records in each object, whether a row names it or not."""
        keys = [stat.key for prefix in LEVEL_PREFIXES async for stat in store.list(prefix)]
        for key in keys:
            if key not in self.decoded:
                self.decoded[key] = await values_in(store, key)
        return {key: self.decoded[key] for key in keys}

    def _count(self, kind: str, times: int = 1) -> None:
        self.asked[kind] = self.asked.get(kind, 0) + times


async def explain_claims(world: World, _: random.Random) -> AsyncIterator[Claim]:
    for topic in world.topics:
        told = await explained(world.metadata, world.objects, topic.name, GIVEN)
        through = {each.view.partition: each.view.cleaned_through_offset for each in told.states}
        for reason in told.reasons:
            if reason.cause is Cause.GONE and reason.partition is not None:
                model = world.models[topic.partition_ids[reason.partition]]
                yield Claim(f"explain {model.name}: {reason.says}", removed(model.records[: through[reason.partition]]))


def removed(records: list[Rec]) -> frozenset[bytes]:
    """The values that a newer record of their key superseded or deleted."""
    newest = {each.key: each.offset for each in records}
    return frozenset(
        each.value
        for each in records
        if each.key is not None and each.value is not None and newest[each.key] > each.offset
    )


async def diagnose_claims(world: World, chance: random.Random) -> AsyncIterator[Claim]:
    for topic in world.topics:
        for number, partition_id in enumerate(topic.partition_ids):
            model = world.models[partition_id]
            asked = [each for each in model.records if each.headers != UNREADABLE and each.value is not None]
            for record in chance.sample(asked, k=min(DIAGNOSED, len(asked))):
                found = await diagnose(
                    world.metadata, world.objects, topic.name, number, record.offset, NO_HINT_OPTIONS, world.options
                )
                removed = (Verdict.COMPACTED, Verdict.ERASED, Verdict.BELOW_START)
                assert (found.remnants is None) == (found.verdict not in removed)
                if found.remnants is not None and not found.remnants and record.value is not None:
                    yield Claim(f"diagnose {model.name} {record.offset}: {found.why}", frozenset([record.value]))


async def erase_claims(world: World, _: random.Random) -> AsyncIterator[Claim]:
    for each in world.erasures.requested:
        if each.done:
            yield Claim(f"erasure {each.erasure_id} of {each.name} is done", each.values)


CLAIMS: Mapping[str, Callable[[World, random.Random], AsyncIterator[Claim]]] = {
    "explain": explain_claims,
    "diagnose": diagnose_claims,
    "erase": erase_claims,
}
"""By command."""


async def run_claims(world: World, habits: Mapping[str, float], *, periods: int = PERIODS) -> Claims:
    """One history."""
    claims = Claims(world.seed)
    await world.begin()
    world.duty = ErasureDuty(store=world.objects, metadata=world.metadata, runtime=world.runtime, janitor=world.janitor)
    names = [name for name, _ in ACTIONS]
    for _ in range(periods):
        weights = [weight * habits.get(name, 1) * world.random.choice([0.5, 1, 2]) for name, weight in ACTIONS]
        for _ in range(STEPS):
            await act(world, world.random.choices(names, weights)[0])
            if claims.random.random() < SHARE:
                await claims.ask(world)
        await _calm(world, claims)
        if world.violations:
            break
    return claims


async def _calm(world: World, claims: Claims) -> None:
    """Everything is leveled and cleaned, what is dead is rewritten and deleted. Merges that had run are never
    committed. In the end no file holds bytes that were dead when the calm began."""
    world.held, began_ms, options = [], world.clock.wall_ms(), world.options
    if claims.random.random() < LAZY:
        world.options = replace(options, **FEW_MERGES)
    world.clock.advance_ms(JOB_LEASE_MS + LIMIT_MS + 1_000)
    await settle(world)
    await claims.ask(world)
    for topic in await world.metadata.agents.list_topics():
        if "compact" in topic.configs.get("cleanup.policy", "delete") and claims.random.random() < REQUESTED:
            await world.metadata.operators.request_compaction(topic.topic_id)
    await settle(world)
    for span_ms in (GRACE_MS + 1_000, GRACE_MS + 1_000, PURGE_MS, GRACE_MS + 1_000):
        await claims.ask(world)
        world.clock.advance_ms(span_ms)
        await world.janitor.sweep()
        await erasures.advance(world)
        await claims.ask(world)
        await settle(world, rounds=3)
    # Last, so that claims are made beside objects that no row names.
    with contextlib.suppress(ClocksApartError):  # a directory has a clock of its own
        await world.janitor.sweep_orphans()
    await erasures.advance(world)
    await claims.ask(world)
    world.options = options
    for held in await world.metadata.operators.held_bytes(range(PARTITIONS_MAX)):
        if held.dead_ms is not None and held.dead_ms < began_ms:
            world.violations.append(f"seed {claims.seed}: dead since {held.dead_ms}, before {began_ms}: {held}")
