"""Where bytes of deleted records still lie, and by when they leave the bucket at the latest.

The pure part judges rows of the metadata: `HeldBytes` of files that are live or dead. The other part lists the bucket
for objects that no such row names: outputs of merges that were not committed, L0 files whose commit never came. Bytes
are gone only if neither has them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from compactor.planning.assembly import limit_ms, rewrite_after_ms
from compactor.planning.spec import PlanOptions
from metadata.contract.operators import HeldBytes
from metadata.contract.store import MetadataStore
from runtime.text import age_text, plural
from storage.format.file_format import CorruptFileError
from storage.format.inspect import inspect_file
from storage.keys import LEVEL_PREFIXES
from storage.objects import ObjectNotFoundError, ObjectStore

SHOWN_MAX = 3
"""Files that a sentence names; the others are counted."""
FOOTERS_MAX = 64
"""Objects without a row whose footers are read, three or four requests each; of the others nothing is known."""
KEYS_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Remnant:
    """An object that holds, or may hold, bytes of deleted records."""

    key: str
    level: int | None
    """None: no row names the object."""
    file_id: int | None
    dead_ms: int | None
    """When the bytes died. None: they live beside others in an extent, or no row tells."""
    latest_ms: int | None
    """By when they leave the bucket; None: not before the extent or the object goes as a whole, at no known time."""
    rewritten: bool
    """The file lives on, so it has to be rewritten without these bytes."""


def remnant(held: HeldBytes, options: PlanOptions) -> Remnant:
    """The latest time holds while compactors run, no merge of the file fails, and no pin holds its dead files."""
    rewritten, latest_ms = held.file_dead_ms is None, None
    if held.file_dead_ms is not None:
        latest_ms = held.file_dead_ms + options.grace_ms
    elif held.dead_ms is not None:
        limit = limit_ms(options, options.output_bytes)
        latest_ms = held.dead_ms + rewrite_after_ms(options) + limit + options.grace_ms
    return Remnant(
        key=held.key,
        level=held.level,
        file_id=held.file_id,
        dead_ms=held.dead_ms,
        latest_ms=latest_ms,
        rewritten=rewritten,
    )


def dead_below(held: Iterable[HeldBytes], offset: int) -> Sequence[HeldBytes]:
    """The dead bytes that may hold records below the offset."""
    return [each for each in held if each.dead_ms is not None and each.base_offset < offset]


def stray(key: str) -> Remnant:
    return Remnant(key=key, level=None, file_id=None, dead_ms=None, latest_ms=None, rewritten=False)


def remnants_text(remnants: Sequence[Remnant], now_ms: int) -> str:
    """For example "L1 file 7 (dead for 5m00s; it is rewritten without them, and they go within 7d)". The files whose
    bytes stay the longest come first."""
    order = sorted(_of_files(remnants), key=lambda each: (each.latest_ms is not None, -(each.latest_ms or 0)))
    shown = [_text(each, now_ms) for each in order[:SHOWN_MAX]]
    left = len(order) - len(shown)
    return ", ".join(shown) + (f" and {plural(left, 'more file')}" if left else "")


def sooner_text(remnants: Iterable[Remnant]) -> str:
    """What makes them go sooner; empty if nothing does. A dead file waits for the grace alone, which is for readers."""
    if not any(each.rewritten and each.dead_ms is not None for each in remnants):
        return ""
    return "a shorter purge.deadline.ms of the compactors makes dead bytes of live files go sooner"


def count_files(remnants: Sequence[Remnant]) -> int:
    return len({each.key for each in remnants})


def remnants_json(remnants: Sequence[Remnant]) -> list[dict[str, Any]]:
    return [asdict(each) for each in remnants]


def _of_files(remnants: Iterable[Remnant]) -> Iterable[Remnant]:
    """One for each file: the one whose bytes stay the longest."""
    found: dict[str, Remnant] = {}
    for each in remnants:
        before = found.setdefault(each.key, each)
        if before.latest_ms is not None and (each.latest_ms is None or each.latest_ms > before.latest_ms):
            found[each.key] = each
    return found.values()


def _text(each: Remnant, now_ms: int) -> str:
    if each.level is None:
        return f"object {each.key} (no row names these bytes; they go when the janitor deletes the object)"
    name = f"L{each.level} file {each.file_id}"
    if each.latest_ms is None or each.dead_ms is None:
        return f"{name} (beside records that live)"
    within = age_text(max(0, each.latest_ms - now_ms))
    dead = f"dead for {age_text(max(0, now_ms - each.dead_ms))}"
    goes = "it is rewritten without them, and they go" if each.rewritten else "the whole file goes"
    return f"{name} ({dead}; {goes} within {within})"


# ---- objects without a row


async def stray_objects(metadata: MetadataStore, store: ObjectStore) -> Sequence[str]:
    """Keys of objects of files that no live or dead row names. Lists the whole bucket."""
    listed = [stat.key for prefix in LEVEL_PREFIXES async for stat in store.list(prefix)]
    found: list[str] = []
    # Asked after the listing: a file that was committed meanwhile is known.
    for start in range(0, len(listed), KEYS_AT_ONCE):
        some = listed[start : start + KEYS_AT_ONCE]
        known = await metadata.deletion.known_keys(some)
        found += [key for key in some if key not in known]
    return found


async def unnamed_objects(metadata: MetadataStore, store: ObjectStore) -> Sequence[str]:
    """Keys of objects with bytes that no row names: those of `stray_objects`, and L0 files with a batch that their
    commit refused or knew already. Lists the whole bucket."""
    # The rows after the listing: a file that was committed meanwhile is in one of the two.
    return [*await stray_objects(metadata, store), *await metadata.erasures.refused_files()]


async def strays_of(
    store: ObjectStore, keys: Sequence[str], topic_id: uuid.UUID, partition: int, offset: int | None = None
) -> Sequence[str]:
    """Those of the objects that may hold records of the partition; with `offset`, this record."""
    return [
        key
        for number, key in enumerate(keys)
        if number >= FOOTERS_MAX or await _may_hold(store, key, topic_id, partition, offset)
    ]


async def _may_hold(store: ObjectStore, key: str, topic_id: uuid.UUID, partition: int, offset: int | None) -> bool:
    try:
        report = await inspect_file(store, key, verify=False)
    except ObjectNotFoundError:
        return False
    except CorruptFileError:
        return True  # its bytes are not known
    return any(
        (each.row.topic_id, each.row.partition) == (topic_id, partition)
        # An L0 file gets its offsets by its commit, so one without a row has none.
        and (offset is None or report.level == 0 or each.row.base_offset <= offset <= each.row.last_offset)
        for each in report.extents
    )
