"""Columns from an Avro schema, and values decoded by it. Pure; needs fastavro.

Values are single datums without a container. With Confluent's framing each begins with a zero byte and the id of its
schema, four bytes big-endian (Confluent Schema Registry, wire format). There is no registry here, so the given schema
stands for every id, and a column keeps the id. A union of null and one type is a nullable column. A union of several
types has no column type that a reader would expect, and is refused by name.
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any, cast

from spark_jobs.environment import INSTALL_TABLES
from spark_jobs.scan.arrow import MissingExtraError, pa
from spark_jobs.tables.columns.kinds import DEPTH_MAX, Field
from spark_jobs.tables.errors import BadTableError

FRAME_BYTES = 5
DIGITS_MAX = 38
Decode = Callable[[bytes], Mapping[str, Any]]
_SIMPLE = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_NESTING = ("record", "array", "map")
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time64("us"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("us", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("string", "uuid"): pa.string(),
}


class NotAvroError(ValueError):
    """The bytes are not a datum of the schema."""


def read_schema(text: str) -> tuple[Any, list[Field]]:
    """The parsed schema, for `decoder`, and its columns. Raises BadTableError, MissingExtraError."""
    fastavro = _fastavro()
    try:
        parsed = fastavro.parse_schema(json.loads(text))
    except Exception as error:  # fastavro's own errors have no common root
        raise BadTableError(f"the Avro schema cannot be read: {error}") from None
    if not isinstance(parsed, dict) or cast("Mapping[str, Any]", parsed).get("type") != "record":
        raise BadTableError("the Avro schema is no record, so it names no columns")
    names: dict[str, Any] = {}
    record = _type_of(parsed, names, "", ())
    return cast("Any", parsed), list(record)


def decoder(parsed: Any) -> Decode:
    """A function from the bytes of one datum (without its frame) to its fields; it raises NotAvroError."""
    read = _fastavro().schemaless_reader

    def decode(data: bytes) -> Mapping[str, Any]:
        source = io.BytesIO(data)
        try:
            value = read(source, parsed, None)
        except Exception as error:  # any error that bad bytes cause: EOFError, IndexError, ValueError, OverflowError...
            raise NotAvroError(f"not a datum of the schema: {str(error) or type(error).__name__}") from None
        if source.tell() != len(data):
            raise NotAvroError(f"{len(data) - source.tell()} bytes are left over after the datum")
        return _plain(value)

    return decode


def unframed(value: bytes) -> tuple[int, bytes]:
    """The schema id, and the datum. Raises NotAvroError."""
    if len(value) < FRAME_BYTES or value[0] != 0:
        raise NotAvroError("no Confluent frame: it would begin with a zero byte and a schema id")
    return int.from_bytes(value[1:FRAME_BYTES], "big", signed=True), value[FRAME_BYTES:]


def _plain(value: Any) -> Any:
    """A value that pyarrow takes: it does not take UUID objects in a string column."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list):
        return [_plain(each) for each in cast("list[Any]", value)]
    return str(value) if isinstance(value, uuid.UUID) else value


def _fastavro() -> Any:
    try:
        import fastavro  # pyright: ignore[reportMissingTypeStubs] -- its C half has none
    except ModuleNotFoundError as error:
        raise MissingExtraError("reading Avro needs fastavro, which is not installed", remedy=INSTALL_TABLES) from error
    return fastavro


def _type_of(schema: Any, names: dict[str, Any], at: str, above: tuple[str, ...]) -> Any:
    """The Arrow type. `names` are the named types seen so far, `above` those that enclose this one."""
    if isinstance(schema, str) and schema in names:
        if schema in above:
            raise BadTableError(f"the Avro type {schema} holds itself, which no column can (at {at or 'the top'})")
        return _type_of(names[schema], names, at, above)
    described: Mapping[str, Any] = {"type": schema} if isinstance(schema, str) else schema
    of = described["type"]
    if isinstance(of, dict):
        return _type_of(of, names, at, above)
    name = str(described.get("name", ""))
    if name:
        names[name] = described
    if of in _NESTING and at.count(".") + 1 >= DEPTH_MAX:
        raise BadTableError(
            f"the Avro field {at.partition('.')[0]} has {DEPTH_MAX} and more records, arrays and maps inside of each"
            " other, which readers of tables refuse",
            remedy="export the values as they are: --value raw",
        )
    match of:
        case "record":
            if at and not described["fields"]:
                raise BadTableError(f"the Avro record at {at} has no fields, so no column can hold it")
            return pa.struct([_field(each, names, at, (*above, name)) for each in described["fields"]])
        case "array":
            return pa.list_(_field({"name": "element", "type": described["items"]}, names, at, above))
        case "map":
            value = _field({"name": "value", "type": described["values"]}, names, at, above)
            return pa.map_(pa.string(), value)
        case "fixed" if described.get("logicalType") != "decimal":
            if not described["size"]:
                raise BadTableError(f"the Avro field {at} has no bytes (fixed, of size 0), so no column can hold it")
            return pa.binary(int(described["size"]))
        case _ if described.get("logicalType") == "decimal":
            return _decimal(int(described["precision"]), int(described.get("scale", 0)), at)
        case _:
            return _simple(str(of), str(described.get("logicalType", "")), at)


def _decimal(precision: int, scale: int, at: str) -> Any:
    if not 1 <= precision <= DIGITS_MAX:
        raise BadTableError(
            f"the Avro field {at} is a decimal of {precision} digits, and columns have {DIGITS_MAX} at most",
            remedy="export the values as they are: --value raw",
        )
    return pa.decimal128(precision, scale)


def _simple(of: str, logical: str, at: str) -> Any:
    found = _LOGICAL.get((of, logical)) or _SIMPLE.get(of)
    if found is None:
        raise BadTableError(f"the Avro field {at} is {of}, which no column can be")
    return found


def _field(field: Mapping[str, Any], names: dict[str, Any], at: str, above: tuple[str, ...]) -> Field:
    name = str(field["name"])
    place = f"{at}.{name}" if at else name
    of = field["type"]
    if not isinstance(of, list):
        return pa.field(name, _type_of(of, names, place, above))
    kinds = [each for each in cast("list[Any]", of) if each != "null"]
    if len(kinds) != 1:
        raise BadTableError(
            f"the Avro field {place} is a union of several types, which no column can be",
            remedy="export the values as they are: --value raw",
        )
    return pa.field(name, _type_of(kinds[0], names, place, above))
