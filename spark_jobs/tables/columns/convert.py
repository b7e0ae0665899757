"""Batches of records into batches of table rows. Pure.

Every row begins with its record's place; then come the columns of its value. A value that does not fit keeps its bytes
in `kafka_value` and the reason in `kafka_error`, and its fitting parts are in its columns; or, if so configured, it
ends the export. Every part of a value is in one of these places. A key that is no text, or no JSON, although keys are
asked for as that, keeps its bytes in `kafka_key_bytes`.

For JSON the converter also collects the kind of everything that it saw; from that the table's missing columns are made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from runtime.text import first_line
from spark_jobs.scan.arrow import pa
from spark_jobs.scan.contract import SCHEMA
from spark_jobs.tables.columns.avro_schema import NotAvroError, decoder, read_schema, unframed
from spark_jobs.tables.columns.json_schema import fields_of_json_schema
from spark_jobs.tables.columns.kinds import (
    COLUMNS_MAX,
    NULL,
    Columns,
    Field,
    Kind,
    Seen,
    as_text,
    fits,
    has_text,
    kind_of,
    kind_text,
    shown,
    size,
    wrong_name,
)
from spark_jobs.tables.errors import BadTableError, BadValueError

RAW, JSON_VALUES, AVRO = "raw", "json", "avro"
TEXT_KEYS, JSON_KEYS = "text", "json"
CONFLUENT = "confluent"
TO_COLUMN, FAIL = "column", "fail"
KINDS_MAX = 10_000
"""The most shapes of objects whose judgement is remembered."""
_PLACE = (
    pa.field("kafka_partition", pa.int32(), nullable=False),
    pa.field("kafka_offset", pa.int64(), nullable=False),
    pa.field("kafka_timestamp", SCHEMA.field("timestamp").type, nullable=False),
    pa.field("kafka_key", pa.binary()),
    pa.field("kafka_value", pa.binary()),
    pa.field("kafka_headers", SCHEMA.field("headers").type),
)
_TOMBSTONE = pa.field("kafka_tombstone", pa.bool_())
_ERROR = pa.field("kafka_error", pa.string())
_SCHEMA_ID = pa.field("kafka_schema_id", pa.int32())
_TEXT_KEY = pa.field("kafka_key", pa.string())
_KEY_BYTES = pa.field("kafka_key_bytes", pa.binary())
BASE_NAMES = tuple(field.name for field in (*_PLACE, _TOMBSTONE, _ERROR, _SCHEMA_ID, _KEY_BYTES))
"""The names of our own columns."""
_OF_ICEBERG = (
    *("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"),
    *("_change_type", "_change_ordinal", "_commit_snapshot_id"),
)
"""Columns that Iceberg's readers make themselves (`org.apache.iceberg.MetadataColumns`): they refuse tables that have
one."""
TAKEN_NAMES = (*BASE_NAMES, *_OF_ICEBERG)
"""Names that no column of a value can have, in any case of letters."""
REASONS_MAX = 10
"""The most fields that do not fit and are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueFormat:
    """The way to read values and keys. Raises BadTableError for one that means nothing."""

    kind: str = RAW
    """raw, json or avro."""
    schema_text: str = ""
    """A JSON Schema or an Avro schema; required for avro."""
    framing: str = ""
    """`confluent`, or nothing."""
    on_error: str = TO_COLUMN
    """Or `fail`."""
    keys: str = RAW
    """raw (bytes), text, or json: a text that is checked to be JSON."""

    def __post_init__(self) -> None:
        if self.kind not in (RAW, JSON_VALUES, AVRO):
            raise BadTableError(f"values cannot be read as {self.kind!r}", remedy="raw, json or avro")
        if self.kind == AVRO and not self.schema_text:
            raise BadTableError("Avro values can only be read with their schema", remedy="give --schema FILE.avsc")
        if self.kind == RAW and self.schema_text:
            raise BadTableError("raw values have no schema", remedy="give --value json or --value avro with --schema")
        if self.keys not in (RAW, TEXT_KEYS, JSON_KEYS):
            raise BadTableError(f"keys cannot be read as {self.keys!r}", remedy="raw, text or json")
        if self.framing and (self.framing != CONFLUENT or self.kind != AVRO):
            raise BadTableError(f"framing {self.framing!r} of {self.kind} values is not known")

    @property
    def infers(self) -> bool:
        """Whether columns are made from the contents of the values."""
        return self.kind == JSON_VALUES and not self.schema_text

    def given_fields(self) -> list[Field]:
        """The columns that the schema file names. Raises BadTableError."""
        if not self.schema_text:
            return []
        fields = (
            fields_of_json_schema(self.schema_text) if self.kind == JSON_VALUES else read_schema(self.schema_text)[1]
        )
        wrong = wrong_name(fields, TAKEN_NAMES)
        if wrong is not None:
            raise BadTableError(
                f"the schema names a column {wrong!r}, which cannot be or is taken",
                remedy="leave it out of the schema: such values keep their bytes in kafka_value",
            )
        return fields

    @property
    def text(self) -> str:
        """The format of a table's values and keys, which never changes."""
        values = f"{self.kind} with {self.framing}'s frame" if self.framing else self.kind
        return values if self.keys == RAW else f"{values}, keys as {self.keys}"


