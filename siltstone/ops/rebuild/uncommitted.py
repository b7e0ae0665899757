"""Finds L0 files unknown to the catalogue that were never committed, so that no client got an acknowledgement. Pure.

A writer commits its files in the order in which it sealed them, and a new epoch ends the older ones. So an unknown file
was never committed if the catalogue knows a newer epoch of its writer, or the commit of a file that the writer sealed
later. A file sealed long before the newest snapshot, and not in it, was not committed either: no client waits any more.

Appending such a file would bring old values back, because its client was refused and sent the records again, or gave
up. This holds only if the whole catalogue can be read: a damaged increment may have named the file.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from metadata.contract.backup import has_heard
from siltstone.ops.rebuild.state import Catalogued

ABANDONED_MS = 600_000
"""Far longer than the two minutes for which producers wait for an answer by default (`delivery.timeout.ms`)."""


class SealedL0(NamedTuple):
    """The facts in the key of an L0 file."""

    writer_id: int
    epoch: int
    sealed_ms: int


def sealed_l0(key: str) -> SealedL0:
    """`key` must be one that `parse_file_key` accepts."""
    writer_id, epoch, unique = key.rpartition("/")[2].removesuffix(".silt").split("-", 2)
    return SealedL0(int(writer_id), int(epoch), uuid.UUID(unique).int >> 80)


def uncommitted_l0(catalogued: Catalogued, unknown: Iterable[str]) -> list[str]:
    """The keys among `unknown` (L0 files that the catalogue does not name) that were never committed."""
    if not catalogued.is_whole:
        # A damaged increment may name any of these files, so none can be called uncommitted.
        return []
    epochs, last = _known_commits(catalogued)
    instant = catalogued.instant
    since = [each.taken_ms for each in catalogued.increments if not has_heard(instant.cursor, each.cursor)]
    abandoned_ms = min([instant.taken_ms, *since]) - ABANDONED_MS  # the earliest, because clocks may have gone back
    never: list[str] = []
    for key in sorted(unknown):
        file = sealed_l0(key)
        epoch, _, sealed_ms = last.get(file.writer_id, (-1, -1, -1))
        is_passed = file.epoch == epoch and file.sealed_ms < sealed_ms
        if file.epoch < epochs[file.writer_id] or is_passed or file.sealed_ms < abandoned_ms:
            never.append(key)
    return never


def _known_commits(catalogued: Catalogued) -> tuple[defaultdict[int, int], dict[int, tuple[int, int, int]]]:
    """By writer: its newest epoch, and (epoch, seq, time of sealing) of its newest file."""
    epochs: defaultdict[int, int] = defaultdict(lambda: -1)
    last: dict[int, tuple[int, int, int]] = {}
    for cursor in (catalogued.instant.cursor, *(each.cursor for each in catalogued.increments)):
        for writer_id, (epoch, _) in cursor.writers.items():
            epochs[writer_id] = max(epochs[writer_id], epoch)
    rows = [
        (row["writer_id"], row["epoch"], row["seq"], row["key"])
        for row in catalogued.tables["files"]
        if row["level"] == 0 and row["seq"] is not None
    ]
    rows += [(file.writer_id, file.epoch, file.seq, file.key) for each in catalogued.increments for file in each.files]
    for writer_id, epoch, seq, key in rows:
        last[writer_id] = max(last.get(writer_id, (-1, -1, -1)), (epoch, seq, sealed_l0(key).sealed_ms))
    return epochs, last
