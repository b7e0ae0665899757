"""The upkeep of an Iceberg table by the export that follows a topic.

After a round, `tend` expires the snapshots that nobody needs, once there are enough, and deletes the files that only
they reached. Once a day it looks for files of killed writers. Where there is nothing to do, it reads nothing.

**No file is lost, and none is left for ever.** The order is: write down what may go; commit the expiry; delete, of what
was written down, what the committed metadata does not reach; delete the note. A crash anywhere leaves the note, and the
first round of the next process finishes it. The commit asserts that all branches and tags are where they were when the
snapshots were chosen; else it is refused, and a later round chooses again. (Over REST it can assert only the refs that
it knows of: a tag set on a snapshot of an hour ago, in the same instant, may go with it.)

No error of all this ends an export: it is told, and tried again later.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyiceberg.exceptions as _exceptions
from pyiceberg.table import TableProperties
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.utils.properties import property_as_bool, property_as_int

from runtime.errors import SiltstoneError
from runtime.logging import get_logger
from runtime.text import plural
from spark_jobs.tables.erasing.decide import SETTLED_MS
from spark_jobs.tables.iceberg.catalog import asked
from spark_jobs.tables.iceberg.table import PROGRESS, IcebergTable
from spark_jobs.tables.iceberg.upkeep import reach, removal
from spark_jobs.tables.iceberg.upkeep.expiry import Ref, Taken, enough, expired
from spark_jobs.tables.iceberg.upkeep.expiry_commit import expiry_of
from spark_jobs.tables.iceberg.upkeep.paths import (
    KEY_INDEX,
    OUR_FILE,
    data_of,
    drops_log,
    index_beside,
    keys_of,
    loaded_again,
    metadata_of,
    note_path,
)
from spark_jobs.tables.iceberg.upkeep.place import get, listed, put, remove
from spark_jobs.tables.iceberg.upkeep.removal import BadRemovalError, Removal

DAY_MS = 86_400_000
RETRY_MS = 300_000
"""The pause after an error, so that a place that refuses deletions is not asked every round."""
METADATA_MS = 3 * DAY_MS
"""Iceberg's own age of orphans: other engines that commit to the table give these files the same names."""
LIST_OR_MANIFEST = re.compile(r"(snap-\d+-\d+-)?[0-9a-f-]{36}(-m\d+)?\.avro")
METADATA = re.compile(r"\d+-[0-9a-f-]{36}(\.gz)?\.metadata\.json")
"""Named by all catalogs so; deleted only from tables that drop their older ones."""
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tended:
    """The upkeep of one round."""

    snapshots: int = 0
    """Expired ones."""
    files: int = 0
    """Deleted ones."""
    failed: str = ""
    """The reason, if something was not done. A later round goes on."""

    @property
    def text(self) -> str:
        parts = [f"expired {plural(self.snapshots, 'snapshot')}"] if self.snapshots else []
        parts += [f"removed {plural(self.files, 'old file')}"] if self.files else []
        parts += [f"upkeep failed: {self.failed}"] if self.failed else []
        return ", ".join(parts)


