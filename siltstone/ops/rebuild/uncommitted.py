"""Which L0 files that the catalogue does not know were never committed, so that nobody was told they are stored. Pure.

A writer commits its files in the order in which it sealed them, and an epoch ends those before it. So of an older
epoch than the catalogue knows, or sealed before a file whose commit it knows, nothing can have been committed that it
does not know. What was sealed long before the newest snapshot, and was in it neither, has no client left that waits.

To append such a file would bring old values back: its client was refused, and sent the records again, or gave up. That
holds only for a catalogue that can be read whole: what is not known may have been told by an increment that is damaged.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from metadata.contract.backup import has_heard
from siltstone.ops.rebuild.state import Catalogued

ABANDONED_MS = 600_000
"""Producers wait two minutes for an answer (`delivery.timeout.ms`) unless told otherwise."""


class SealedL0(NamedTuple):
    """What the key of an L0 file says."""

    writer_id: int
    epoch: int
    sealed_ms: int


def sealed_l0(key: str) -> SealedL0:
    """Of a key that `parse_file_key` takes."""
    writer_id, epoch, unique = key.rpartition("/")[2].removesuffix(".silt").split("-", 2)
    return SealedL0(int(writer_id), int(epoch), uuid.UUID(unique).int >> 80)


def uncommitted_l0(catalogued: Catalogued, unknown: Iterable[str]) -> list[str]:
    """Those of `unknown`, keys of L0 files that the catalogue does not name, that were never committed."""
    if not catalogued.is_whole:
        return []
    epochs, last = _known_commits(catalogued)
    instant = catalogued.instant
    since = [each.taken_ms for each in catalogued.increments if not has_heard(instant.cursor, each.cursor)]
    abandoned_ms = min([instant.taken_ms, *since]) - ABANDONED_MS  # of a clock that went back, what it says now
    never: list[str] = []
    for key in sorted(unknown):
        file = sealed_l0(key)
        epoch, _, sealed_ms = last.get(file.writer_id, (-1, -1, -1))
        is_passed = file.epoch == epoch and file.sealed_ms < sealed_ms
        if file.epoch < epochs[file.writer_id] or is_passed or file.sealed_ms < abandoned_ms:
            never.append(key)
    return never


def _known_commits(catalogued: Catalogued) -> tuple[defaultdict[int, int], dict[int, tuple[int, int, int]]]:
    """By writer: its newest epoch; (epoch, seq, sealed when) of its newest file."""
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
