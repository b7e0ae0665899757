"""Decoders and encoders, compiled from the tables of `wire.schema` when a version is first used.

A decoder reads bytes from a socket: it raises MalformedMessageError whenever they are not the message. An encoder
writes our own values: it raises EncodingError when a value does not fit, which is a bug of ours.

A message of very many elements takes longer than one turn of an event loop may. Both can be made in steps, of some
milliseconds each.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterable
from functools import cache
from typing import Any, TypeAlias, TypeVar

from wire.compiler.decoder_source import DecoderSource
from wire.compiler.encoder_source import EncoderSource
from wire.errors import EncodingError, MalformedMessageError
from wire.schema import Message, Octets, Struct, message_table

M = TypeVar("M", bound=Message)
T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""Pauses after each step, and returns the result."""


def at_once(steps: Steps[T]) -> T:
    """The result of all steps."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return ended.value


def decode(message_class: type[M], version: int, buffer: memoryview, position: int = 0) -> tuple[M, int]:
    """Read a message that starts at `position`; returns it and the position after it.

    `records` and `bytes` fields are slices of `buffer`, not copies: they keep it alive. `buffer` must be contiguous and
    of format "B". Raises MalformedMessageError, and nothing else, whatever the bytes are.
    """
    decoder = message_class.wire_decoders.get(version) or _decoder(message_class, version)
    try:
        return decoder(buffer, position)
    except _UNREADABLE as error:
        raise _malformed(message_class, version, error) from error


def decode_in_steps(
    message_class: type[M], version: int, buffer: memoryview, position: int = 0
) -> Steps[tuple[M, int]]:
    """The same, in steps."""
    decoder = _step_decoder(message_class, version)
    try:
        return (yield from decoder(buffer, position))
    except _UNREADABLE as error:
        raise _malformed(message_class, version, error) from error


# The generated code does not check for the end before each field: running off it raises one of the first two.
_UNREADABLE = (struct.error, IndexError, UnicodeDecodeError)


def _malformed(message_class: type[Message], version: int, error: Exception) -> MalformedMessageError:
    if isinstance(error, UnicodeDecodeError):
        return MalformedMessageError(f"{message_class.__name__} v{version}: a string is not UTF-8: {error}")
    return MalformedMessageError(f"{message_class.__name__} v{version} ends early: {error}")


def encode(message: Message, version: int, head: bytearray | None = None) -> list[Octets]:
    """Write a message as a list of buffers, to be sent one after the other.

    The first one is `head` (the header that the caller has begun) if given. Record data goes into the list uncopied;
    everything else is in bytearrays of ours. Raises EncodingError.
    """
    head = bytearray() if head is None else head
    parts = encode_short(message, version, head)
    return at_once(encode_in_steps(message, version, head)) if parts is None else parts


def encode_short(message: Message, version: int, head: bytearray) -> list[Octets] | None:
    """The same for a message of no more elements than a step may have; None for another one."""
    message_class = type(message)
    encoder = message_class.wire_encoders.get(version) or _encoder(message_class, version)
    begun = len(head)
    try:
        parts = encoder(message, head)
    except _UNWRITABLE as error:
        raise _unwritable(message_class, version, error) from error
    if parts is None:
        del head[begun:]
    return parts


def encode_in_steps(message: Message, version: int, head: bytearray) -> Steps[list[Octets]]:
    """The same as `encode`, in steps; the message must not change until the last."""
    message_class = type(message)
    encoder = _step_encoder(message_class, version)
    try:
        return (yield from encoder(message, head))
    except _UNWRITABLE as error:
        raise _unwritable(message_class, version, error) from error


_UNWRITABLE = (struct.error, AttributeError, TypeError, UnicodeEncodeError)


def _unwritable(written: type[Struct], version: int, error: Exception) -> EncodingError:
    return EncodingError(f"{written.__name__} v{version} cannot be written: {error}")


def encode_elements(
    message_class: type[Message], version: int, element_class: type[Struct], elements: Iterable[Struct]
) -> bytes:
    """Write structs as they stand in an array of this version of the message, without the array's count.

    The result makes an EncodedElements: elements that many responses share are then encoded once. Raises EncodingError.
    """
    encoder = _element_encoder(message_class, version, element_class)
    try:
        return b"".join(encoder(elements, bytearray()))
    except _UNWRITABLE as error:
        raise _unwritable(element_class, version, error) from error


@cache
def _element_encoder(
    message_class: type[Message], version: int, element_class: type[Struct]
) -> Callable[[Iterable[Struct], bytearray], list[Octets]]:
    _check_version(message_class, version)
    source = EncoderSource(message_table(message_class), version, element_class.wire_table)
    return _compile("encode", source.text, source.names, message_class, version)


def _decoder(message_class: type[Message], version: int) -> Callable[[memoryview, int], tuple[Any, int]]:
    table = message_table(message_class)
    _check_version(message_class, version)
    source = DecoderSource(table, version)
    decoder = _compile("decode", source.text, source.names, message_class, version)
    message_class.wire_decoders[version] = decoder
    return decoder


@cache
def _step_decoder(message_class: type[Message], version: int) -> Callable[[memoryview, int], Steps[tuple[Any, int]]]:
    _check_version(message_class, version)
    source = DecoderSource(message_table(message_class), version, in_steps=True)
    return _compile("decode", source.text, source.names, message_class, version)


@cache
def _step_encoder(message_class: type[Message], version: int) -> Callable[[Any, bytearray], Steps[list[Octets]]]:
    _check_version(message_class, version)
    source = EncoderSource(message_table(message_class), version, in_steps=True)
    return _compile("encode", source.text, source.names, message_class, version)


def _encoder(message_class: type[Message], version: int) -> Callable[[Any, bytearray], list[Octets] | None]:
    table = message_table(message_class)
    _check_version(message_class, version)
    source = EncoderSource(table, version)
    encoder = _compile("encode", source.text, source.names, message_class, version)
    message_class.wire_encoders[version] = encoder
    return encoder


def _check_version(message_class: type[Message], version: int) -> None:
    if version not in message_table(message_class).versions:
        raise EncodingError(f"{message_class.__name__} is not declared for version {version}")


def _compile(function: str, text: str, names: dict[str, Any], message_class: type[Message], version: int) -> Any:
    code = compile(text, f"<{function} {message_class.__name__} v{version}>", "exec")
    exec(code, names)  # noqa: S102 - the text is made from our own tables alone
    return names[function]
