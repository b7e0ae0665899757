"""The commit that takes snapshots out of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyiceberg.exceptions as _exceptions
from pydantic import PrivateAttr
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePartitionStatisticsUpdate,
    RemoveSnapshotsUpdate,
)


class AsChosen(AssertTableUUID):
    """Asserts that branches, tags and the chosen snapshots are as they were.

    Catalogs that check in this process see all of it; a REST catalog is sent the assertion of the table's id alone.
    """

    _chosen_from: Any = PrivateAttr()
    _ids: frozenset[int] = PrivateAttr()

    @classmethod
    def of(cls, metadata: Any, ids: Sequence[int]) -> AsChosen:
        made = cls(uuid=metadata.table_uuid)
        made._chosen_from, made._ids = metadata.refs, frozenset(ids)
        return made

    def validate(self, base_metadata: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().validate(base_metadata)
        if base_metadata.refs != self._chosen_from:
            raise _exceptions.CommitFailedException("branches or tags have changed")
        if not self._ids <= {each.snapshot_id for each in base_metadata.snapshots}:
            raise _exceptions.CommitFailedException("somebody else expired snapshots")


def expiry_of(metadata: Any, ids: Sequence[int]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The requirements and the updates of the commit."""
    made: Any = AssertRefSnapshotId
    refs = [made(ref=name, snapshot_id=ref.snapshot_id) for name, ref in metadata.refs.items()]
    statistics: Any = RemovePartitionStatisticsUpdate
    updates = [
        statistics(snapshot_id=each.snapshot_id) for each in metadata.partition_statistics if each.snapshot_id in ids
    ]
    expiry: Any = RemoveSnapshotsUpdate
    return (AsChosen.of(metadata, ids), *refs), (*updates, expiry(snapshot_ids=list(ids)))
