"""The messages between Terraform and a provider: protobuf, and in it values as MessagePack.

This module holds only as much as the stand-in provider needs. A message is written as (field number, value) pairs and
read as a dict of lists. The numbers are those of Terraform's `tfplugin5.proto`; `provider.py` explains them. A value is
plain Python (None, bool, int, float, str, list, dict), or UNKNOWN for a value that a plan cannot know yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs] - it has none

Value: TypeAlias = "bool | int | float | str | Unknown | list[Value] | dict[str, Value] | None"
FieldValue: TypeAlias = "bool | int | str | bytes"
Fields: TypeAlias = "dict[int, list[int | bytes]]"

VARINT: Final = 0
LENGTH: Final = 2
UNKNOWN_EXTENSIONS: Final = (0, 12)  # type 12 carries partial knowledge of an unknown value


unpack = cast("Callable[..., object]", msgpack.unpackb)  # pyright: ignore[reportUnknownMemberType]
pack = cast("Callable[..., bytes]", msgpack.packb)  # pyright: ignore[reportUnknownMemberType]


class Unknown:
    """The type of UNKNOWN alone."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = Unknown()


class DamagedMessage(Exception):
    """The bytes are not a message of the form that Terraform sends."""


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def message(*fields: tuple[int, FieldValue]) -> bytes:
    """Fields in the order given; a repeated field is given as often as it repeats. Zeros, empty strings and False are
    left out, as in protobuf 3. Bytes are written even if empty, because an empty message tells that it exists.
    """
    parts: list[bytes] = []
    for number, value in fields:
        if isinstance(value, int):
            if value:
                parts += [varint(number << 3 | VARINT), varint(int(value))]
        elif isinstance(value, bytes) or value:
            body = value if isinstance(value, bytes) else value.encode()
            parts += [varint(number << 3 | LENGTH), varint(len(body)), body]
    return b"".join(parts)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data):
        number |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return number, at
        shift += 7
    raise DamagedMessage("a number ends before its last byte")


def parsed(data: bytes) -> Fields:
    """Raises DamagedMessage."""
    fields: Fields = {}
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        value: int | bytes
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = read_varint(data, at)
        elif kind == LENGTH:
            length, at = read_varint(data, at)
            value, at = data[at : at + length], at + length
            # A slice past the end is no error in Python, only shorter.
            if at > len(data):
                raise DamagedMessage(f"field {number} is longer than its message")
        else:
            raise DamagedMessage(f"field {number} is of a kind ({kind}) that the protocol does not use")
        fields.setdefault(number, []).append(value)
    return fields


def text_field(fields: Fields, number: int) -> str:
    return bytes_field(fields, number).decode()


def bytes_field(fields: Fields, number: int) -> bytes:
    """Empty if the field is absent."""
    value = fields.get(number, [b""])[-1]
    if isinstance(value, int):
        raise DamagedMessage(f"field {number} is a number")
    return value


def extension(code: int, _: bytes) -> Unknown:
    if code not in UNKNOWN_EXTENSIONS:
        raise DamagedMessage(f"a value has the extension type {code}")
    return UNKNOWN


def decoded(dynamic_value: bytes) -> Value:
    """The value in a DynamicValue message. Raises DamagedMessage."""
    packed = bytes_field(parsed(dynamic_value), 1)
    try:
        return cast("Value", unpack(packed, ext_hook=extension))
    except ValueError as error:
        raise DamagedMessage(f"a value could not be read: {error}") from error


def plain(value: Any) -> Any:
    if isinstance(value, Unknown):
        return msgpack.ExtType(0, b"\0")
    raise TypeError(f"a {type(value).__name__} is no Terraform value")


def encoded(value: Value) -> bytes:
    """A DynamicValue message."""
    packed = pack(value, default=plain)
    return message((1, packed))
