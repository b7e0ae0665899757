"""The objects of the metadata backup under `catalog/`, byte for byte (docs/file-format.md): snapshots in Parquet,
manifests, increments.

A snapshot is a Parquet file for each table and a manifest that names these files with length and CRC-32C. The manifest
is written last: files without a manifest are no snapshot. An increment is one JSON object, compressed by zstd. Readers
check everything that they use. Manifests and increments have a format number, in case a later release writes them
differently. Nothing here talks to a store. pyarrow is loaded when the first table is written or read.
"""

from __future__ import annotations

import base64
import importlib
import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, cast

import zstandard

from metadata.contract.backup import BackupInstant, BackupTable, DoneJob, Row
from metadata.contract.files import L0File
from metadata.contract.tail import Change, ChangeKind, Cursor
from metadata.postgres.backup.tables import LATER_TABLES, TABLES
from runtime.errors import BadInputError, SiltstoneError
from wire.crc import crc32c

FORMAT = 1
BACKUP_PREFIX = "catalog/"
SNAPSHOTS_PREFIX = "catalog/snapshots/"
INCREMENTS_PREFIX = "catalog/increments/"
MANIFEST = "manifest.json"
INCREMENT_BYTES_MAX = 1 << 30
_ID = r"(?P<ms>[0-9]{15})-(?P<uuid>[0-9a-f-]{36})"
_SNAPSHOT_KEY = re.compile(rf"catalog/snapshots/(?P<id>{_ID})/(?P<name>[a-z_]+\.(parquet|json))", re.ASCII)
_INCREMENT_KEY = re.compile(rf"catalog/increments/{_ID}\.json\.zst", re.ASCII)


class BackupDamagedError(SiltstoneError):
    """An object of the metadata backup is missing, cut off or damaged."""


class BackupRefusedError(BadInputError):
    """The metadata backup belongs to another cluster, or a newer release wrote it. Nothing was changed."""


class BackupKey(NamedTuple):
    ms: int
    """When the snapshot or increment was taken. Later names have larger times."""
    snapshot: str
    """The snapshot's id; "" for an increment."""
    name: str


class TableEntry(NamedTuple):
    """The entry of a table in a manifest."""

    key: str
    rows: int
    size_bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    instant: BackupInstant
    tables: Mapping[str, TableEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class Increment:
    """The metadata changes between two cursors. Increments may overlap, because every part has an id of its own."""

    taken_ms: int
    cluster_id: str
    cursor: Cursor
    """The start of the next increment."""
    base: Cursor | None = None
    """The cursor of its writer's snapshot. This increment and those before it hold all changes from here to `cursor`.
    None = written by an early release."""
    files: Sequence[L0File]
    changes: Sequence[Change]
    jobs: Sequence[DoneJob]


# ---- keys ---------------------------------------------------------------------------------------------------------


def snapshot_id(taken_ms: int, unique: uuid.UUID) -> str:
    return f"{taken_ms:015d}-{unique}"


def snapshot_key(id_: str, name: str) -> str:
    return f"{SNAPSHOTS_PREFIX}{id_}/{name}"


def increment_key(taken_ms: int, unique: uuid.UUID) -> str:
    return f"{INCREMENTS_PREFIX}{taken_ms:015d}-{unique}.json.zst"


def parse_backup_key(key: str) -> BackupKey | None:
    """None for a key that this format does not have."""
    found = _SNAPSHOT_KEY.fullmatch(key)
    if found is not None:
        return BackupKey(int(found["ms"]), found["id"], found["name"])
    found = _INCREMENT_KEY.fullmatch(key)
    return None if found is None else BackupKey(int(found["ms"]), "", key.rpartition("/")[2])


# ---- tables -------------------------------------------------------------------------------------------------------


def _arrow(module: str = "pyarrow") -> Any:
    """A module of pyarrow, which is untyped and slow to load."""
    return importlib.import_module(module)


def _arrow_type(kind: str) -> Any:
    pa = _arrow()
    item = kind.removesuffix("[]")
    type_ = {
        "binary": pa.binary,
        "bool": pa.bool_,
        "int16": pa.int16,
        "int32": pa.int32,
        "int64": pa.int64,
        "float64": pa.float64,
        "text": pa.string,
    }[item]()
    return pa.list_(type_) if item != kind else type_


REFRESHED: Mapping[str, str] = {"group_offsets": "committed_ms"}
"""Table -> the column that clients renew without any news: an idle consumer commits the same offsets again."""
_DIGEST_MASK = (1 << 128) - 1


class TableFile:
    """One table, written to a Parquet file on the local disk; each call of `add` writes a row group.

    `digest` and `steady_digest` (without the column of `REFRESHED`) tell whether two files hold the same rows. They are
    sums over the rows, because Postgres gives rows in any order.
    """

    def __init__(self, table: BackupTable, path: Path) -> None:
        pa = _arrow()
        self.path, self.rows = path, 0
        self.digest = self.steady_digest = 0
        self._table = table
        self._steady = [at for at, name in enumerate(table.columns) if name != REFRESHED.get(table.name)]
        # Numbers are stored as they are, and most columns are numbers.
        self._is_plain = [table.kind(name).removesuffix("[]") not in ("binary", "text") for name in table.columns]
        self._schema = pa.schema([(name, _arrow_type(table.kind(name))) for name in table.columns])
        self._writer = _arrow("pyarrow.parquet").ParquetWriter(str(path), self._schema, compression="zstd")

    def add(self, rows: Sequence[Sequence[Any]]) -> None:
        pa = _arrow()
        columns = [
            pa.array(
                [row[at] for row in rows] if is_plain else [self._table.stored(name, row[at]) for row in rows],
                type=self._schema.field(at).type,
            )
            for at, (name, is_plain) in enumerate(zip(self._table.columns, self._is_plain, strict=True))
        ]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))
        self.rows += len(rows)
        whole = sum(_row_digest(row, range(len(row))) for row in rows)
        is_whole = len(self._steady) == len(self._table.columns)
        steady = whole if is_whole else sum(_row_digest(row, self._steady) for row in rows)
        self.digest = self.digest + whole & _DIGEST_MASK
        self.steady_digest = self.steady_digest + steady & _DIGEST_MASK

    def close(self) -> None:
        self._writer.close()


