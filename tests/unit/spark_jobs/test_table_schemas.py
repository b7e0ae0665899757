"""The depth of the columns of a given schema."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from spark_jobs.tables.columns.avro_schema import read_schema
from spark_jobs.tables.columns.json_schema import fields_of_json_schema
from spark_jobs.tables.columns.kinds import DEPTH_MAX, extended, is_text, kind_of
from spark_jobs.tables.errors import BadTableError


def nested(kind: str, levels: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        inner = {"type": "array", "items": inner} if kind == "array" else {"type": kind, "properties": {"x": inner}}
    return inner


@pytest.mark.parametrize("kind", ["object", "array"])
def test_a_schema_is_cut_at_the_depth_at_which_values_are(kind: str) -> None:
    # given a value as deep as its schema
    value: Any = 1
    for _ in range(30):
        value = [value] if kind == "array" else {"x": value}
    # then both make the same columns, JSON text at the bottom; lists are that as a whole
    given = fields_of_json_schema(json.dumps({"type": "object", "properties": {"f": nested(kind, 30)}}))
    assert given == extended([], kind_of({"f": value}))
    field, depth = given[0], 1
    while not is_text(field):
        field, depth = field.type.value_field if pa.types.is_list(field.type) else field.type[0], depth + 1
    assert depth == (DEPTH_MAX if kind == "object" else 1)


def test_a_schema_too_deep_to_be_read_is_an_error_with_a_remedy() -> None:
    with pytest.raises(BadTableError, match="too many to be read") as refused:
        fields_of_json_schema('{"items":' * 100_000 + "{}" + "}" * 100_000)
    assert str(DEPTH_MAX) in refused.value.remedy


@pytest.mark.parametrize("kind", ["strin", ["null", "int"]])
def test_a_type_that_json_schema_does_not_have_is_refused(kind: object) -> None:
    with pytest.raises(BadTableError, match="gives 'seat' the type") as refused:
        fields_of_json_schema(json.dumps({"properties": {"seat": {"type": kind}}}))
    assert "one of integer, number, string, boolean, array, object, null" in refused.value.remedy


def avro(levels: int) -> str:
    inner: Any = "long"
    for level in range(levels):
        inner = {"type": "record", "name": f"r{level}", "fields": [{"name": "x", "type": inner}]}
    return json.dumps({"type": "record", "name": "top", "fields": [{"name": "f", "type": inner}]})


def test_an_avro_schema_deeper_than_readers_follow_is_refused_by_its_field() -> None:
    assert len(read_schema(avro(DEPTH_MAX - 1))[1]) == 1
    with pytest.raises(BadTableError, match="the Avro field f has 20 and more records") as refused:
        read_schema(avro(DEPTH_MAX))
    assert "--value raw" in refused.value.remedy
    with pytest.raises(BadTableError, match="the Avro schema"):
        read_schema('{"type":"array","items":' * 100_000 + '"long"' + "}" * 100_000)


@pytest.mark.parametrize("text", ["{", '{"type": "object", "properties": {}}', '{"type": "strin"}'])
def test_an_avro_schema_that_cannot_be_read_is_not_always_bad_json(text: str) -> None:
    with pytest.raises(BadTableError, match="the Avro schema cannot be read: "):
        read_schema(text)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ({"type": "bytes", "logicalType": "decimal", "precision": 39, "scale": 2}, "a decimal of 39 digits"),
        ({"type": "record", "name": "e", "fields": []}, "the Avro record at f.element has no fields"),
        ({"type": "fixed", "name": "e", "size": 0}, "has no bytes"),
    ],
)
def test_avro_types_that_no_column_can_hold_are_refused(kind: object, says: str) -> None:
    field = {"name": "f", "type": {"type": "array", "items": kind}}
    with pytest.raises(BadTableError, match=says):
        read_schema(json.dumps({"type": "record", "name": "top", "fields": [field]}))
