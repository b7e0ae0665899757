"""Decoders and encoders, compiled from the tables of `wire.schema` when a version is first used.

A decoder reads bytes from a socket: it raises MalformedMessageError whenever they are not the message. An encoder
writes our own values: it raises EncodingError when a value does not fit, which is a bug of ours.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeVar

from wire.compiler.decoder_source import DecoderSource
from wire.compiler.encoder_source import EncoderSource
from wire.errors import EncodingError, MalformedMessageError
from wire.schema import Message, Octets, Struct, message_table

M = TypeVar("M", bound=Message)


def decode(message_class: type[M], version: int, buffer: memoryview, position: int = 0) -> tuple[M, int]:
    """Read a message that starts at `position`; returns it and the position after it.

    `records` and `bytes` fields are slices of `buffer`, not copies: they keep it alive. `buffer` must be contiguous and
    of format "B". Raises MalformedMessageError, and nothing else, whatever the bytes are.
    """
    decoder = message_class.wire_decoders.get(version) or _decoder(message_class, version)
    try:
        return decoder(buffer, position)
    # The generated code does not check for the end before each field: running off it raises one of these.
    except (struct.error, IndexError) as error:
        raise MalformedMessageError(f"{message_class.__name__} v{version} ends early: {error}") from error
    except UnicodeDecodeError as error:
        raise MalformedMessageError(f"{message_class.__name__} v{version}: a string is not UTF-8: {error}") from error


def encode(message: Message, version: int, head: bytearray | None = None) -> list[Octets]:
    """Write a message as a list of buffers, to be sent one after the other.

    The first one is `head` (the header that the caller has begun) if given. Record data goes into the list uncopied;
    everything else is in bytearrays of ours. Raises EncodingError.
    """
    message_class = type(message)
    encoder = message_class.wire_encoders.get(version) or _encoder(message_class, version)
    try:
        return encoder(message, bytearray() if head is None else head)
    except (struct.error, AttributeError, TypeError, UnicodeEncodeError) as error:
        raise EncodingError(f"{message_class.__name__} v{version} cannot be written: {error}") from error


def encode_elements(
    message_class: type[Message], version: int, element_class: type[Struct], elements: Iterable[Struct]
) -> bytes:
    """Write structs as they stand in an array of this version of the message, without the array's count.

    The result makes an EncodedElements: elements that many responses share are then encoded once. Raises EncodingError.
    """
    encoder = _element_encoder(message_class, version, element_class)
    try:
        return b"".join(encoder(elements, bytearray()))
    except (struct.error, AttributeError, TypeError, UnicodeEncodeError) as error:
        raise EncodingError(f"{element_class.__name__} v{version} cannot be written: {error}") from error


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


def _encoder(message_class: type[Message], version: int) -> Callable[[Any, bytearray], list[Octets]]:
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
