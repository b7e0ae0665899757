"""The parts of the protocol's primitive types that are too rare or too long to be compiled in line.

Reading functions take (buffer, position) and return (value, next position). They check lengths against the buffer and
raise MalformedMessageError, or IndexError where the buffer ends; `wire.compiler.compile` turns the latter into the
former. Sizes are unsigned varints of at most five bytes (KIP-482); a string is at most 32767 bytes long (Kafka's
int16).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast
from uuid import UUID

from wire.errors import EncodingError, MalformedMessageError
from wire.schema import ZERO_UUID, Octets, RecordData

STRING_BYTES_MAX: Final = 32767
VARINT_BYTES_MAX: Final = 5
SECTION_FIELDS_MAX: Final = 1_000
"""The most unknown tagged fields that may stand in one place, which are skipped in one go."""

_ZERO_UUID_BYTES: Final = bytes(16)


def read_uvarint(buffer: memoryview, position: int) -> tuple[int, int]:
    """Read an unsigned varint of 32 bits."""
    value = shift = 0
    for index in range(position, position + VARINT_BYTES_MAX):
        byte = buffer[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            # Five bytes hold 35 bits.
            if value > 0xFFFFFFFF:
                raise MalformedMessageError(f"varint at byte {position} does not fit in 32 bits")
            return value, index + 1
        shift += 7
    raise MalformedMessageError(f"varint at byte {position} is longer than {VARINT_BYTES_MAX} bytes")


def read_compact_length(buffer: memoryview, position: int) -> tuple[int, int]:
    """Read the length of a compact type when it takes more than one byte."""
    value = buffer[position] & 0x7F
    byte = buffer[position + 1]
    if byte < 0x80:
        return (value | byte << 7) - 1, position + 2
    value |= (byte & 0x7F) << 7
    byte = buffer[position + 2]
    if byte < 0x80:
        return (value | byte << 14) - 1, position + 3
    value, position = read_uvarint(buffer, position)
    return value - 1, position


def skip_tagged_fields(buffer: memoryview, position: int, budget: int = SECTION_FIELDS_MAX) -> tuple[int, int]:
    """Step over a section of tagged fields that we do not know (KIP-482).

    Returns the position after it and the rest of `budget`.
    """
    count, position = read_uvarint(buffer, position)
    budget -= count
    if budget < 0 or count > SECTION_FIELDS_MAX:
        raise MalformedMessageError("more elements and tagged fields than one message may have")
    last_tag = -1
    for _ in range(count):
        last_tag, _, position = read_tag(buffer, position, last_tag)
    return position, budget


def read_tag(buffer: memoryview, position: int, last_tag: int) -> tuple[int, int, int]:
    """Read the head of one tagged field: (tag, position of its value, position after it).

    Tags must ascend, as KIP-482 asks and Kafka's `Schema.read` checks, so none can occur twice.
    """
    tag, value_position = read_uvarint(buffer, position)
    if tag <= last_tag:
        raise MalformedMessageError(f"tagged field {tag} at byte {position} comes after tag {last_tag}")
    size, value_position = read_uvarint(buffer, value_position)
    stop = value_position + size
    if stop > len(buffer):
        raise MalformedMessageError(f"tagged field {tag} of {size} bytes goes beyond the end of the message")
    return tag, value_position, stop


def uuid_from(octets: bytes) -> UUID:
    return ZERO_UUID if octets == _ZERO_UUID_BYTES else UUID(bytes=octets)


def uvarint(value: int) -> bytes:
    """Write an unsigned varint of 32 bits."""
    if not 0 <= value <= 0xFFFFFFFF:
        raise EncodingError(f"{value} does not fit in an unsigned varint of 32 bits")
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def cut_text(content: bytes) -> bytes:
    """The start of a text in UTF-8 that is too long for a string."""
    return content[:STRING_BYTES_MAX].decode(errors="ignore").encode()


def octets_size(content: RecordData) -> int:
    """The size of a buffer, or of a sequence of them, in bytes."""
    if isinstance(content, memoryview):
        return content.nbytes
    if isinstance(content, (bytes, bytearray)):
        return len(content)
    return sum(octets_size(part) for part in content)


def octets_parts(content: RecordData) -> Sequence[Octets]:
    """The buffers of a records field, uncopied."""
    return cast("Sequence[Octets]", (content,) if isinstance(content, (bytes, bytearray, memoryview)) else content)


@dataclass(frozen=True, slots=True)
class NumberLayouts:
    """Ready-made functions for short arrays of one type of number, by their count."""

    packs: tuple[Callable[..., bytes], ...]
    unpacks: tuple[Callable[[memoryview, int], tuple[Any, ...]], ...]

    @classmethod
    def of(cls, code: str) -> NumberLayouts:
        forms = [struct.Struct(f">{count}{code}") for count in range(_READY_COUNTS)]
        return cls(tuple(form.pack for form in forms), tuple(form.unpack_from for form in forms))


_READY_COUNTS: Final = 17
"""Counts 0 to 16 have ready-made functions; a longer array builds its format at each call."""
NUMBER_LAYOUTS: Final = {code: NumberLayouts.of(code) for code in "?bhHiIqd"}


def read_numbers(code: str, count: int, buffer: memoryview, position: int) -> list[Any]:
    """Read `count` numbers of one fixed width. The caller has checked that the buffer holds them."""
    return list(struct.unpack_from(f">{count}{code}", buffer, position))


def number_bytes(code: str, numbers: Sequence[Any]) -> bytes:
    """Write numbers of one fixed width, without a count."""
    return struct.pack(f">{len(numbers)}{code}", *numbers)
