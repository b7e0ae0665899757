"""Everything that clients sent and every answer they got: the other half of every check at the end of a run."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TypeAlias

TopicPartition: TypeAlias = tuple[str, int]
"""Topic name and partition number."""


@dataclass(slots=True)
class Batch:
    """One record batch of one producer. Its values name the batch, so a reader knows it wherever it turns up."""

    producer: str
    number: int
    place: TopicPartition
    values: tuple[bytes, ...]
    is_idempotent: bool
    sequence: int = -1
    sent_ms: float = -1
    """The time when it was last sent."""
    told_offset: int = -1
    """The offset at which it was acknowledged; -1: not acknowledged."""
    told_sent_ms: float = -1
    """The time when the acknowledged request was sent."""

    @property
    def name(self) -> str:
        return f"{self.producer}#{self.number}"


@dataclass(slots=True)
class Book:
    batches: list[Batch] = field(default_factory=list[Batch])
    seen: dict[TopicPartition, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    """Record values by offset, as consumers received them."""
    acknowledged_end: dict[TopicPartition, int] = field(default_factory=lambda: defaultdict(int))
    """One past the last offset that any client was told."""
    copies_told: list[tuple[Batch, int]] = field(default_factory=list[tuple[Batch, int]])
    """Offsets that were answered to second copies of a request."""

    def new_batch(
        self, producer: str, number: int, place: TopicPartition, records: int, *, is_idempotent: bool
    ) -> Batch:
        values = tuple(b"%s#%d.%d" % (producer.encode(), number, each) for each in range(records))
        batch = Batch(producer, number, place, values, is_idempotent)
        self.batches.append(batch)
        return batch

    def acknowledge(self, batch: Batch, offset: int, sent_ms: float) -> None:
        batch.told_offset, batch.told_sent_ms = offset, sent_ms
        end = offset + len(batch.values)
        self.acknowledged_end[batch.place] = max(self.acknowledged_end[batch.place], end)