def base_fields(values: ValueFormat) -> list[Field]:
    """The columns before those of the value."""
    fields: list[Field] = [_TEXT_KEY if each.name == "kafka_key" and values.keys != RAW else each for each in _PLACE]
    if values.kind != RAW:
        fields += [_TOMBSTONE, _ERROR]
    elif values.keys != RAW:
        fields.append(_ERROR)
    if values.framing:
        fields.append(_SCHEMA_ID)
    return fields if values.keys == RAW else [*fields, _KEY_BYTES]


def table_schema(values: ValueFormat, fields: Sequence[Field]) -> Any:
    """The `pyarrow.Schema` of files with these columns of the value."""
    return pa.schema([*base_fields(values), *fields])


def value_fields(schema: Any) -> list[Field]:
    """The fields of a table's schema that a value may have."""
    return [field for field in schema if field.name not in BASE_NAMES]


class Row:
    """The result of one value. `fields` None: its columns are null."""

    __slots__ = ("error", "fields", "schema_id")

    def __init__(self, fields: Mapping[str, Any] | None, error: str | None, schema_id: int | None = None) -> None:
        self.fields, self.error, self.schema_id = fields, error, schema_id


class Reader(Protocol):
    @property
    def seen(self) -> Kind: ...

    def read(self, value: bytes) -> Row: ...


