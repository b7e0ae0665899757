"""Kafka messages declared as dataclasses that carry their own wire table.

A message class is written once for all versions; each field names the versions that hold it:

    @struct
    class MetadataRequestTopic(Struct):
        topic_id: UUID = field(uuid, "10+", ignorable=True)
        name: str | None = field(string, "0+", nullable="10+", default="")

    @message(api_key=3, kind="request", versions="0-12", flexible="9+")
    class MetadataRequest(Message):
        topics: list[MetadataRequestTopic] | None = field(array(MetadataRequestTopic), "0+", nullable="1+")

`wire/compiler/` turns the tables into a decoder and an encoder per version. Class names are Kafka's, field names are
Kafka's in snake_case, every field has Kafka's default, and all are keyword arguments. Version ranges are written as
Kafka writes them: "0+", "3-9", "4" and "" for none.

One difference: a tagged struct that is not on the wire reads as None, where Kafka gives a struct of defaults. This
saves three objects that nobody reads for each partition of a Fetch response.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import (
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    dataclass_transform,
    overload,
)
from uuid import UUID

T = TypeVar("T")
S = TypeVar("S", bound="Struct")
M = TypeVar("M", bound="Message")

ZERO_UUID = UUID(int=0)
ELEMENTS_MAX: Final = 250_000
"""The most elements of one request; no client needs more. 50,000 partitions, each of a topic of its own with three
replicas, make 200,000."""
PARTITIONS_ELEMENTS_MAX: Final = 120_000
"""The most elements of one group or admin request. 50,000 partitions, each of a topic of its own, make 100,000."""
PRODUCE_ELEMENTS_MAX: Final = 60_000
"""The most elements of one Produce request: 30,000 batches, each for a topic of its own. 1 MiB, the most that common
producers send at once unless they are told otherwise, has room for 15,000."""
PROOF_ELEMENTS_MAX: Final = 100
"""The most of a request that a client sends before it has proved who it is. These have no arrays, so it bounds their
tagged fields: 64 KiB of them took 16 ms."""

Octets: TypeAlias = bytes | bytearray | memoryview
RecordData: TypeAlias = Octets | Sequence[Octets]
"""The type of a `records` field that is written; one that is read is always one memoryview of the frame."""


@dataclass(frozen=True, slots=True)
class EncodedElements:
    """The elements of an array of structs, already in bytes, without a count. A writer may put it into a field instead
    of a list.

    `wire.compiler.compile.encode_elements` makes them for one version; they are sent as they are, not copied.
    """

    count: int
    parts: Sequence[Octets]


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Versions `low` to `high`, both included; empty when `low > high`."""

    low: int
    high: int

    NO_LIMIT: ClassVar[int] = 32767

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        """Read Kafka's spelling: "0+", "3-9", "4", "" (none)."""
        if not text:
            return cls(1, 0)
        if text.endswith("+"):
            return cls(int(text[:-1]), cls.NO_LIMIT)
        low, _, high = text.partition("-")
        return cls(int(low), int(high or low))

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high

    def __iter__(self) -> Any:
        return iter(range(self.low, self.high + 1))


class WireType(Generic[T]):
    """A type on the wire; `T` is the type of the field in Python."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Fixed(WireType[T]):
    """A value of fixed width: `code` is its letter in the struct module."""

    name: str
    code: str
    size: int
    default: T


@dataclass(frozen=True, slots=True)
class Variable(WireType[T]):
    """Length and content: a string, bytes or records."""

    name: Literal["string", "bytes", "records"]
    default: T | None


@dataclass(frozen=True, slots=True)
class Nested(WireType[T]):
    """A struct inside a struct."""

    struct_class: type[Struct]


@dataclass(frozen=True, slots=True)
class Array(WireType[T]):
    """A count and as many elements."""

    element: WireType[Any]


boolean: Fixed[bool] = Fixed("bool", "?", 1, False)
int8: Fixed[int] = Fixed("int8", "b", 1, 0)
int16: Fixed[int] = Fixed("int16", "h", 2, 0)
uint16: Fixed[int] = Fixed("uint16", "H", 2, 0)
int32: Fixed[int] = Fixed("int32", "i", 4, 0)
uint32: Fixed[int] = Fixed("uint32", "I", 4, 0)
int64: Fixed[int] = Fixed("int64", "q", 8, 0)
float64: Fixed[float] = Fixed("float64", "d", 8, 0.0)
uuid: Fixed[UUID] = Fixed("uuid", "16s", 16, ZERO_UUID)
string: Variable[str] = Variable("string", "")
octets: Variable[Octets] = Variable("bytes", b"")
records: Variable[RecordData] = Variable("records", None)
batch: Variable[Octets] = Variable("records", None)
"""`records` of a request: as a rule one buffer, never a sequence of them."""


def nested(struct_class: type[S]) -> Nested[S]:
    """The wire type of a field that holds one struct."""
    return Nested(struct_class)


@overload
def array(element: type[S]) -> Array[list[S]]: ...
@overload
def array(element: WireType[T]) -> Array[list[T]]: ...
def array(element: type[Struct] | WireType[Any]) -> Array[Any]:
    """The wire type of a list of structs or of primitives."""
    return Array(Nested(element) if isinstance(element, type) else element)


@dataclass(frozen=True, slots=True)
class FieldTable:
    """One row of a struct's table."""

    name: str
    type: WireType[Any]
    versions: VersionRange
    nullable: VersionRange
    default: Any
    """An empty tuple stands for an empty list."""
    tag: int | None
    tagged: VersionRange
    ignorable: bool
    """Whether a version without the field drops a value silently, instead of refusing it."""


