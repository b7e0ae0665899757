"""What a transaction means for one of its records, or for its marker, as text. Pure."""

from __future__ import annotations

from metadata.contract.readers import PartitionSnapshot
from siltstone.ops.record_report import BatchFacts
from wire.markers import Marker


def marker_text(marker: Marker | None) -> str:
    """A control record in words; None: not a marker, or one that compaction has emptied."""
    if marker is None:
        return "a control record, which clients do not see"
    ended = "committed" if marker.commit else "aborted"
    return f"the marker that {ended} a transaction of producer {marker.producer_id}, which clients do not see"


def hidden_text(part: PartitionSnapshot, batch: BatchFacts) -> str:
    """Why readers of committed records do not see the records of a transactional batch; "" = they do."""
    unseen = "so readers of committed records do not see it"
    for producer_id, first_offset, last_offset in part.aborted:
        if producer_id == batch.producer_id and first_offset <= batch.base_offset <= last_offset:
            return f"its transaction was aborted at offset {last_offset}, {unseen}"
    if batch.base_offset >= part.last_stable_offset:
        return (
            f"it lies at or above the last stable offset, {part.last_stable_offset}: a transaction that began there"
            f" has not ended, {unseen} yet"
        )
    return ""
