"""The manifests of a snapshot: those that name nothing changed stay as they are, the others are written again.

A commit writes one manifest of each kind (data or deletes, by partition spec): the new entries, and the entries of all
manifests that name a file that goes. So that commits which only add do not heap up manifests, one that finds
`SMALL_MANIFESTS` puts the smaller ones into its own. It takes a manifest of at most twice the size of all smaller ones:
an entry is written again some ten times in the life of a table, not by every merge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias, cast

from runtime.errors import BugError
from spark_jobs.tables.iceberg.catalog import missing

try:
    from pyiceberg.manifest import (
        DATA_FILE_TYPE,
        ManifestContent,
        ManifestEntry,
        ManifestEntryStatus,
        ManifestWriterV2,
        write_manifest,
    )
except ModuleNotFoundError as _error:
    raise missing(_error.name or "pyiceberg") from _error

SMALL_MANIFESTS = 16
"""pyiceberg needs some milliseconds to open one, however small it is."""
MANIFEST_BYTES = 8 << 20
"""The size at which a manifest is full, by Iceberg's default."""
FORMAT_VERSION = 2
_entry: Any = ManifestEntry.from_args
_write_manifest: Any = write_manifest
_BOUNDS = [
    position
    for position, field in enumerate(DATA_FILE_TYPE[FORMAT_VERSION].fields)
    if field.name in ("lower_bounds", "upper_bounds")
]
"""The places in a `DataFile` of the least and the greatest values of its columns."""

Kind: TypeAlias = tuple[ManifestContent, int]
"""The kind of a manifest's files and their partition spec's id."""


class _DeleteManifestWriter(ManifestWriterV2):
    """pyiceberg's writer, which would say that the files have rows of the table."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


if not isinstance(getattr(ManifestWriterV2, "_meta", None), property):
    raise BugError("this pyiceberg writes manifests of deletes as those of data: ManifestWriterV2 has no _meta")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The files that come and go."""

    added: Mapping[Kind, Sequence[Any]]
    """`DataFile`s of data or deletes."""
    gone: frozenset[str]
    """Paths."""
    touched: frozenset[str]
    """The paths of the manifests that list what goes."""
    forgets: bool
    """Whether the entries of files that go, and of those that went before, are dropped: an entry has its file's
    partition, which may be a key."""


class ManifestFiles:
    """Writes the manifests of one snapshot."""

    def __init__(self, io: Any, metadata: Any, snapshot_id: int, paths: Iterator[str], compression: str) -> None:
        self._io, self._metadata, self._snapshot_id = io, metadata, snapshot_id
        self._paths, self._compression = paths, compression

    def after(self, change: Change, before: Sequence[Any]) -> list[Any]:
        """All manifests of the new snapshot; `before`: those of its parent. Raises BugError."""
        old: dict[Kind, list[Any]] = {}
        for each in before:
            # A manifest whose files are all gone already tells of an earlier snapshot.
            if each.has_added_files() or each.has_existing_files():
                old.setdefault((each.content, each.partition_spec_id), []).append(each)
        found = set[str]()
        manifests = list[Any]()
        for kind in dict.fromkeys([*change.added, *old]):
            manifests += self._of_kind(kind, change, old.get(kind, []), found)
        if lost := change.gone - found:
            raise BugError(f"no manifest of the snapshot lists {sorted(lost)}")
        return manifests

    def _of_kind(self, kind: Kind, change: Change, before: Sequence[Any], found: set[str]) -> list[Any]:
        added = change.added.get(kind, ())
        told = [each for each in before if change.forgets and each.deleted_files_count]
        touched = change.touched | {each.manifest_path for each in told}
        again = [each for each in before if each.manifest_path in touched]
        if not added and not again:
            return list(before)
        again += to_merge([each for each in before if each.manifest_path not in touched])
        rewritten = {each.manifest_path for each in again}
        entries = chain(
            (self._added(file) for file in added),
            chain.from_iterable(self._kept(each, change, found) for each in again),
        )
        return [
            *self._written(kind, entries),
            *(each for each in before if each.manifest_path not in rewritten),
        ]

    def _added(self, file: Any) -> Any:
        # Without sequence numbers: they are the snapshot's.
        return _entry(status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, data_file=file)

    def _kept(self, manifest: Any, change: Change, found: set[str]) -> Iterator[Any]:
        for entry in manifest.fetch_manifest_entry(self._io):
            if entry.data_file.file_path in change.gone:
                found.add(entry.data_file.file_path)
                if change.forgets:
                    continue
                entry.status = ManifestEntryStatus.DELETED
                # They hold the beginnings of values, which the manifest would keep beyond the file.
                for position in _BOUNDS:
                    entry.data_file[position] = None
            else:
                entry.status = ManifestEntryStatus.EXISTING
            yield entry

    def _written(self, kind: Kind, entries: Iterable[Any]) -> Iterator[Any]:
        rest = iter(entries)
        for first in rest:
            with self._writer(kind) as writer:
                _put(writer, first)
                for each in rest:
                    _put(writer, each)
                    if writer.tell() >= MANIFEST_BYTES:
                        break
            yield writer.to_manifest_file()

    def _writer(self, kind: Kind) -> Any:
        content, spec_id = kind
        place = {
            "spec": self._metadata.specs()[spec_id],
            "schema": self._metadata.schema(),
            "output_file": self._io.new_output(next(self._paths)),
            "snapshot_id": self._snapshot_id,
            "avro_compression": self._compression,
        }
        if content == ManifestContent.DELETES:
            return cast("Any", _DeleteManifestWriter)(**place)
        return _write_manifest(format_version=FORMAT_VERSION, **place)


def to_merge(manifests: Sequence[Any]) -> list[Any]:
    """The manifests that a new one takes in; none as long as few are small."""
    small = sorted(
        (each for each in manifests if each.manifest_length < MANIFEST_BYTES), key=lambda each: each.manifest_length
    )
    if len(small) < SMALL_MANIFESTS:
        return []
    taken, size_bytes = list[Any](), 0
    for each in small:
        if taken and each.manifest_length > 2 * size_bytes:
            break
        taken.append(each)
        size_bytes += each.manifest_length
    return taken


def _put(writer: Any, entry: Any) -> None:
    if entry.status == ManifestEntryStatus.ADDED:
        writer.add(entry)
    elif entry.status == ManifestEntryStatus.EXISTING:
        writer.existing(entry)
    else:
        writer.delete(entry)
