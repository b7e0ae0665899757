"""The removal of a table's past after an erasure: the snapshots before it expire at once, and their files go.

**The order**, in which a kill at any step leaves work that the next run finishes: a removal is written down, with the
id of the snapshot that is to come; the erasure is committed; all snapshots before it expire in another commit; the
files that nothing reaches any more are deleted, then the removal. Of a removal whose snapshot never came, nothing is
done, because the erasure is due again.

**Files of killed writers** go in the same turn, however young they are. They were listed before the erasure's commit,
so a writer to which one belongs read the table before that commit too, and the fence refuses it.

**Branches and tags** keep their snapshots; a warning names those on another state than the table's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.utils.properties import property_as_bool

from runtime.logging import get_logger
from spark_jobs.tables.erasing.decide import SETTLED_MS
from spark_jobs.tables.iceberg.upkeep import reach, removal
from spark_jobs.tables.iceberg.upkeep.expiry_commit import expiry_of
from spark_jobs.tables.iceberg.upkeep.paths import (
    KEY_INDEX,
    OUR_FILE,
    data_of,
    drops_log,
    index_beside,
    keys_of,
    loaded_again,
    note_path,
)
from spark_jobs.tables.iceberg.upkeep.place import get, listed, put, remove
from spark_jobs.tables.iceberg.upkeep.removal import BadRemovalError, Removal

_log = get_logger(__name__)


class Purge:
    """The removals of one table's erasures by one process."""

    def __init__(self) -> None:
        self._is_settled = False
        """Whether no removal of ours is left, as far as this process knows."""

    def begin(self, table: Any, staying: Collection[str], snapshot_id: int, now_ms: int) -> str:
        """Write down what goes once that snapshot is committed; returns the name of the removal, "" for a table whose
        files may not be deleted. `staying`: paths of the files that the snapshot takes over. Raises OSError.
        """
        name = str(table.name()[-1])
        if not property_as_bool(table.properties, "gc.enabled", default=True):
            _log.warning("files of the table may not be deleted (gc.enabled), so erased rows stay in them", table=name)
            return ""
        metadata = table.metadata
        names = {reach.name_of(each) for each in staying}
        tell_refs(table, names)
        kept = _of_refs(metadata, with_main=False)
        ids = tuple(each.snapshot_id for each in metadata.snapshots if each.snapshot_id not in kept)
        files = reach.only_reached_by(table.io, metadata, set(ids), log_files=drops_log(metadata))
        data = dict.fromkeys(each for each in (*files.data, *_ours(table)) if reach.name_of(each) not in names)
        note = Removal(made_ms=now_ms, snapshots=ids, files=replace(files, data=tuple(data)), erasure=snapshot_id)
        written = removal.new_name(now_ms)
        put(table.io, note_path(table, written), note.as_json())
        self._is_settled = False
        return written

    def drop(self, table: Any, name: str) -> None:
        """Forget a removal. Raises OSError."""
        _, error = remove(table.io, [note_path(table, name)])
        if error is not None:
            raise error

    def finish(self, table: Any, now_ms: int) -> int:
        """Carry out all removals of erasures that were committed; returns the number of deleted files. Looks for none
        once there is none left.

        Raises OSError, and the errors of the catalog's commit. The next call goes on.
        """
        if self._is_settled:
            return 0
        files, left = 0, False
        for each in listed(table.io, removal.directory(table.location())):
            try:
                note = Removal.from_json(get(table.io, note_path(table, each.name)), each.name)
            except (FileNotFoundError, BadRemovalError):
                continue  # the upkeep tells of a bad one
            if note.erasure is None:
                continue
            now = loaded_again(table)
            if now.metadata.snapshot_by_id(note.erasure) is not None:
                files += self._carry_out(now, each.name, note)
            elif now_ms - note.made_ms >= SETTLED_MS:
                self.drop(now, each.name)
            else:
                left = True  # its process may be about to commit
        self._is_settled = not left
        return files

    def _carry_out(self, table: Any, name: str, note: Removal) -> int:
        metadata, location = table.metadata, table.metadata_location
        kept = _of_refs(metadata, with_main=True)
        ids = [each for each in note.snapshots if each not in kept and metadata.snapshot_by_id(each) is not None]
        if ids:
            answer = table.catalog.commit_table(table, *expiry_of(metadata, ids))
            metadata, location = answer.metadata, answer.metadata_location
        # Of all manifests, because files of killed writers are in none of those that go.
        others = (*note.files.manifests, *note.files.metadata)
        paths = reach.unnamed(table.io, metadata, location, note.files.data, others)
        indexes = [each for path in paths if (each := index_beside(table, path))]
        count, error = remove(table.io, [*paths, *indexes])
        if error is not None:
            raise error
        self.drop(table, name)
        return count


def tell_refs(table: Any, staying: Collection[str]) -> None:
    """Warn of branches and tags that keep other files than the table's own. `staying`: the names of these."""
    metadata = table.metadata
    for name, ref in metadata.refs.items():
        snapshot = metadata.snapshot_by_id(ref.snapshot_id)
        if name == MAIN_BRANCH or snapshot is None:
            continue
        if any(reach.name_of(path) not in staying for path in reach.live_files(table.io, snapshot.manifests(table.io))):
            _log.warning(
                "a ref keeps an older state of the table, which may still hold erased rows: remove it",
                table=str(table.name()[-1]),
                kind=ref.snapshot_ref_type.value,
                ref=name,
            )


def _of_refs(metadata: Any, *, with_main: bool) -> set[int]:
    """The snapshots that branches and tags name."""
    return {ref.snapshot_id for name, ref in metadata.refs.items() if with_main or name != MAIN_BRANCH}


def _ours(table: Any) -> Iterator[str]:
    """The paths of data files of ours that lie at the table's place, and of all whose key indexes do."""
    for directory, names in ((data_of(table), OUR_FILE), (keys_of(table), KEY_INDEX)):
        for each in listed(table.io, directory):
            ours = names.fullmatch(each.name)
            if ours is not None:
                yield f"{data_of(table)}/{ours[1]}.parquet"
