"""The records that a change of configs removes, in words: for `topics alter` and `cluster config set`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runtime.clock import SystemClock
from runtime.text import age_text, plural, size_text
from siltstone.kafka.admin import stored_bytes
from siltstone.kafka.client import EARLIEST, LATEST, KafkaClient
from siltstone.kafka.records import TopicPartition, offsets_at

PARTITIONS_AT_ONCE = 1_000
"""The partitions of one ListOffsets request."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The part of a topic's configs that removes records. -1 of a limit: no limit."""

    compacts: bool
    retention_ms: int
    retention_bytes: int


@dataclass(frozen=True, slots=True)
class Loss:
    """What one topic loses."""

    lines: Sequence[str]
    starts_compaction: bool
    spans: Mapping[int, tuple[int, int]]
    """By partition, log start and end."""


def policy_of(configs: Mapping[str, str]) -> Policy | None:
    """None when a value is no number."""
    deletes = "delete" in configs.get("cleanup.policy", "delete")
    try:
        return Policy(
            "compact" in configs.get("cleanup.policy", ""),
            int(configs.get("retention.ms", "-1")) if deletes else -1,
            int(configs.get("retention.bytes", "-1")) if deletes else -1,
        )
    except ValueError:
        return None


def is_shorter(new: int, old: int) -> bool:
    """Whether a limit removes more than before; below zero is no limit."""
    return new >= 0 and (old < 0 or new < old)


async def losses_of(client: KafkaClient, changes: Mapping[str, tuple[Policy, Policy]]) -> Mapping[str, Loss]:
    """By topic, the records that its new policy removes. `changes`: the old and the new policy of each topic; topics
    that lose nothing are left out. Raises KafkaError, UnavailableError."""
    harsher = {
        name: (old, new)
        for name, (old, new) in changes.items()
        if is_shorter(new.retention_ms, old.retention_ms)
        or is_shorter(new.retention_bytes, old.retention_bytes)
        or (new.compacts and not old.compacts)
    }
    if not harsher:
        return {}
    answer = await client.metadata(sorted(harsher))
    places = [
        (topic.name, part.partition_index)
        for topic in answer.topics
        if topic.name is not None and not topic.error_code
        for part in topic.partitions
    ]
    now_ms = int(SystemClock().wall_ms())
    starts = await _offsets(client, dict.fromkeys(places, EARLIEST))
    ends = await _offsets(client, dict.fromkeys(places, LATEST))
    cuts = {each: max(0, now_ms - harsher[each[0]][1].retention_ms) for each in places if _by_age(harsher[each[0]])}
    kept = await _offsets(client, cuts)
    # Not the log start: the offsets behind it may have no record, after an erasure or a compaction.
    firsts = await _offsets(client, dict.fromkeys(cuts, 0))
    by_size = sorted(name for name, change in harsher.items() if _by_size(change))
    sizes: Mapping[TopicPartition, int] = {}
    if by_size:
        sizes = await stored_bytes(answer, by_size)
    found: dict[str, Loss] = {}
    for name, (old, new) in harsher.items():
        own = [each for each in places if each[0] == name and each in starts and each in ends]
        spans = {each[1]: (starts[each], ends[each]) for each in own}
        lines: list[str] = []
        if _by_age((old, new)):
            known = [each for each in own if each in kept and each in firsts]
            going = sum(expired_offsets(firsts[each], kept[each], ends[each]) for each in known)
            if going > 0:
                offsets = plural(sum(end - start for start, end in spans.values()), "offset")
                age = age_text(new.retention_ms)
                lines.append(f"the new retention.ms, {age}, removes {plural(going, 'record')} of {offsets}")
        if _by_size((old, new)):
            over = sum(max(0, size - new.retention_bytes) for (topic, _), size in sizes.items() if topic == name)
            if over:
                lines.append(f"about {size_text(over)} lie above the new retention.bytes: the oldest records go")
        compaction = new.compacts and not old.compacts and any(end > start for start, end in spans.values())
        if compaction:
            lines.append("compaction keeps only the newest record of each key: all older ones go")
        if lines:
            found[name] = Loss(lines, compaction, spans)
    return found


def expired_offsets(first: int, kept: int, end: int) -> int:
    """How many offsets a shorter retention removes, from the first record on. `first` and `kept`: the offset of the
    first record at all, and of the first one that is young enough; -1 = there is none."""
    if first < 0:
        return 0
    return max(0, (end if kept < 0 else kept) - first)


def _by_age(change: tuple[Policy, Policy]) -> bool:
    return is_shorter(change[1].retention_ms, change[0].retention_ms)


def _by_size(change: tuple[Policy, Policy]) -> bool:
    return is_shorter(change[1].retention_bytes, change[0].retention_bytes)


async def _offsets(client: KafkaClient, asked: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
    """A topic that was deleted in the meantime is left out."""
    places = sorted(asked)
    found: dict[TopicPartition, int] = {}
    for first in range(0, len(places), PARTITIONS_AT_ONCE):
        chunk = {each: asked[each] for each in places[first : first + PARTITIONS_AT_ONCE]}
        for place, offset in (await offsets_at(client, chunk)).items():
            if isinstance(offset, int):
                found[place] = offset
            elif offset.name != "UNKNOWN_TOPIC_OR_PARTITION":
                raise offset
    return found