def _row_digest(row: Sequence[Any], columns: Iterable[int]) -> int:
    return int.from_bytes(blake2b(repr([row[at] for at in columns]).encode(), digest_size=16).digest())


def read_table(name: str, body: bytes) -> list[Row]:
    """The rows, without columns that this release does not know. Raises BackupDamagedError."""
    pa = _arrow()
    table = TABLES[name]
    try:
        loaded = _arrow("pyarrow.parquet").read_table(pa.BufferReader(body))
        known = [column for column in loaded.column_names if column in table.columns]
        columns = [[table.loaded(column, value) for value in loaded.column(column).to_pylist()] for column in known]
    except (pa.ArrowException, ValueError, TypeError, OSError) as error:
        raise BackupDamagedError(f"table {name} of a metadata snapshot cannot be read: {error}") from error
    return [dict(zip(known, values, strict=True)) for values in zip(*columns, strict=True)]


# ---- manifests ----------------------------------------------------------------------------------------------------


def encode_manifest(manifest: Manifest) -> bytes:
    """A line of JSON, and a line with its CRC-32C in hexadecimal."""
    instant = manifest.instant
    line = _json(
        {
            "format": FORMAT,
            "cluster_id": instant.cluster_id,
            "taken_ms": instant.taken_ms,
            "cursor": _cursor(instant.cursor),
            "sequences": dict(instant.sequences),
            "tables": {name: entry._asdict() for name, entry in manifest.tables.items()},
        }
    )
    return line + b"\n%08x\n" % crc32c(line)


