"""Messages of any API and version, generated from the tables in `wire.messages`."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from tests.fixtures.messages import MESSAGES
from wire.error_codes import ErrorCode
from wire.schema import Array, FieldTable, Fixed, Message, Nested, Struct, Variable, WireType, message_table

CASES: list[tuple[type[Message], int]] = [
    (message_class, version) for message_class in MESSAGES for version in message_table(message_class).versions
]


def case_id(value: object) -> str:
    return value.__name__ if isinstance(value, type) else f"v{value}"


_INTEGERS = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
}
_ERROR_CODES = st.sampled_from([int(code) for code in ErrorCode])
_NEVER_NEGATIVE = {
    "expiry_time_period_ms",
    "expiry_timestamp_ms",
    "issue_timestamp_ms",
    "max_lifetime_ms",
    "max_timestamp_ms",
    "renew_period_ms",
    "session_lifetime_ms",
    "transaction_start_time_ms",
}
"""Times that kio refuses when they are negative, as only refusals of ours are."""
_TIMES_MS = st.just(-1) | st.integers(0, 4_102_444_800_000)  # kio turns these into datetimes and timedeltas
_STRINGS = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(["a" * 126, "a" * 127, "ü" * 200])
_OCTETS = st.binary(max_size=8) | st.sampled_from([bytes(126), bytes(127), bytes(20_000)])
_UUIDS = st.sampled_from([UUID(int=0), UUID("67e55044-10b1-426f-9247-bb680e5fe0c8")]) | st.uuids()
_BOOLEANS = st.booleans()


def _of_type(wire_type: WireType[Any], name: str, version: int) -> st.SearchStrategy[Any]:
    match wire_type:
        case Fixed(name="bool"):
            return _BOOLEANS
        case Fixed(name="uuid"):
            return _UUIDS
        case Fixed(name="int16") if name.endswith("error_code"):
            return _ERROR_CODES
        case Fixed(name="int64") if name in {"log_append_time_ms", "retention_time_ms"}:
            return _TIMES_MS
        case Fixed(name="int64") if name in _NEVER_NEGATIVE:
            return st.integers(0, 4_102_444_800_000)
        case Fixed(name="float64"):
            return st.floats(allow_nan=False)
        case Fixed(name=number):
            return _INTEGERS[number]
        case Variable(name="string"):
            return _STRINGS
        case Variable():
            return _OCTETS
        case Array(element):
            return st.lists(_of_type(element, "", version), max_size=3)
        case Nested(struct_class):
            return messages(struct_class, version)
        case _:
            raise TypeError(wire_type)


def _of_field(row: FieldTable, version: int) -> st.SearchStrategy[Any]:
    values = _of_type(row.type, row.name, version)
    if version in row.nullable or (isinstance(row.type, Nested) and row.tag is not None):
        return st.none() | values
    return values


_made: dict[tuple[type[Struct], int], st.SearchStrategy[Any]] = {}


def messages(struct_class: type[Struct], version: int) -> st.SearchStrategy[Any]:
    """Structs of this class with any value in every field of the version."""
    known = _made.get((struct_class, version))
    if known is None:
        fields = {
            row.name: _of_field(row, version) for row in struct_class.wire_table.fields if version in row.versions
        }
        known = _made[struct_class, version] = st.builds(struct_class, **fields)
    return known


def fullest(struct_class: type[Struct], version: int) -> Any:
    """A struct with a value in every field: arrays have two elements, nothing is null or default."""

    def value(wire_type: WireType[Any], index: int) -> Any:
        match wire_type:
            case Fixed(name="bool"):
                return True
            case Fixed(name="uuid"):
                return UUID(int=index + 1)
            case Fixed():
                return index + 1
            case Variable(name="string"):
                return f"s{index}"
            case Variable():
                return b"octets%d" % index
            case Array(element):
                return [value(element, index), value(element, index + 1)]
            case Nested(nested_class):
                return fullest(nested_class, version)
            case _:
                raise TypeError(wire_type)

    rows = [row for row in struct_class.wire_table.fields if version in row.versions]
    return struct_class(**{row.name: value(row.type, index) for index, row in enumerate(rows)})