@dataclass(frozen=True, slots=True)
class StructTable:
    """The rows of one struct, in wire order."""

    struct_class: type[Struct]
    fields: tuple[FieldTable, ...]


@dataclass(frozen=True, slots=True)
class MessageTable(StructTable):
    """The rows of a request or a response."""

    api_key: int
    kind: Literal["request", "response"]
    versions: VersionRange
    flexible: VersionRange
    elements_max: int
    """Bound on array elements and tagged fields together; a request with more is refused. They can be far smaller on
    the wire than as Python objects: without this bound, a frame within its own limit could cost gigabytes of memory
    and hold the event loop for a minute."""


class Struct:
    """Base of everything declared with `@struct` or `@message`."""

    __slots__ = ()
    wire_table: ClassVar[StructTable]


class Message(Struct):
    """Base of everything declared with `@message`. The codecs of each version are compiled on first use."""

    __slots__ = ()
    wire_decoders: ClassVar[dict[int, Callable[[memoryview, int], tuple[Any, int]]]]
    wire_encoders: ClassVar[dict[int, Callable[[Any, bytearray], list[Octets] | None]]]
    """None: more elements than a step may have."""


def message_table(message_class: type[Message]) -> MessageTable:
    return cast("MessageTable", message_class.wire_table)


_TABLE_KEY = "wire"
_UNSET: Any = object()


class FieldOptions(TypedDict, total=False):
    """The keyword arguments of `field` that do not change the type of the field."""

    tag: int | None
    tagged: str
    ignorable: bool
    secret: bool


@overload
def field(
    wire_type: WireType[T], versions: str, *, nullable: str, default: T | None = ..., **options: Unpack[FieldOptions]
) -> T | None: ...
@overload
def field(wire_type: WireType[T], versions: str, *, default: None, **options: Unpack[FieldOptions]) -> T | None: ...
@overload
def field(wire_type: WireType[T], versions: str, *, default: T = ..., **options: Unpack[FieldOptions]) -> T: ...
def field(
    wire_type: WireType[Any],
    versions: str,
    *,
    nullable: str = "",
    default: Any = _UNSET,
    tag: int | None = None,
    tagged: str = "",
    ignorable: bool = False,
    secret: bool = False,
) -> Any:
    """Declare one field.

    Args:
        wire_type: its type on the wire.
        versions: the versions that have the field.
        nullable: the versions in which it may be null.
        default: its value when it is not on the wire; by default zero, "", empty or (records, structs) None.
        tag: its number, if it is a tagged field (KIP-482).
        tagged: the versions in which it is tagged; by default all that have it.
        ignorable: a version without the field drops a value other than the default, instead of refusing it.
        secret: `repr` leaves it out, so that no log and no traceback shows it.
    """
    if default is _UNSET:
        match wire_type:
            case Fixed() | Variable():
                default = cast("Any", wire_type).default
            case Array():
                # A tuple: a list would be shared by all objects of the class.
                default = ()
            case _:
                default = None
    row = FieldTable(
        name="",
        type=wire_type,
        versions=VersionRange.parse(versions),
        nullable=VersionRange.parse(nullable),
        default=default,
        tag=tag,
        tagged=VersionRange.parse((tagged or versions) if tag is not None else ""),
        ignorable=ignorable,
    )
    if default == () and isinstance(wire_type, Array):
        return dataclasses.field(default_factory=cast("Callable[[], list[Any]]", list), metadata={_TABLE_KEY: row})
    return dataclasses.field(default=default, metadata={_TABLE_KEY: row}, repr=not secret)


def _as_dataclass(plain: type[S]) -> tuple[type[S], tuple[FieldTable, ...]]:
    made = dataclass(slots=True, kw_only=True)(plain)
    rows: list[FieldTable] = []
    for column in dataclasses.fields(cast("Any", made)):
        metadata: Mapping[str, Any] = column.metadata
        row: FieldTable = metadata[_TABLE_KEY]
        rows.append(dataclasses.replace(row, name=column.name))
    return made, tuple(rows)


@dataclass_transform(kw_only_default=True)
def struct(plain: type[S]) -> type[S]:
    """Make the class a slotted dataclass with a wire table."""
    made, rows = _as_dataclass(plain)
    made.wire_table = StructTable(made, rows)
    return made


@dataclass_transform(kw_only_default=True)
def message(
    *,
    api_key: int,
    kind: Literal["request", "response"],
    versions: str,
    flexible: str = "",
    elements_max: int = ELEMENTS_MAX,
) -> Callable[[type[M]], type[M]]:
    """Make the class a request or response. `versions` are those that we read and write; `flexible` ones are among them
    (KIP-482).
    """

    def decorate(plain: type[M]) -> type[M]:
        made, rows = _as_dataclass(plain)
        made.wire_table = MessageTable(
            struct_class=made,
            fields=rows,
            api_key=api_key,
            kind=kind,
            versions=VersionRange.parse(versions),
            flexible=VersionRange.parse(flexible),
            elements_max=elements_max,
        )
        made.wire_decoders, made.wire_encoders = {}, {}
        return made

    return decorate
