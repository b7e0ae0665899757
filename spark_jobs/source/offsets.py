"""The position of a stream: offsets per partition of its topics, as Spark keeps them in its checkpoint. Pure.

Spark compares offsets by their text and asks for the next batch when the text has changed. So the same position always
has the same text: topics and partitions in order, and nothing that changes by itself. A topic's id is part of it: a
topic that was deleted and made again under the same name has other records at the same offsets, so a checkpoint of the
old one must not be used for the new one.

A position in one topic has the form that it had before there could be several, so that older checkpoints are read and
written as ever.
"""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from runtime.errors import BadInputError
from spark_jobs.source.topics import TopicChoice

K = TypeVar("K", bound=Hashable)
VERSION_OF_ONE = 1
VERSION_OF_SEVERAL = 2
Document = dict[str, Any]
"""Offsets as Spark keeps them, in JSON."""


class CheckpointError(BadInputError):
    """The offsets in a checkpoint are not ours, come from another release, or belong to another topic."""


@dataclass(frozen=True, slots=True)
class TopicOffset:
    topic_id: uuid.UUID
    next_offsets: Mapping[int, int]
    """The offset that is read next, by partition."""

    def as_document(self) -> Document:
        offsets = {str(partition): self.next_offsets[partition] for partition in sorted(self.next_offsets)}
        return {"topicId": str(self.topic_id), "offsets": offsets}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> TopicOffset:
        """Raises KeyError, ValueError, TypeError and AttributeError."""
        by_text = cast(Mapping[str, Any], document["offsets"])
        offsets = {int(partition): int(offset) for partition, offset in by_text.items()}
        return cls(uuid.UUID(document["topicId"]), offsets)


@dataclass(frozen=True, slots=True)
class StreamOffset:
    topics: Mapping[str, TopicOffset]

    def as_document(self) -> Document:
        """The JSON that Spark stores."""
        if len(self.topics) == 1:
            [(topic, offset)] = self.topics.items()
            return {"version": VERSION_OF_ONE, "topic": topic, **offset.as_document()}
        by_topic = {topic: self.topics[topic].as_document() for topic in sorted(self.topics)}
        return {"version": VERSION_OF_SEVERAL, "topics": by_topic}

    @classmethod
    def from_document(cls, document: Mapping[str, Any], *, choice: TopicChoice) -> StreamOffset:
        """Read the JSON back. Raises CheckpointError."""
        version = document.get("version")
        try:
            if version == VERSION_OF_ONE:
                found = cls({document["topic"]: TopicOffset.from_document(document)})
            elif version == VERSION_OF_SEVERAL:
                by_topic = cast(Mapping[str, Any], document["topics"])
                found = cls({topic: TopicOffset.from_document(each) for topic, each in by_topic.items()})
            else:
                raise CheckpointError(
                    f"the checkpoint has offsets of version {version!r}, but this release reads {VERSION_OF_ONE} and"
                    f" {VERSION_OF_SEVERAL}",
                    remedy="go on with the release that wrote it, or start with a new checkpoint",
                )
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"the checkpoint's offsets of {choice.label!r} cannot be read: {error!r}",
                remedy="start with a new checkpoint",
            ) from None
        strange = next((topic for topic in found.topics if not choice.takes(topic)), None)
        if strange is not None:
            raise CheckpointError(
                f"the checkpoint has topic {strange!r}, but the query reads only {choice.label!r}",
                remedy="name that topic again, or give this query its own checkpointLocation",
            )
        return found


def limited(start: Mapping[K, int], end: Mapping[K, int], offsets_max: int) -> dict[K, int]:
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
