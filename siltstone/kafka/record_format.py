"""The `--format` of `siltstone produce` and `siltstone consume`: parse a format, read and write records by it. Pure.

Fields: %k key, %v value (or %s, as in kcat), %h headers as a=1,b=2, %p partition, %T timestamp in ms since the epoch.
For output also %t topic, %o offset, %D the timestamp as a date, %K and %V (or %S) the lengths of key and value in bytes
(-1 for null). %% is a percent sign. `%k{hex}` and `%v{base64}` name the encoding of a field's bytes; without one the
bytes are copied as they are. Escapes: \\n \\t \\r \\0 \\\\ \\xHH.

On input, the text after the last field ends a record (without such text a newline does), and the text between two
fields ends the first of them. The reader searches it from the left, so only the last field may contain it.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

from runtime.errors import BadInputError
from wire.records import Headers

VALUE_LINES = r"%v\n"
RECORD_BYTES_MAX = 128 << 20
"""The longest input without the end of a record. Longer input is treated as input in another format."""
REMEDY = (
    r"give, for example, --format '%k\t%v\n'; `siltstone produce --help` and `siltstone consume --help` list the fields"
)

_TOKEN = re.compile(
    r"%(?P<verb>.)(?:\{(?P<encoding>[a-z0-9]*)\})?|\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>.)", re.DOTALL
)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_SAME = {"s": "v", "S": "V"}
_READ_VERBS = frozenset("kvhpT")
_WRITTEN_VERBS = _READ_VERBS | frozenset("toDKV")
_ENCODED_VERBS = frozenset("kv")
_ENCODINGS = ("hex", "base64")
_INT64_MAX = 2**63 - 1


class Field(NamedTuple):
    """A field of the format, such as %k{hex}."""

    verb: str
    encoding: str = ""


Piece = bytes | Field


class InputRecord(NamedTuple):
    """A record from the input. A part that the input does not contain is None."""

    number: int
    """Counted from 1."""
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class UnreadRecord(NamedTuple):
    """Input that is not a record in the format."""

    number: int
    why: str


class OutputRecord(NamedTuple):
    """A consumed record; `timestamp_ms` is -1 if it has none."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    is_transactional: bool = False
    is_aborted: bool = False
    """Its transaction was aborted. Only a reader that asks for such records gets them."""


def parse_format(text: str) -> tuple[Piece, ...]:
    """Parse a format into literal bytes and fields, in order. Raises BadInputError."""
    pieces: list[Piece] = []

    def literal(data: bytes) -> None:
        if pieces and isinstance(pieces[-1], bytes):
            pieces[-1] += data
        elif data:
            pieces.append(data)

    position = 0
    for token in _TOKEN.finditer(text):
        literal(os.fsencode(text[position : token.start()]))
        position = token.end()
        verb, code, escape = token["verb"], token["hex"], token["escape"]
        if code is not None:
            literal(bytes.fromhex(code))
        elif escape is not None:
            if escape not in _ESCAPES:
                raise BadInputError(f"the format contains \\{escape}, which is not an escape", remedy=REMEDY)
            literal(_ESCAPES[escape])
        elif verb == "%":
            literal(b"%" if token["encoding"] is None else os.fsencode(token[0][1:]))
        else:
            pieces.append(_field(verb, token["encoding"]))
    rest = text[position:]
    if rest.endswith(("%", "\\")):
        raise BadInputError(f"the format ends in a single {rest[-1]}", remedy=REMEDY)
    literal(os.fsencode(rest))
    return tuple(pieces)


def _field(verb: str, encoding: str | None) -> Field:
    verb = _SAME.get(verb, verb)
    if verb not in _WRITTEN_VERBS:
        raise BadInputError(f"the format contains %{verb}, which is not a field", remedy=REMEDY)
    if encoding is not None and (verb not in _ENCODED_VERBS or encoding not in _ENCODINGS):
        raise BadInputError(
            f"the format contains %{verb}{{{encoding}}}, which is not valid",
            remedy="only %k and %v take an encoding, {hex} or {base64}",
        )
    return Field(verb, encoding or "")


# Reading


