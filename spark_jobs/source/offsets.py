"""Where a stream stands: offsets per partition of one topic, as Spark keeps them in its checkpoint. Pure.

Spark compares offsets by their text and asks for the next batch when the text has changed. So the same place is always
written the same way: partitions in order, and nothing in it that moves by itself.
The topic's id is in it: a topic that was deleted and made anew under the same name has other records at the same
offsets, and a checkpoint of the old one must not be taken for one of the new.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from runtime.errors import BadInputError

VERSION = 1
Document = dict[str, Any]
"""Offsets as Spark keeps them, in JSON."""


class CheckpointError(BadInputError):
    """The offsets in a checkpoint are not ours, of another release, or of another topic."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    topic: str
    topic_id: uuid.UUID
    next_offsets: Mapping[int, int]
    """By partition: the offset that is read next."""

    def as_document(self) -> Document:
        """What Spark stores as JSON."""
        return {
            "version": VERSION,
            "topic": self.topic,
            "topicId": str(self.topic_id),
            "offsets": {str(partition): self.next_offsets[partition] for partition in sorted(self.next_offsets)},
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any], *, topic: str) -> StreamOffset:
        """Raises CheckpointError."""
        version = document.get("version")
        if version != VERSION:
            raise CheckpointError(
                f"the checkpoint has offsets of version {version!r}, this release reads {VERSION}",
                remedy="go on with the release that wrote it, or start with a new checkpoint",
            )
        if document.get("topic") != topic:
            raise CheckpointError(
                f"the checkpoint is of topic {document.get('topic')!r}, the query reads {topic!r}",
                remedy="give every query its own checkpointLocation",
            )
        try:
            by_text = cast(Mapping[str, Any], document["offsets"])
            offsets = {int(partition): int(offset) for partition, offset in by_text.items()}
            return cls(topic, uuid.UUID(document["topicId"]), offsets)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"the checkpoint's offsets of topic {topic!r} cannot be read: {error!r}") from None


def limited(start: Mapping[int, int], end: Mapping[int, int], offsets_max: int) -> dict[int, int]:
    """An end at most `offsets_max` offsets after `start`: shared out by what waits in each partition, and at least one
    to each where something waits, so that none starves beside a large one (Kafka's source does the same; only where
    more partitions wait than `offsets_max` does the sum go above it).

    Partitions that are not in `start` begin at 0. Never above `end`, never below `start`.
    """
    waiting = {partition: last - start.get(partition, 0) for partition, last in end.items()}
    waiting = {partition: count for partition, count in waiting.items() if count > 0}
    total = sum(waiting.values())
    if total <= offsets_max:
        return {partition: max(last, start.get(partition, 0)) for partition, last in end.items()}
    spare = max(0, offsets_max - len(waiting))
    # one each; the rest by what more waits: floor keeps the sum within the limit
    more = total - len(waiting)
    share = {partition: 1 + spare * (count - 1) // max(more, 1) for partition, count in waiting.items()}
    return {partition: start.get(partition, 0) + share.get(partition, 0) for partition in end}