class Upkeep:
    """The upkeep of one table by one process."""

    def __init__(self, table: IcebergTable) -> None:
        self._table = table
        self._pending: dict[str, Removal] = {}
        """Removals that are not finished, by name."""
        self._swept_ms: int | None = None
        self._retry_ms = 0
        self._done = Tended()

    def tend(self, now_ms: int) -> Tended:
        """Raises nothing for errors of the catalog or the place; they are in the result."""
        self._done = Tended()
        if self._table.loaded is None or now_ms < self._retry_ms:
            return self._done
        try:
            with asked(f"the catalog of {self._table.name}", _OF_OTHERS):
                self._tend(self._table.loaded, now_ms)
        except _OF_OTHERS as error:
            _log.debug("another writer was quicker than the upkeep", table=self._table.name, reason=str(error))
        except SiltstoneError as error:
            _log.warning("the upkeep of the table failed", table=self._table.name, reason=error.message)
            self._retry_ms = now_ms + RETRY_MS
            self._done = replace(self._done, failed=error.message)
        return self._done

    def _tend(self, table: Any, now_ms: int) -> None:
        if not property_as_bool(table.properties, "gc.enabled", default=True):
            return  # other tables may share its files
        if self._swept_ms is None or now_ms - self._swept_ms >= DAY_MS:
            table = loaded_again(table)
            self._find_removals(table)
            self._remove_orphans(table, now_ms)
            self._swept_ms = now_ms
        if self._pending:
            table = loaded_again(table)
            for name in list(self._pending):
                self._finish(table, table.metadata, table.metadata_location, name, now_ms)
        if _chosen(table.metadata, now_ms):
            self._expire(loaded_again(table), now_ms)

    # ---- expiry

    def _expire(self, table: Any, now_ms: int) -> None:
        metadata = table.metadata
        ids = _chosen(metadata, now_ms)
        if not ids:
            return
        files = reach.only_reached_by(table.io, metadata, set(ids), log_files=drops_log(metadata))
        name, note = removal.new_name(now_ms), Removal(made_ms=now_ms, snapshots=ids, files=files)
        put(table.io, note_path(table, name), note.as_json())
        self._pending[name] = note
        try:
            answer = table.catalog.commit_table(table, *expiry_of(metadata, ids))
        except _exceptions.CommitFailedException:  # it certainly did not happen
            self._drop(table, name)
            raise
        self._done = replace(self._done, snapshots=len(ids))
        self._finish(table, answer.metadata, answer.metadata_location, name, now_ms)

    # ---- removals

    def _find_removals(self, table: Any) -> None:
        """Take over what a process before us did not finish."""
        for each in listed(table.io, removal.directory(table.location())):
            if each.name in self._pending:
                continue
            try:
                found = Removal.from_json(get(table.io, note_path(table, each.name)), each.name)
            except FileNotFoundError:
                continue  # its process finished it just now
            except BadRemovalError as error:
                _log.warning("a removal is left alone", reason=error.message, remedy=error.remedy)
            else:
                if found.erasure is None:  # `purge.py` finishes the others
                    self._pending[each.name] = found

    def _finish(self, table: Any, metadata: Any, location: str, name: str, now_ms: int) -> None:
        """Delete the files of a removal. Raises OSError if one cannot be deleted; the removal stays then."""
        note = self._pending[name]
        if any(metadata.snapshot_by_id(each) is not None for each in note.snapshots):
            if now_ms - note.made_ms >= SETTLED_MS:
                self._drop(table, name)
            return
        paths = reach.unreached(table.io, metadata, location, note.files)
        indexes = [each for path in paths if (each := index_beside(table, path))]
        self._remove(table, [*paths, *indexes])
        self._drop(table, name)

    def _drop(self, table: Any, name: str) -> None:
        _, error = remove(table.io, [note_path(table, name)])
        if error is not None:
            raise error
        del self._pending[name]

    # ---- files of killed writers

    def _remove_orphans(self, table: Any, now_ms: int) -> None:
        """Remove files that nothing names: those with names of ours after a day, those of metadata later."""
        data: dict[str, list[str]] = {}
        for directory, names in ((data_of(table), OUR_FILE), (keys_of(table), KEY_INDEX)):
            for each in listed(table.io, directory):
                ours = names.fullmatch(each.name)
                if ours is not None and now_ms - each.written_ms >= DAY_MS:
                    data.setdefault(f"{ours[1]}.parquet", []).append(f"{directory}/{each.name}")
        # Commits that were killed or fenced leave them, and each merge of manifests leaves one.
        kinds = [LIST_OR_MANIFEST, METADATA] if drops_log(table.metadata) else [LIST_OR_MANIFEST]
        metadata = [
            f"{metadata_of(table)}/{each.name}"
            for each in listed(table.io, metadata_of(table))
            if now_ms - each.written_ms >= METADATA_MS and any(kind.fullmatch(each.name) for kind in kinds)
        ]
        if data or metadata:
            orphans = reach.unnamed(table.io, table.metadata, table.metadata_location, data, metadata)
            self._remove(table, [path for each in orphans for path in data.get(each, [each])])

    def _remove(self, table: Any, paths: Sequence[str]) -> None:
        """Raises the first OSError, when all were tried."""
        count, error = remove(table.io, paths)
        self._done = replace(self._done, files=self._done.files + count)
        if error is not None:
            raise error


_OF_OTHERS = (_exceptions.CommitFailedException, _exceptions.NoSuchTableError)


def _chosen(metadata: Any, now_ms: int) -> tuple[int, ...]:
    """The snapshots to expire now; none while there are few."""
    properties = metadata.properties
    keep_ms = property_as_int(
        properties, TableProperties.MAX_SNAPSHOT_AGE_MS, TableProperties.MAX_SNAPSHOT_AGE_MS_DEFAULT
    )
    keep_last = property_as_int(
        properties, TableProperties.MIN_SNAPSHOTS_TO_KEEP, TableProperties.MIN_SNAPSHOTS_TO_KEEP_DEFAULT
    )
    refs = [
        Ref(
            snapshot_id=ref.snapshot_id,
            is_branch=ref.snapshot_ref_type == SnapshotRefType.BRANCH,
            is_main=name == MAIN_BRANCH,
            keep_ms=ref.max_snapshot_age_ms,
            keep_last=ref.min_snapshots_to_keep,
        )
        for name, ref in metadata.refs.items()
    ]
    snapshots = [
        Taken(
            id=each.snapshot_id,
            parent=each.parent_snapshot_id,
            made_ms=each.timestamp_ms,
            carries_progress=each.summary is not None and PROGRESS in each.summary.additional_properties,
        )
        for each in metadata.snapshots
    ]
    ids = expired(snapshots, refs, now_ms, int(keep_ms or 0), int(keep_last or 0))
    return ids if enough(len(ids), len(snapshots)) else ()
