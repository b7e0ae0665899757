"""Options and columns of `df.write.format("siltstone")`: what is written where, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from spark_jobs.sink.options import SinkOptionError, SinkOptions, parse_sink

AGENT = {"kafka.bootstrap.servers": "h:9092"}
ROWS = {"key": "string", "value": "binary"}
HEADERS = "array<struct<key:string,value:binary>>"


def parsed(given: dict[str, str], columns: dict[str, str] = ROWS, **more: Any) -> SinkOptions:
    return parse_sink({**AGENT, **given}, columns, overwrite=more.get("overwrite", False))


def test_names_of_the_kafka_sink_are_taken_in_any_case() -> None:
    found = parsed({"TOPIC": "flights", "Kafka.Security.Protocol": "SASL_SSL", "checkpointlocation": "/c"})

    assert (found.topic, found.columns, found.has_headers) == ("flights", ("key", "value"), False)
    assert found.client["bootstrap.servers"] == "h:9092"
    assert found.client["security.protocol"] == "SASL_SSL"
    assert (found.client["enable.idempotence"], found.client["partitioner"]) == ("true", "murmur2_random")
    assert "SASL" not in repr(found)


def test_columns_of_other_names_are_left_alone() -> None:
    rows = {"topic": "string", "value": "string", "headers": HEADERS, "offset": "bigint", "partition": "int"}

    assert (parsed({}, rows).topic, parsed({}, rows).has_headers) == (None, True)
    assert not parsed({"includeHeaders": "false"}, rows).has_headers


@pytest.mark.parametrize(
    ("given", "columns", "told"),
    [
        ({}, ROWS, "no topic is named"),
        ({"topic": "t"}, {"key": "string"}, "no column value among key"),
        ({"topic": "t"}, {"value": "bigint"}, "column value is bigint, but must be string or binary"),
        ({"topic": "t"}, {**ROWS, "key": "int"}, "column key is int"),
        ({"topic": "t"}, {**ROWS, "partition": "bigint"}, "column partition is bigint, but must be int"),
        ({"topic": "t"}, {**ROWS, "headers": "map<string,binary>"}, "column headers is map<string,binary>"),
        ({}, {**ROWS, "topic": "int"}, "column topic is int"),
        ({"topic": "t", "kafka.bootstrap.servers": " "}, ROWS, "no agent is named"),
        ({"topic": "t", "startingOffsets": "earliest"}, ROWS, "a write has no option 'startingOffsets'"),
        ({"topic": "t", "path": "/p"}, ROWS, "save() and start() take no path here"),
        ({"topic": "t", "kafka.transactional.id": "x"}, ROWS, "at least once"),
        ({"topic": "t", "includeHeaders": "maybe"}, ROWS, "includeHeaders must be true or false"),
    ],
)
def test_what_cannot_be_written_is_refused(given: dict[str, str], columns: dict[str, str], told: str) -> None:
    with pytest.raises(SinkOptionError) as refused:
        parsed(given, columns)

    assert told in str(refused.value)


def test_a_topic_is_never_overwritten() -> None:
    with pytest.raises(SinkOptionError, match='mode\\("append"\\)'):
        parsed({"topic": "t"}, overwrite=True)