class RecordReader:
    """Splits input in one format into records, as the input arrives."""

    def __init__(self, pieces: Sequence[Piece], *, key: bytes | None = None, empty_is_null: bool = False) -> None:
        """`key`: the key of all records, if the format has no key. Raises BadInputError for a format that cannot be
        read."""
        _check_readable(pieces)
        *body, last = pieces
        self._end = last if isinstance(last, bytes) else b"\n"
        if not isinstance(last, bytes):
            body.append(last)
        self._head = body[0] if isinstance(body[0], bytes) else b""
        delimiters = [*(each for each in body[1:] if isinstance(each, bytes)), None]
        fields = (each for each in body if isinstance(each, Field))
        self._fields = tuple(zip(fields, delimiters, strict=True))
        self._key = key
        self._empty_is_null = empty_is_null
        self._buffer = bytearray()
        self._searched = 0
        self._number = 0

    def feed(self, data: bytes) -> Iterator[InputRecord | UnreadRecord]:
        """Add input; return the records that are now complete. Raises BadInputError if a record has no end for too
        long."""
        self._buffer += data
        start = 0
        while (end := self._buffer.find(self._end, max(start, self._searched))) >= 0:
            yield self._read(bytes(self._buffer[start:end]))
            start = end + len(self._end)
        del self._buffer[:start]
        # Search the rest only once. The end of a record may be cut between two inputs, so look back by its length.
        self._searched = max(0, len(self._buffer) - len(self._end) + 1)
        if len(self._buffer) > RECORD_BYTES_MAX:
            raise BadInputError(
                f"record {self._number + 1} does not end within {RECORD_BYTES_MAX >> 20} MiB",
                remedy=f"by this format a record ends with {shown_bytes(self._end)}: give another with --format",
            )

    def finish(self) -> Iterator[InputRecord | UnreadRecord]:
        """The last record, which may lack the text that ends a record."""
        if self._buffer:
            yield self._read(bytes(self._buffer))
            self._buffer.clear()

    def _read(self, text: bytes) -> InputRecord | UnreadRecord:
        self._number += 1
        if not text.startswith(self._head):
            return UnreadRecord(self._number, f"it does not begin with {shown_bytes(self._head)}")
        found: dict[str, bytes] = {}
        position = len(self._head)
        for (verb, encoding), delimiter in self._fields:
            end = len(text) if delimiter is None else text.find(delimiter, position)
            if delimiter is not None and end < 0:
                return UnreadRecord(self._number, f"no {shown_bytes(delimiter)} after its {_NAMES[verb]}")
            try:
                found[verb] = _decoded(text[position:end], encoding)
            except (ValueError, binascii.Error):
                return UnreadRecord(self._number, f"its {_NAMES[verb]} is not {encoding}")
            position = end + len(delimiter or b"")
        try:
            return self._record(found)
        except ValueError as error:
            return UnreadRecord(self._number, str(error))

    def _record(self, found: Mapping[str, bytes]) -> InputRecord:
        value: bytes | None = found.get("v", b"")
        return InputRecord(
            number=self._number,
            key=found.get("k", self._key),
            value=None if self._empty_is_null and not value else value,
            headers=_read_headers(found.get("h", b"")),
            partition=_read_number(found, "p", 2**31 - 1),
            timestamp_ms=_read_number(found, "T", _INT64_MAX),
        )


_NAMES: Mapping[str, str] = {"k": "key", "v": "value", "h": "headers", "p": "partition", "T": "timestamp"}


def _check_readable(pieces: Sequence[Piece]) -> None:
    fields = [each for each in pieces if isinstance(each, Field)]
    if not fields:
        raise BadInputError("the format contains no field", remedy=REMEDY)
    seen: set[str] = set()
    for each in fields:
        if each.verb not in _READ_VERBS:
            raise BadInputError(f"%{each.verb} works only for output, not for input", remedy=REMEDY)
        if each.verb in seen:
            raise BadInputError(f"the format contains %{each.verb} twice", remedy=REMEDY)
        seen.add(each.verb)
    for first, second in pairwise(pieces):
        if isinstance(first, Field) and isinstance(second, Field):
            raise BadInputError(
                f"the format has no text between %{first.verb} and %{second.verb} that ends %{first.verb}",
                remedy=REMEDY,
            )


def _decoded(data: bytes, encoding: str) -> bytes:
    if encoding == "hex":
        return bytes.fromhex(data.decode("ascii"))
    if encoding == "base64":
        return base64.b64decode(data, validate=True)
    return data


