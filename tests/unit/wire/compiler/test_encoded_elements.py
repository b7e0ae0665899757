"""Arrays whose elements were encoded earlier: the same bytes as from a list of structs."""

from __future__ import annotations

from uuid import UUID

import pytest

from wire.compiler.compile import encode, encode_elements
from wire.errors import EncodingError
from wire.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from wire.schema import EncodedElements, message_table

VERSIONS = list(message_table(MetadataResponse).versions)


def partitions(count: int) -> list[MetadataResponsePartition]:
    return [MetadataResponsePartition(partition_index=n, leader_id=7, replica_nodes=[7, n]) for n in range(count)]


def topic(name: str, count: int) -> MetadataResponseTopic:
    return MetadataResponseTopic(name=name, topic_id=UUID(int=5), partitions=partitions(count))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("counts", [(), (0,), (1, 200), (130, 0, 1)])
def test_ready_bytes_stand_where_the_structs_would(version: int, counts: tuple[int, ...]) -> None:
    # given a message, and a second one whose topics, and their partitions, are encoded already
    message = MetadataResponse(cluster_id="c", topics=[topic(f"t{n}", count) for n, count in enumerate(counts)])
    entries: list[bytes] = []
    for each in message.topics:
        some, rest = each.partitions[:3], each.partitions[3:]
        parts = [encode_elements(MetadataResponse, version, MetadataResponsePartition, half) for half in (some, rest)]
        hollow = MetadataResponseTopic(name=each.name, topic_id=each.topic_id)
        hollow.partitions = EncodedElements(len(each.partitions), parts)  # type: ignore[assignment]
        entries.append(encode_elements(MetadataResponse, version, MetadataResponseTopic, [hollow]))
    ready = MetadataResponse(cluster_id="c")
    ready.topics = EncodedElements(len(entries), entries)  # type: ignore[assignment]
    # then both encode to the same bytes, and the encoded parts are not copied
    parts_of_ready = encode(ready, version)
    assert b"".join(parts_of_ready) == b"".join(encode(message, version))
    assert all(any(part is entry for part in parts_of_ready) for entry in entries)


def test_a_value_that_does_not_fit_is_our_own_bug() -> None:
    with pytest.raises(EncodingError, match="MetadataResponsePartition v12 cannot be written"):
        encode_elements(
            MetadataResponse, 12, MetadataResponsePartition, [MetadataResponsePartition(partition_index=2**40)]
        )
    with pytest.raises(EncodingError, match="is not declared for version 99"):
        encode_elements(MetadataResponse, 99, MetadataResponsePartition, [])