class Converter:
    """The converter of one file or of several with the same columns. `errors` counts the records of which the value or
    the key did not fit. `for_now`: better columns may come, so no value ends the export that they could make fit."""

    def __init__(self, values: ValueFormat, fields: Sequence[Field], *, for_now: bool = False) -> None:
        self._values, self._fields, self._for_now = values, list(fields), for_now
        self.schema = table_schema(values, fields)
        self.errors = 0
        self._reader = _reader(values, self._fields)

    @property
    def seen(self) -> Kind:
        """The kind of all objects so far; null if columns are not inferred."""
        return NULL if self._reader is None else self._reader.seen

    def convert(self, batch: Any) -> Any:
        """A `pyarrow.RecordBatch` of `schema`. Raises BadValueError if values that do not fit should end the export."""
        place = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns: dict[str, Any] = {
            f"kafka_{name}": place[name] for name in ("partition", "offset", "timestamp", "key", "value", "headers")
        }
        arrays: list[Any] = []
        rows: list[Row] = [_NOTHING] * batch.num_rows
        if self._reader is not None:
            values: list[bytes | None] = place["value"].to_pylist()
            rows = [_NOTHING if value is None else self._reader.read(value) for value in values]
            arrays = self._arrays(rows)
            # Only values that did not fit keep their bytes, the others are in their columns.
            kept = [value if row.error is not None else None for value, row in zip(values, rows, strict=True)]
            columns["kafka_value"] = pa.array(kept, pa.binary())
            columns["kafka_tombstone"] = pa.array([value is None for value in values], pa.bool_())
            columns["kafka_schema_id"] = pa.array([row.schema_id for row in rows], pa.int32())
        reasons = [row.error for row in rows]
        hopeless = [row.error if row.fields is None else None for row in rows] if self._for_now else reasons
        self._judge("value", hopeless, place)
        if self._values.keys != RAW:
            of_keys = self._keys(columns, place["key"])
            self._judge("key", of_keys, place)
            reasons = ["; ".join(filter(None, both)) or None for both in zip(of_keys, reasons, strict=True)]
        columns["kafka_error"] = pa.array(reasons, pa.string())
        self.errors += sum(reason is not None for reason in reasons)
        base = [columns[field.name] for field in base_fields(self._values)]
        return pa.RecordBatch.from_arrays([*base, *arrays], schema=self.schema)

    def _keys(self, columns: dict[str, Any], keys: Any) -> list[str | None]:
        """Replace the keys by texts. Returns the reasons of those that are none, whose bytes are kept."""
        found: list[bytes | None] = keys.to_pylist()
        read = [(None, None) if key is None else _key_text(key, self._values.keys) for key in found]
        kept = [key if text is None else None for key, (text, _) in zip(found, read, strict=True)]
        columns["kafka_key"] = pa.array([text for text, _ in read], pa.string())
        columns["kafka_key_bytes"] = pa.array(kept, pa.binary())
        return [reason for _, reason in read]

    def _judge(self, part: str, reasons: Sequence[str | None], place: Mapping[str, Any]) -> None:
        """`part`: value or key."""
        wrong = next((number for number, reason in enumerate(reasons) if reason is not None), None)
        if wrong is not None and self._values.on_error == FAIL:
            at = f"partition {place['partition'][wrong]}, offset {place['offset'][wrong]}"
            raise BadValueError(
                f"a {part} does not fit ({at}): {reasons[wrong]}",
                remedy=f"--on-error column keeps it in the columns kafka_{_KEPT[part]} and kafka_error",
            )

    def _arrays(self, rows: list[Row]) -> list[Any]:
        """A column for each field; rows whose values pyarrow refuses lose those values and gain an error."""
        return [self._array(field, rows) for field in self._fields]

    def _array(self, field: Field, rows: list[Row]) -> Any:
        name = field.name
        cells = [None if row.fields is None else row.fields.get(name) for row in rows]
        try:
            return _column(cells, field.type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            # One by one only after the whole column failed: that is slow, and rare.
            for number, cell in enumerate(cells):
                try:
                    _column([cell], field.type)
                except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                    cells[number] = None
                    row = rows[number]
                    reason = "; ".join(filter(None, [row.error, f"{shown(name)}: {first_line(error)}"]))
                    rows[number] = Row(row.fields, reason, row.schema_id)
            return _column(cells, field.type)


def _column(cells: Sequence[Any], kind: Any) -> Any:
    """Raises pyarrow's errors, and ValueError, TypeError, OverflowError for values that the type does not take."""
    # Of some types, such as an object with a uuid, pyarrow makes no array but one of nulls.
    if all(cell is None for cell in cells):
        return pa.nulls(len(cells), kind)
    return pa.array(cells, kind)


_NOTHING = Row(None, None)
_KEPT = {"value": "value", "key": "key_bytes"}


def _key_text(key: bytes, kind: str) -> tuple[str | None, str | None]:
    """The key as text, or None and the reason."""
    try:
        text = key.decode()
    except UnicodeDecodeError as error:
        return None, f"the key is not UTF-8 (byte {error.start})"
    if kind == JSON_KEYS:
        try:
            json.loads(text, parse_constant=_refuse)
        except ValueError as error:
            return None, f"the key is not JSON: {first_line(error)}"
        except RecursionError:
            return None, "the key is not JSON that can be read: too many lists or objects inside of each other"
    return text, None


def _reader(values: ValueFormat, fields: Sequence[Field]) -> Reader | None:
    if values.kind == RAW:
        return None
    return JsonReader(fields) if values.kind == JSON_VALUES else AvroReader(values)


class JsonReader:
    def __init__(self, fields: Sequence[Field]) -> None:
        self._seen = Seen()
        self._fields = {field.name: field for field in fields}
        self._full = sum(map(size, fields)) >= COLUMNS_MAX
        self._columns = Columns(TAKEN_NAMES)
        for field in fields:
            self._columns.add(field)
        self._texts = {field.name: field for field in fields if has_text(field)}
        self._known: dict[Kind, str | None] = {}
        """The problem with objects of a kind; None: no problem."""

    @property
    def seen(self) -> Kind:
        return self._seen.kind

    def read(self, value: bytes) -> Row:
        try:
            parsed: Any = json.loads(value, parse_constant=_refuse)
            kind = kind_of(parsed)
        except ValueError as error:
            return Row(None, f"not JSON: {first_line(error)}")
        except RecursionError:
            return Row(None, "lists or objects inside of each other, too many to be read")
        if not isinstance(parsed, dict):
            return Row(None, f"not a JSON object but {kind_text(kind)}")
        if kind not in self._known:
            # Clearing costs judging these kinds again, nothing else.
            if len(self._known) >= KINDS_MAX:
                self._known.clear()
            self._known[kind] = self._wrong(kind)
            self._seen.add(kind)
        wrong = self._known[kind]
        row = cast("dict[str, Any]", parsed)
        if wrong is not None:
            row = {name: each for name, each in row.items() if self._fits(name, kind_of(each, 1))}
        return self._with_texts(row, wrong)

    def _with_texts(self, row: dict[str, Any], wrong: str | None) -> Row:
        for name in self._texts and [name for name in row if name in self._texts]:
            try:
                row[name] = as_text(row[name], self._texts[name])
            except (ValueError, RecursionError) as error:
                del row[name]
                why = "too deep" if isinstance(error, RecursionError) else "a number beyond all doubles"
                wrong = "; ".join(filter(None, [wrong, f"{shown(name)}: {why}, which JSON text cannot be"]))
        return Row(row, wrong)

    def _wrong(self, kind: Kind) -> str | None:
        inner = cast("Sequence[tuple[str, Kind]]", kind[1])
        misfits = [(name, each) for name, each in inner if not self._fits(name, each)]
        reasons = [self._reason(name, each) for name, each in misfits[:REASONS_MAX]]
        if len(misfits) > REASONS_MAX:
            reasons.append(f"and {len(misfits) - REASONS_MAX:,} more fields")
        return "; ".join(reasons) or None

    def _reason(self, name: str, kind: Kind) -> str:
        if name in self._fields:
            return f"{name}: {kind_text(kind)} does not fit {self._fields[name].type}"
        if not self._columns.can_have(name, kind):
            return f"{shown(name)}: no column can have this name"
        return f"{name}: " + ("the table has no room for more columns" if self._full else "no column has this name")

    def _fits(self, name: str, kind: Kind) -> bool:
        return kind == NULL or (name in self._fields and fits(kind, self._fields[name]))


class AvroReader:
    def __init__(self, values: ValueFormat) -> None:
        self.seen: Kind = NULL
        self._framed = bool(values.framing)
        self._decode: Callable[[bytes], Mapping[str, Any]] = decoder(read_schema(values.schema_text)[0])

    def read(self, value: bytes) -> Row:
        schema_id: int | None = None
        try:
            if self._framed:
                schema_id, value = unframed(value)
            return Row(self._decode(value), None, schema_id)
        except NotAvroError as error:
            hint = " (a Confluent frame? --framing confluent)" if not self._framed and value[:1] == b"\0" else ""
            return Row(None, f"{error}{hint}", schema_id)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")
