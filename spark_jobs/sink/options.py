"""Options and columns of `df.write.format("siltstone")`: from text to values. Pure, and without PySpark.

Names and meanings are those of Spark's Kafka sink. Options that begin with `kafka.` are the client's own, without that
prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from runtime.errors import BadInputError

BOOTSTRAP = "bootstrap.servers"
PREFIX = "kafka."
_OF_SPARK = "checkpointlocation"
"""An option of the query itself, which Spark hands on."""
_TEXT_OR_BYTES = ("string", "binary")
_HEADERS = "array<struct<key:string,value:binary>>"
_TYPES: Mapping[str, tuple[str, ...]] = {
    "topic": ("string",),
    "key": _TEXT_OR_BYTES,
    "value": _TEXT_OR_BYTES,
    "headers": (_HEADERS,),
    "partition": ("int",),
}
"""Spark's types of the columns that are written. Others are left alone, as in Spark's Kafka sink."""
_NOT_OURS: Mapping[str, str] = {
    "transactional.id": "leave it out: each task has a producer of its own, and a write is at least once",
    "key.serializer": "leave it out: keys are bytes or text",
    "value.serializer": "leave it out: values are bytes or text",
}
CLIENT_DEFAULTS: Mapping[str, str] = {
    "client.id": "siltstone-spark",
    "enable.idempotence": "true",
    "linger.ms": "50",
    "partitioner": "murmur2_random",  # a key goes where Java's clients put it
}


class SinkOptionError(BadInputError):
    """An option or a column of a write is missing, is not known, or has a type that cannot be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    columns: tuple[str, ...]
    """All columns of the rows, in order."""
    topic: str | None
    """Goes before the column."""
    has_headers: bool
    """Whether the column of headers is written."""
    client: Mapping[str, str] = field(repr=False)
    """The client's properties; they may hold a password."""


def parse_sink(given: Mapping[str, str], columns: Mapping[str, str], *, overwrite: bool) -> SinkOptions:
    """Read the options. `columns`: the rows' columns, with their types in Spark's spelling. Raises SinkOptionError."""
    if overwrite:
        raise SinkOptionError("a topic cannot be overwritten", remedy='write mode("append"), or outputMode("append")')
    _check_columns(columns)
    client = dict(CLIENT_DEFAULTS)
    topic: str | None = None
    has_headers = "headers" in columns
    for name, value in given.items():
        known, text = name.lower(), value.strip()
        if known == _OF_SPARK:
            continue
        if known == "path":
            raise SinkOptionError(
                "save() and start() take no path here", remedy="name the topic by option('topic', 'flights')"
            )
        if known == "topic":
            topic = text
        elif known == "includeheaders":
            if text.lower() not in ("true", "false"):
                raise SinkOptionError(f"includeHeaders must be true or false, not {value!r}")
            has_headers = has_headers and text.lower() == "true"
        elif known.startswith(PREFIX):
            property_name = known.removeprefix(PREFIX)
            if property_name in _NOT_OURS:
                raise SinkOptionError(f"{name} cannot be set", remedy=_NOT_OURS[property_name])
            client[property_name] = text
        else:
            raise SinkOptionError(
                f"a write has no option {name!r}",
                remedy=f"options are topic, includeHeaders, and {PREFIX}* for properties of the client",
            )
    if not client.get(BOOTSTRAP):
        raise SinkOptionError("no agent is named", remedy="write option('kafka.bootstrap.servers', 'host:9092')")
    if not topic and "topic" not in columns:
        raise SinkOptionError("no topic is named", remedy="write option('topic', 'flights'), or add a column topic")
    return SinkOptions(columns=tuple(columns), topic=topic or None, has_headers=has_headers, client=client)


def _check_columns(columns: Mapping[str, str]) -> None:
    if "value" not in columns:
        raise SinkOptionError(
            f"there is no column value among {', '.join(columns)}",
            remedy="for example selectExpr('cast(id AS string) AS key', 'to_json(struct(*)) AS value')",
        )
    for name, types in _TYPES.items():
        found = columns.get(name, types[0])
        if found not in types:
            remedy = "cast it, or write to_json(...)" if name in ("key", "value") else "cast it, or leave it out"
            raise SinkOptionError(f"column {name} is {found}, but must be {' or '.join(types)}", remedy=remedy)
