"""The files that snapshots reach: manifest lists, manifests, and data and delete files.

The newest metadata decides what is reached. Files are compared by their names alone, without directories: a path may
be written in several ways (`s3a://`, `file:/`), and the names are unique, by random digits. Where they are not, a file
is kept that could go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")
THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Paths of files, by where a snapshot names them."""

    metadata: tuple[str, ...] = ()
    """Manifest lists, statistics and older metadata files, named in the metadata itself."""
    manifests: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    """The live files of exactly these manifests, delete files included."""


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


def only_reached_by(io: Any, metadata: Any, ids: Collection[int], *, log_files: bool) -> Reached:
    """The files that go with these snapshots, and perhaps more: `unreached` has the last word when they are gone.

    `log_files`: with the older metadata files, some of which the next commit drops from the log.
    """
    gone = [each for each in metadata.snapshots if each.snapshot_id in ids]
    # A snapshot that stays has all but always the manifests of its parent, or has replaced them for good.
    next_ones = [each for each in metadata.snapshots if each.parent_snapshot_id in ids and each.snapshot_id not in ids]
    stay = {each.manifest_path for each in _manifests(io, next_ones)}
    manifests = {each.manifest_path: each for each in _manifests(io, gone) if each.manifest_path not in stay}
    statistics = [
        each.statistics_path
        for each in (*metadata.statistics, *metadata.partition_statistics)
        if each.snapshot_id in ids
    ]
    log = [each.metadata_file for each in metadata.metadata_log] if log_files else []
    return Reached(
        metadata=tuple(each.manifest_list for each in gone) + tuple(statistics + log),
        manifests=tuple(manifests),
        data=tuple(dict.fromkeys(live_files(io, manifests.values()))),
    )


def unreached(io: Any, metadata: Any, metadata_location: str, files: Reached) -> list[str]:
    """The paths among `files` that no snapshot of this metadata names. Reads only the manifests that it must."""
    names = _names_in(metadata, metadata_location)
    found = [each for each in files.metadata if name_of(each) not in names]
    manifests = {name_of(each): each for each in files.manifests}
    held: dict[str, Any] = {}
    for each in _manifests(io, metadata.snapshots) if manifests else ():
        held[each.manifest_path] = each
        manifests.pop(name_of(each.manifest_path), None)
        if not manifests:
            return found  # all the manifests stay, and so do their files
    data = _without_live(io, held.values(), files.data)
    return [*data, *manifests.values(), *found]


def unnamed(
    io: Any, metadata: Any, metadata_location: str, data: Collection[str], others: Collection[str]
) -> list[str]:
    """The paths, or names, of data files, and of other files, that the table does not name."""
    manifests = {each.manifest_path: each for each in _manifests(io, metadata.snapshots)}
    names = _names_in(metadata, metadata_location) | {name_of(each) for each in manifests}
    return [*_without_live(io, manifests.values(), data), *(each for each in others if name_of(each) not in names)]


def _names_in(metadata: Any, metadata_location: str) -> set[str]:
    """The names of the metadata file itself and of the files in it."""
    named = {
        metadata_location,
        *(each.metadata_file for each in metadata.metadata_log),
        *(each.manifest_list for each in metadata.snapshots),
        *(each.statistics_path for each in (*metadata.statistics, *metadata.partition_statistics)),
    }
    return {name_of(each) for each in named}


def _without_live(io: Any, manifests: Collection[Any], paths: Collection[str]) -> list[str]:
    """The paths whose names are not those of live files; reads no further when none is left."""
    left = {name_of(each): each for each in paths}
    if left:
        # A merged manifest, which is long, names most of what shorter ones named.
        for path in live_files(io, sorted(manifests, key=lambda each: -each.manifest_length)):
            left.pop(name_of(path), None)
            if not left:
                break
    return list(left.values())


def live_files(io: Any, manifests: Iterable[Any]) -> Iterator[str]:
    live = [each for each in manifests if each.has_added_files() or each.has_existing_files()]
    for entries in in_threads(lambda each: each.fetch_manifest_entry(io, discard_deleted=True), live):
        for entry in entries:
            yield entry.data_file.file_path


def _manifests(io: Any, snapshots: Sequence[Any]) -> Iterator[Any]:
    for found in in_threads(lambda each: each.manifests(io), snapshots):
        yield from found


def in_threads(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Results in order, a few at a time, so that a caller who has seen enough stops the rest."""
    if not items:
        return
    with ThreadPoolExecutor(min(THREADS, len(items)), thread_name_prefix="siltstone-upkeep") as pool:
        for start in range(0, len(items), THREADS):
            yield from pool.map(work, items[start : start + THREADS])