def parse_header(text: bytes) -> tuple[str, bytes]:
    """Read NAME=VALUE. The value may contain "=". Raises ValueError."""
    name, equals, value = text.partition(b"=")
    if not equals or not name:
        raise ValueError(f"header {shown_bytes(text)} is not NAME=VALUE")
    try:
        return name.decode(), value
    except UnicodeDecodeError:
        raise ValueError(f"the name of header {shown_bytes(text)} is not UTF-8") from None


def _read_headers(text: bytes) -> Headers:
    return tuple(parse_header(each) for each in text.split(b",")) if text else ()


def _read_number(found: Mapping[str, bytes], verb: str, most: int) -> int | None:
    text = found.get(verb)
    if text is None:
        return None
    if not re.fullmatch(rb"[0-9]{1,19}", text) or int(text) > most:
        raise ValueError(f"its {_NAMES[verb]} is {shown_bytes(text)}, which is not a number from 0 to {most}")
    return int(text)


# Writing


def render(pieces: Sequence[Piece], record: OutputRecord, *, for_terminal: bool = False) -> bytes:
    """The record in this format; null is written as nothing. `for_terminal`: escape control characters."""
    parts: list[bytes] = []
    for piece in pieces:
        if isinstance(piece, bytes):
            parts.append(piece)
            continue
        data = _RENDERED[piece.verb](record)
        if piece.encoding == "hex":
            data = data.hex().encode()
        elif piece.encoding == "base64":
            data = base64.b64encode(data)
        elif for_terminal:
            data = safe_text(data, keep="\n\t").encode()
        parts.append(data)
    return b"".join(parts)


def _length(data: bytes | None) -> bytes:
    return b"-1" if data is None else b"%d" % len(data)


_RENDERED: Mapping[str, Callable[[OutputRecord], bytes]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp_ms,
    "D": lambda record: time_text(record.timestamp_ms).encode(),
    "k": lambda record: record.key or b"",
    "v": lambda record: record.value or b"",
    "K": lambda record: _length(record.key),
    "V": lambda record: _length(record.value),
    "h": lambda record: b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers),
}


def json_record(record: OutputRecord) -> dict[str, object]:
    """The record as a JSON object. Bytes that are not UTF-8 are under `key_base64` and `value_base64`."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **_json_bytes("key", record.key),
        **_json_bytes("value", record.value),
        "headers": [{"name": name, **_json_bytes("value", value)} for name, value in record.headers],
    }


def _json_bytes(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


NULL = "∅"
HEX_BYTES_SHOWN = 32


def readable(record: OutputRecord, *, with_topic: bool) -> str:
    """One line for people: place, time, key, value, headers."""
    place = f"{record.partition}@{record.offset}"
    line = [f"{record.topic} {place}" if with_topic else place, time_text(record.timestamp_ms)]
    if record.key is not None:
        line.append(f"{shown_field(record.key)} =")
    line.append(shown_field(record.value))
    if record.headers:
        line.append("[" + ", ".join(f"{safe_text(n.encode())}: {shown_field(v)}" for n, v in record.headers) + "]")
    return "  ".join(line)


def shown_field(data: bytes | None) -> str:
    """Text as it is, other bytes as their first hexadecimal digits, null as ∅."""
    if data is None:
        return NULL
    try:
        data.decode()
    except UnicodeDecodeError:
        more = f"… ({len(data):,} bytes)" if len(data) > HEX_BYTES_SHOWN else ""
        return f"0x{data[:HEX_BYTES_SHOWN].hex()}{more}"
    return safe_text(data)


def safe_text(data: bytes, *, keep: str = "") -> str:
    """UTF-8 with every character escaped that is not printable; bytes that are not UTF-8 become \\xHH."""
    return "".join(
        each if each in keep or each.isprintable() else each.encode("unicode_escape").decode()
        for each in data.decode(errors="backslashreplace")
    )


def shown_bytes(data: bytes) -> str:
    """The bytes as text in quotes, for messages."""
    return f"'{safe_text(data)}'"


def time_text(time_ms: int) -> str:
    """For example "2026-01-31T12:00:00.000Z"; "-" for a time below zero."""
    if time_ms < 0:
        return "-"
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    except (OverflowError, ValueError, OSError):  # clients may stamp records with any 64-bit number
        return f"{time_ms} ms"