def decode_manifest(body: bytes, *, cluster_id: str) -> Manifest:
    """Raises BackupDamagedError, and BackupRefusedError for another cluster or a newer format."""
    line, _, rest = body.partition(b"\n")
    if rest != b"%08x\n" % crc32c(line):
        raise BackupDamagedError("the CRC-32C of the manifest does not match")
    try:
        stored = cast("dict[str, Any]", json.loads(line))
        _check_head(stored, cluster_id)
        instant = BackupInstant(
            taken_ms=int(stored["taken_ms"]),
            cluster_id=str(stored["cluster_id"]),
            cursor=_read_cursor(stored["cursor"]),
            sequences={str(name): int(last) for name, last in stored["sequences"].items()},
        )
        tables = {
            str(name): TableEntry(str(entry["key"]), int(entry["rows"]), int(entry["size_bytes"]), int(entry["crc32c"]))
            for name, entry in stored["tables"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BackupDamagedError(f"the manifest cannot be read: {error!r}") from error
    missing = TABLES.keys() - tables.keys() - LATER_TABLES
    if missing:
        raise BackupDamagedError(f"the manifest lacks the table {min(missing)}")
    return Manifest(instant=instant, tables={name: tables[name] for name in TABLES if name in tables})


# ---- increments ---------------------------------------------------------------------------------------------------


def encode_increment(increment: Increment) -> bytes:
    stored = {
        "format": FORMAT,
        "cluster_id": increment.cluster_id,
        "taken_ms": increment.taken_ms,
        "cursor": _cursor(increment.cursor),
        "base": None if increment.base is None else _cursor(increment.base),
        "files": [
            [
                file.file_id,
                file.key,
                file.writer_id,
                file.epoch,
                file.seq,
                file.size_bytes,
                file.created_ms,
                base64.b64encode(file.index).decode(),
                # Absent where there are none: earlier releases, which know no transactions, can read on.
                *(
                    base64.b64encode(each).decode()
                    for each in (file.inline, file.txn_rows)
                    if file.inline or file.txn_rows
                ),
            ]
            for file in increment.files
        ],
        "changes": [
            [
                change.change_id,
                change.kind.value,
                None if change.topic_id is None else str(change.topic_id),
                dict(change.detail),
            ]
            for change in increment.changes
        ],
        "jobs": [[job.job_id, job.epoch, job.finished_ms, list(job.output_keys)] for job in increment.jobs],
    }
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(_json(stored))


def decode_increment(body: bytes, *, cluster_id: str) -> Increment:
    """Raises BackupDamagedError, BackupRefusedError."""
    try:
        size = zstandard.get_frame_parameters(body).content_size
        # Checked before decompressing: a damaged frame may claim any size.
        if not 0 < size <= INCREMENT_BYTES_MAX:
            raise BackupDamagedError(f"the increment claims {size} bytes; from 1 to {INCREMENT_BYTES_MAX} are accepted")
        stored = cast("dict[str, Any]", json.loads(zstandard.ZstdDecompressor().decompress(body)))
        _check_head(stored, cluster_id)
        return Increment(
            taken_ms=int(stored["taken_ms"]),
            cluster_id=str(stored["cluster_id"]),
            cursor=_read_cursor(stored["cursor"]),
            base=None if stored.get("base") is None else _read_cursor(stored["base"]),
            files=list(_read_files(stored["files"])),
            changes=[
                Change(
                    change_id=int(id_),
                    kind=ChangeKind(kind),
                    topic_id=None if topic_id is None else uuid.UUID(topic_id),
                    detail=detail,
                )
                for id_, kind, topic_id, detail in stored["changes"]
            ],
            jobs=[
                DoneJob(int(job_id), int(epoch), int(finished_ms), tuple(map(str, keys)))
                for job_id, epoch, finished_ms, keys in stored["jobs"]
            ],
        )
    except (KeyError, TypeError, ValueError, AttributeError, zstandard.ZstdError) as error:
        raise BackupDamagedError(f"the increment cannot be read: {error!r}") from error


def _read_files(stored: Iterable[Sequence[Any]]) -> Iterable[L0File]:
    for file_id, key, writer_id, epoch, seq, size_bytes, created_ms, *packed in stored:
        index, inline, txn_rows = (base64.b64decode(each, validate=True) for each in (*packed, "", "")[:3])
        yield L0File(
            file_id=int(file_id),
            key=str(key),
            writer_id=int(writer_id),
            epoch=int(epoch),
            seq=int(seq),
            size_bytes=int(size_bytes),
            created_ms=int(created_ms),
            index=index,
            inline=inline,
            txn_rows=txn_rows,
        )


def _check_head(stored: Mapping[str, Any], cluster_id: str) -> None:
    if stored["format"] != FORMAT:
        raise BackupRefusedError(
            f"the metadata backup has format {stored['format']}; this release reads format {FORMAT}",
            remedy="rebuild with the release that wrote the backup, or a later one",
        )
    if stored["cluster_id"] != cluster_id:
        raise BackupRefusedError(
            f"the metadata backup is cluster {stored['cluster_id']}'s, but the object store is cluster {cluster_id}'s",
            remedy="find out who copied objects from one prefix to another; rebuild refuses a mixture of two clusters",
        )


def _cursor(cursor: Cursor) -> dict[str, Any]:
    return {"writers": [[id_, *seen] for id_, seen in sorted(cursor.writers.items())], "change_id": cursor.change_id}


def _read_cursor(stored: Mapping[str, Any]) -> Cursor:
    writers = {int(id_): (int(epoch), int(seq)) for id_, epoch, seq in stored["writers"]}
    return Cursor(writers=writers, change_id=int(stored["change_id"]))


def _json(stored: Mapping[str, Any]) -> bytes:
    return json.dumps(stored, sort_keys=True, separators=(",", ":")).encode()
