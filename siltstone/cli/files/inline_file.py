"""`siltstone file inspect` for a file of markers: its bytes are in its row, and no object holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from metadata.contract.files import FileInfo
from metadata.rules.packed_index import iter_index
from runtime.text import plural
from siltstone.kafka.record_format import time_text
from siltstone.terminal.output import print_json, print_pairs, print_table
from siltstone.terminal.plain import say
from wire.batch import CorruptBatchError, crc_matches, iter_headers
from wire.crc import crc32c
from wire.markers import Marker, read_marker

Names = Mapping[int, tuple[str, int]]
"""(topic, partition) by partition id; those of deleted topics are absent."""


class PlacedMarker(NamedTuple):
    position: int
    marker: Marker
    offsets: Sequence[tuple[int, int]]
    """(partition id, offset) of each place in the log where it stands."""


class InlineFile(NamedTuple):
    row: FileInfo
    names: Names
    markers: Sequence[PlacedMarker]
    damage: str

    @property
    def is_sound(self) -> bool:
        return not self.damage


def read_inline(row: FileInfo, names: Names) -> InlineFile:
    """Pure: what the row holds, checked as the bytes of an object are."""
    damage = ""
    if (len(row.inline), crc32c(row.inline)) != (row.size_bytes, row.crc32c):
        damage = f"{len(row.inline)} bytes with CRC-32C {crc32c(row.inline):08x}, not {row.size_bytes} with"
        damage = f"{damage} {row.crc32c:08x}"
    places: dict[int, list[tuple[int, int]]] = {}
    for each in iter_index(row.index):
        places.setdefault(each.position, []).append((each.partition_id, each.base_offset))
    markers: list[PlacedMarker] = []
    try:
        for position, header in iter_headers(row.inline):
            marker = read_marker(memoryview(row.inline)[position : position + header.size_bytes])
            if marker is None or not crc_matches(row.inline, position, header):
                damage = damage or f"the batch at {position} is no sound marker"
            else:
                markers.append(PlacedMarker(position, marker, places.get(position, ())))
    except CorruptBatchError as error:
        damage = damage or error.message
    return InlineFile(row, names, markers, damage)


def print_inline(found: InlineFile) -> None:
    row = found.row
    print_pairs(
        {
            "key": f"{row.key} (no object: the bytes are in the metadata)",
            "level": f"L{row.level}",
            "size": plural(row.size_bytes, "byte"),
            "created": time_text(row.created_ms),
            "writer": f"{row.writer_id}, epoch {row.epoch}",
            "CRC-32C": f"{row.crc32c:08x}",
        }
    )
    columns = ["position", "ends by", "producer", "epoch", "time", "topic", "partition", "offset"]
    cells = [
        [
            f"{each.position:,}",
            "commit" if each.marker.commit else "abort",
            str(each.marker.producer_id),
            str(each.marker.producer_epoch),
            time_text(each.marker.timestamp_ms),
            *map(str, found.names.get(partition_id, (f"partition id {partition_id}", "-"))),
            f"{offset:,}",
        ]
        for each in found.markers
        for partition_id, offset in each.offsets
    ]
    print_table(columns, cells, right=["position", "offset"], title="markers")
    say(f"DAMAGED: {found.damage}" if found.damage else "sound")


def print_inline_json(found: InlineFile) -> None:
    row = found.row
    print_json(
        {
            "key": row.key,
            "level": row.level,
            "size_bytes": row.size_bytes,
            "created_ms": row.created_ms,
            "inline": True,
            "sound": found.is_sound,
            "damage": found.damage,
            "markers": [
                {
                    "position": each.position,
                    **each.marker._asdict(),
                    "offsets": [
                        dict(
                            zip(("topic", "partition"), found.names.get(partition_id, (None, None)), strict=True),
                            partition_id=partition_id,
                            offset=offset,
                        )
                        for partition_id, offset in each.offsets
                    ],
                }
                for each in found.markers
            ],
        }
    )
