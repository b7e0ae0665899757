"""The account of a merge inside each file it wrote, so that metadata can be rebuilt from the files alone.

UTF-8 JSON with sorted keys, in the file's section of kind 2; docs/file-format.md lists the fields. Readers of records
never need it. Decoding ignores fields that this release does not know.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

from storage.format.file_format import CorruptFileError
from wire.crc import Body


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProperty:
    name: str
    config_version: int
    """The version of the configs that the merge used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProperties:
    job_id: int
    kind: str
    """The planner's name for the merge: level, merge, ..."""
    epoch: int
    """The job's epoch, which tells the attempt that wrote this file."""
    level: int
    file_class: str
    """plain or compacted."""
    inputs: Sequence[tuple[int, str]]
    """(file id, key) of every file the merge read."""
    topics: Mapping[UUID, TopicProperty]
    """The topics of the extents in this file."""
    created_ms: int
    """By the writer's clock."""
    flagged: Mapping[int, str] = field(default_factory=dict[int, str])
    """The number of a flagged extent, in file order from 0 -> the damage found in it."""


def encode_properties(properties: FileProperties) -> bytes:
    """The section's bytes."""
    stored = {
        "class": properties.file_class,
        "created_ms": properties.created_ms,
        "epoch": properties.epoch,
        "flagged": {str(number): reason for number, reason in properties.flagged.items()},
        "inputs": [[file_id, key] for file_id, key in properties.inputs],
        "job_id": properties.job_id,
        "kind": properties.kind,
        "level": properties.level,
        "topics": {
            str(topic_id): {"config_version": topic.config_version, "name": topic.name}
            for topic_id, topic in properties.topics.items()
        },
    }
    return json.dumps(stored, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def decode_properties(data: Body) -> FileProperties:
    """Read the section back. Raises CorruptFileError for anything that `encode_properties` cannot have written."""
    try:
        stored = cast("dict[str, Any]", json.loads(bytes(data)))
        return FileProperties(
            job_id=int(stored["job_id"]),
            kind=str(stored["kind"]),
            epoch=int(stored["epoch"]),
            level=int(stored["level"]),
            file_class=str(stored["class"]),
            inputs=tuple((int(file_id), str(key)) for file_id, key in stored["inputs"]),
            topics={
                uuid.UUID(topic_id): TopicProperty(name=str(topic["name"]), config_version=int(topic["config_version"]))
                for topic_id, topic in stored["topics"].items()
            },
            created_ms=int(stored["created_ms"]),
            flagged={int(number): str(reason) for number, reason in stored["flagged"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CorruptFileError(f"the file's properties cannot be read: {error!r}") from error
