"""Every message of every version, compared byte for byte with two other implementations of the protocol.

kio and kafka-python both derive from Kafka's own definitions; our tables do not. Each of them reads the bytes that we
wrote, must see the same value in the field of the same name, and writes the same bytes.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib
import inspect
import io
import re
import tracemalloc
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from tests.fixtures.chance import examples
from tests.property.message_strategies import CASES, case_id, fullest, messages
from wire.compiler.compile import decode, encode
from wire.compiler.decoder_source import DecoderSource
from wire.errors import MalformedMessageError
from wire.schema import Message, Struct, message_table

SOME = settings(
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
EVERY_MESSAGE = pytest.mark.parametrize("message_class", list(dict(CASES)), ids=case_id)


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def kio_class(message_class: type[Message], version: int) -> Any | None:
    kind = message_table(message_class).kind
    api = snake_case(message_class.__name__.removesuffix(kind.capitalize()))
    try:
        module = importlib.import_module(f"kio.schema.{api}.v{version}.{kind}")
    except ModuleNotFoundError:
        return None
    return getattr(module, message_class.__name__)


def kafka_python_classes() -> dict[str, Any]:
    with warnings.catch_warnings(
        action="ignore", category=DeprecationWarning
    ):  # it still reads its resources through the old interface
        modules = [
            importlib.import_module(f"kafka.protocol.{name}")
            for name in ("admin", "consumer", "metadata", "producer", "sasl")
        ]
        base = importlib.import_module("kafka.protocol.api_message").ApiMessage
    return {
        name: found
        for module in modules
        for name, found in inspect.getmembers(module, inspect.isclass)
        if issubclass(found, base)
    }


KAFKA_PYTHON = kafka_python_classes()
UNKNOWN_TO_KAFKA_PYTHON = {
    f"{name}{kind}"
    for name in (
        "CreateDelegationToken",
        "RenewDelegationToken",
        "ExpireDelegationToken",
        "DescribeDelegationToken",
        "UnregisterBroker",
    )
    for kind in ("Request", "Response")
}


def assert_same(ours: Any, theirs: Any, version: int, their_names: Callable[[str], list[str]], path: str = "") -> None:
    """Compare field by field; `their_names` gives the names that the oracle may have for one of our fields."""
    if isinstance(ours, Struct):
        for row in type(ours).wire_table.fields:
            if version not in row.versions or (row.tag is not None and getattr(ours, row.name) is None):
                continue  # a tagged struct that is not on the wire: the oracle may have one with defaults
            name = next(name for name in their_names(row.name) if hasattr(theirs, name))
            assert_same(getattr(ours, row.name), getattr(theirs, name), version, their_names, f"{path}.{row.name}")
    elif isinstance(ours, list):
        assert theirs is not None, path
        assert len(ours) == len(theirs), path
        for index, (our_item, their_item) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(our_item, their_item, version, their_names, f"{path}[{index}]")
    else:
        assert ours == plain(theirs, ours), path


def plain(value: object, ours: object) -> object:
    """The value without the types that the oracles wrap it in."""
    match value:
        case datetime.timedelta():
            return value // datetime.timedelta(milliseconds=1)
        case datetime.datetime():
            return (value - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(milliseconds=1)
        case set():  # a set of bit positions
            return int.from_bytes(sum(1 << bit for bit in value).to_bytes(4), signed=True)
        case None if ours == -(2**31):
            return ours
        case None if isinstance(ours, UUID):
            return UUID(int=0)
        case None if ours == -1:
            return -1  # a time that is not set
        case _:
            return value


def versions_of(message_class: type[Message]) -> list[int]:
    return [version for known, version in CASES if known is message_class]


@functools.cache
def layouts_of(message_class: type[Message]) -> list[int]:
    """One version for each layout of the message: the same code reads the other versions."""
    table = message_table(message_class)
    found: dict[object, int] = {}
    for version in versions_of(message_class):
        source = DecoderSource(table, version)
        found[source.text.replace(f"{message_class.__name__} v{version}", ""), tuple(source.names.items())] = version
    return sorted(found.values())


@EVERY_MESSAGE
def test_other_implementations_read_the_same_values_and_write_the_same_bytes(message_class: type[Message]) -> None:
    for version in versions_of(message_class):
        assert_others_agree(fullest(message_class, version), version)


@EVERY_MESSAGE
@SOME
@given(data=st.data())
def test_other_implementations_agree_on_any_values(message_class: type[Message], data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(versions_of(message_class)))
    assert_others_agree(data.draw(messages(message_class, version)), version)


def assert_others_agree(message: Message, version: int) -> None:
    ours = b"".join(encode(message, version))

    assert decode(type(message), version, memoryview(ours)) == (message, len(ours))
    assert_kafka_python_agrees(message, version, ours)
    if oracle := kio_class(type(message), version):
        assert_kio_agrees(oracle, message, version, ours)


def assert_kio_agrees(oracle: Any, message: Message, version: int, ours: bytes) -> None:
    entity, read_bytes = entity_reader(oracle)(ours, 0)
    theirs = io.BytesIO()
    entity_writer(oracle)(theirs, entity)

    assert read_bytes == len(ours)
    assert theirs.getvalue() == ours
    assert_same(message, entity, version, lambda name: [name, name.removesuffix("_ms")])


def assert_kafka_python_agrees(message: Message, version: int, ours: bytes) -> None:
    name = type(message).__name__
    if name in UNKNOWN_TO_KAFKA_PYTHON:
        return
    oracle = KAFKA_PYTHON[name]
    # Its own ApiVersionsResponse.decode takes any answer with an error for version 0, so call the inherited one.
    decoded = super(oracle, oracle).decode(ours, version=version)
    decoded._header = None  # without this a decoded message cannot be encoded

    assert bytes(decoded.encode(version=version)) == ours
    assert_same(message, decoded, version, lambda name: [name, re.sub("^(topic|cluster)_(authorized)", r"\2", name)])


@EVERY_MESSAGE
def test_kio_knows_most_versions(message_class: type[Message]) -> None:
    without_oracle = {version for known, version in CASES if known is message_class and not kio_class(known, version)}

    assert without_oracle <= {
        "ProduceRequest": {0, 1, 2},
        "ProduceResponse": {0, 1, 2},
        "ListOffsetsRequest": {0},
        "ListOffsetsResponse": {0},
        "DescribeConfigsRequest": {0},
        "DescribeConfigsResponse": {0},
        "OffsetCommitRequest": {0, 1},
        "OffsetCommitResponse": {0, 1},
        "OffsetFetchRequest": {0},
        "OffsetFetchResponse": {0},
        "OffsetForLeaderEpochRequest": {0, 1},
        "OffsetForLeaderEpochResponse": {0, 1},
    }.get(message_class.__name__, set())


@EVERY_MESSAGE
@SOME
@given(data=st.data())
def test_bytes_that_are_not_the_message_are_refused_and_nothing_worse_happens(
    message_class: type[Message], data: st.DataObject
) -> None:
    version = data.draw(st.sampled_from(layouts_of(message_class)))
    good = bytearray().join(encode(fullest(message_class, version), version))
    cut = data.draw(st.integers(0, len(good)))
    noise = data.draw(st.binary(max_size=12))
    kept = data.draw(st.integers(0, len(good)))
    for bad in (noise, good[:cut], good[:cut] + noise, good[:cut] + noise + good[kept:]):
        try:
            _, end = decode(message_class, version, memoryview(bad))
        except MalformedMessageError:
            continue
        assert 0 <= end <= len(bad)


@EVERY_MESSAGE
def test_every_truncation_is_refused(message_class: type[Message]) -> None:
    for version in layouts_of(message_class):
        good = b"".join(encode(fullest(message_class, version), version))
        for size in range(len(good)):
            with pytest.raises(MalformedMessageError):
                decode(message_class, version, memoryview(good)[:size])


COMPACT_LIES = (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f")
LIES = (b"\x7f\xff\xff\xff", b"\x7f\xff", b"\x80\x00\x00\x00")


@EVERY_MESSAGE
def test_a_length_that_lies_allocates_nothing(message_class: type[Message], monkeypatch: pytest.MonkeyPatch) -> None:
    for version in layouts_of(message_class):
        good = b"".join(encode(fullest(message_class, version), version))
        lies = COMPACT_LIES if version in message_table(message_class).flexible else LIES
        decode(message_class, version, memoryview(good))  # compiles the class's code
        decoder = cast(FunctionType, message_class.wire_decoders[version])
        # tracemalloc looks up the line of every allocation, which takes long in a function with a long table of lines.
        without_lines = FunctionType(decoder.__code__.replace(co_linetable=b""), decoder.__globals__)
        monkeypatch.setitem(message_class.wire_decoders, version, without_lines)
        tracemalloc.start(1)
        try:
            for position in range(len(good)):
                for lie in lies:
                    bad = good[:position] + lie + good[position + len(lie) :]
                    with contextlib.suppress(MalformedMessageError):
                        decode(message_class, version, memoryview(bad))
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert peak_bytes < 200_000, f"version {version}"
