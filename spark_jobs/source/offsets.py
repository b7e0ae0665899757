"""The position of a stream: offsets per partition of one topic, as Spark keeps them in its checkpoint. Pure.

Spark compares offsets by their text and asks for the next batch when the text has changed. So the same position always
has the same text: partitions in order, and nothing that changes by itself. The topic's id is part of it: a topic that
was deleted and made again under the same name has other records at the same offsets, so a checkpoint of the old one
must not be used for the new one.
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
    """The offsets in a checkpoint are not ours, come from another release, or belong to another topic."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    topic: str
    topic_id: uuid.UUID
    next_offsets: Mapping[int, int]
    """The offset that is read next, by partition."""

    def as_document(self) -> Document:
        """The JSON that Spark stores."""
        return {
            "version": VERSION,
            "topic": self.topic,
            "topicId": str(self.topic_id),
            "offsets": {str(partition): self.next_offsets[partition] for partition in sorted(self.next_offsets)},
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any], *, topic: str) -> StreamOffset:
        """Read the JSON back. Raises CheckpointError."""
        version = document.get("version")
        if version != VERSION:
            raise CheckpointError(
                f"the checkpoint has offsets of version {version!r}, but this release reads {VERSION}",
                remedy="go on with the release that wrote it, or start with a new checkpoint",
            )
        if document.get("topic") != topic:
            raise CheckpointError(
                f"the checkpoint belongs to topic {document.get('topic')!r}, but the query reads {topic!r}",
                remedy="give every query its own checkpointLocation",
            )
        try:
            by_text = cast(Mapping[str, Any], document["offsets"])
            offsets = {int(partition): int(offset) for partition, offset in by_text.items()}
            return cls(topic, uuid.UUID(document["topicId"]), offsets)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"the checkpoint's offsets of topic {topic!r} cannot be read: {error!r}") from None


def limited(start: Mapping[int, int], end: Mapping[int, int], offsets_max: int) -> dict[int, int]:
    """An end at most `offsets_max` offsets after `start`, never above `end` and never below `start`.

    The limit is shared out in proportion to what waits in each partition, with at least one offset for each partition
    where something waits, so that none starves beside a large one. Kafka's source does the same. Only if more
    partitions wait than `offsets_max` is the sum above it. Partitions that are not in `start` begin at 0.
    """
    waiting = {partition: last - start.get(partition, 0) for partition, last in end.items()}
    waiting = {partition: count for partition, count in waiting.items() if count > 0}
    total = sum(waiting.values())
    if total <= offsets_max:
        return {partition: max(last, start.get(partition, 0)) for partition, last in end.items()}
    spare = max(0, offsets_max - len(waiting))
    # One for each, and the rest in proportion to what waits; floor keeps the sum within the limit.
    more = total - len(waiting)
    share = {partition: 1 + spare * (count - 1) // max(more, 1) for partition, count in waiting.items()}
    return {partition: start.get(partition, 0) + share.get(partition, 0) for partition in end}
