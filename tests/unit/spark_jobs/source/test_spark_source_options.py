"""Options of `format("siltstone")`: Spark passes them as text; the source reads or refuses them."""

from __future__ import annotations

import pytest

from runtime.errors import BadInputError
from spark_jobs.scan.contract import COLUMNS, EARLIEST, LATEST, AtTimestamp
from spark_jobs.source.options import PIN_TTL_MS, SourceOptionError, SourceOptions, parse_options

URLS = {"metadataUrl": "postgresql://p@localhost/db", "objectStoreUrl": "file:///data"}


def options(streaming: bool | None = False, **given: str) -> SourceOptions:
    return parse_options({**URLS, "topic": "flights", **given}, {}, streaming=streaming)


def test_a_batch_query_reads_the_whole_topic_unless_told_otherwise() -> None:
    found = options()

    assert (found.scan.topic, found.scan.partitions) == ("flights", None)
    assert (found.scan.starting, found.scan.ending) == (EARLIEST, LATEST)
    assert (found.scan.isolation, found.scan.view, found.scan.fail_on_data_loss) == ("read_committed", "log", True)
    assert (found.min_partitions, found.max_offsets_per_trigger, found.pin_ttl_ms) == (1, None, PIN_TTL_MS)


def test_a_stream_begins_at_the_end_unless_told_otherwise() -> None:
    assert options(streaming=True).scan.starting is LATEST


def test_names_of_options_are_read_in_any_case() -> None:
    given = {name.lower(): value for name, value in URLS.items()}

    found = parse_options({**given, "SUBSCRIBE": "flights", "startingoffsets": "LATEST"}, {}, streaming=False)

    assert found.scan.topic == "flights"
    assert found.scan.starting is LATEST


def test_all_options_are_read() -> None:
    found = options(
        partitions="0, 2,5-7",
        startingOffsets='{"flights": {"0": 23, "2": -1, "5": -2}}',
        endingTimestamp="2026-01-31T12:00:00Z",
        columns="Key, value",
        view="latest",
        isolation="read_uncommitted",
        failOnDataLoss="FALSE",
        minPartitions="12",
        sliceBytes="64m",
        pinTtl="2h",
    )

    assert found.scan.partitions == (0, 2, 5, 6, 7)
    assert found.scan.starting == {0: 23, 2: LATEST, 5: EARLIEST}
    assert found.scan.ending == AtTimestamp(1_769_860_800_000)
    assert found.scan.columns == ("key", "value")
    assert (found.scan.view, found.scan.isolation, found.scan.fail_on_data_loss) == (
        "latest",
        "read_uncommitted",
        False,
    )
    assert (found.min_partitions, found.slice_bytes, found.pin_ttl_ms) == (12, 64 << 20, 7_200_000)


def several(**given: str) -> SourceOptions:
    return parse_options({**URLS, **given}, {}, streaming=False)


def test_several_topics_are_named_as_the_kafka_source_has_them() -> None:
    listed = several(subscribe="b, a,b", endingOffsets='{"a": {"0": 5, "1": -1}}', startingOffsets="earliest")
    assert listed.topics.names == ("a", "b")
    assert listed.scan_of("a").ending == {0: 5, 1: LATEST}
    assert (listed.scan_of("b").starting, listed.scan_of("b").ending) == (EARLIEST, {})
    assigned = several(assign='{"a": [2, 0], "b": [1]}')
    assert [assigned.scan_of(topic).partitions for topic in assigned.topics.names] == [(0, 2), (1,)]
    matching = several(subscribePattern="fl.*", startingTimestamp="7")
    assert matching.topics.among(["flop", "afl", "flights"]) == ["flights", "flop"]
    assert matching.scan_of("flop").starting == AtTimestamp(7)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"assign": "[0]"}, "assign cannot be read"),
        ({"assign": '{"a": [true]}'}, "assign cannot be read"),
        ({"assign": '{"a": []}'}, "assign cannot be read"),
        ({"subscribePattern": "f("}, "no regular expression"),
        ({"subscribePattern": "f.*", "startingOffsets": '{"g": {"0": 1}}'}, "names topic 'g', which is not read"),
        ({"assign": '{"a": [0]}', "startingOffsets": '{"a": {"1": 1}}'}, "names partition 1 of topic 'a'"),
        ({}, "no topic is named"),
    ],
)
def test_a_choice_of_topics_that_means_nothing_is_refused(given: dict[str, str], told: str) -> None:
    with pytest.raises(BadInputError) as refused:
        several(**given)

    assert told in str(refused.value)


def test_columns_follow_the_view_and_the_option_for_headers() -> None:
    assert options().scan.columns == COLUMNS
    assert options(includeHeaders="false").scan.columns == COLUMNS[:-1]
    assert options(view="changes").scan.columns == (*COLUMNS, "_change")
    assert options(columns="key,TIMESTAMPTYPE").scan.columns == ("key", "timestampType")


def test_a_timestamp_may_be_milliseconds_as_the_kafka_source_has_it() -> None:
    assert options(startingTimestamp="1769860800000").scan.starting == AtTimestamp(1_769_860_800_000)


def test_urls_come_from_the_environment_of_the_driver_where_no_option_names_them() -> None:
    environ = {"SILTSTONE_METADATA_URL": "postgresql://e@h/d", "SILTSTONE_OBJECT_STORE_URL": "file:///of-environment"}

    found = parse_options({"topic": "flights", "objectStoreUrl": "file:///of-option"}, environ, streaming=False)

    assert (found.metadata_url, found.object_store_url) == ("postgresql://e@h/d", "file:///of-option")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"startingOffset": "latest"}, "did you mean 'startingOffsets'"),
        ({"kafka.bootstrap.servers": "h:9092"}, "write objectStoreUrl and metadataUrl"),
        ({"subscribePattern": "f.*"}, "topic and subscribePattern name topics"),
        ({"assign": '{"flights": [0]}'}, "topic and assign name topics"),
        ({"includeHeaders": "true", "columns": "key"}, "exclude each other"),
        ({"columns": "key,_change"}, "belongs to view changes"),
        ({"path": "flights"}, "load() takes nothing"),
        ({"xyz": "1"}, "options are topic,"),
        ({"subscribe": "other"}, "topic and subscribe name topics"),
        ({"topic": "a,,b"}, "empty name"),
        ({"topic": "a,b", "partitions": "0"}, "name partitions by assign"),
        ({"topic": " "}, "no topic is named"),
        ({"startingOffsets": "newest"}, "startingOffsets cannot be read: 'newest'"),
        ({"startingOffsets": '{"other": {"0": 1}}'}, "names topic 'other', which is not read"),
        ({"endingOffsets": '{"flights": {"0": -3}}'}, "endingOffsets has '0': -3"),
        ({"endingOffsets": '{"flights": {"x": 3}}'}, "endingOffsets has 'x': 3"),
        ({"endingOffsets": '{"flights": {"0": true}}'}, "endingOffsets has '0': True"),
        ({"startingOffsets": '{"flights": {}}'}, "names no partition"),
        ({"startingOffsets": '{"flights": {"3": 1}}', "partitions": "0-2"}, "names partition 3 of topic 'flights'"),
        ({"startingOffsets": "earliest", "startingTimestamp": "0"}, "exclude each other"),
        ({"startingTimestamp": "yesterday"}, "'yesterday' is not a time"),
        ({"partitions": "2-1"}, "partitions '2-1' cannot be read"),
        ({"columns": "key,valeu"}, "no column 'valeu'"),
        ({"view": "newest"}, "view 'newest'"),
        ({"isolation": "none"}, "isolation 'none'"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false, not 'maybe'"),
        ({"minPartitions": "0"}, "minPartitions must be 1 or more"),
        ({"sliceBytes": "64x"}, "'64x' is not a size"),
        ({"pinTtl": "10"}, "'10' is not a duration"),
        ({"pinTtl": "1ms"}, "pinTtl must be 500 ms or more"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is for streams"),
        ({"metadataUrl": ""}, "metadataUrl is not set"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_to_write_instead(given: dict[str, str], told: str) -> None:
    with pytest.raises(BadInputError) as refused:
        options(**given)

    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"endingOffsets": "latest"}, "a stream has no end"),
        ({"endingTimestamp": "5"}, "a stream has no end"),
        ({"pushDownPredicate": "true"}, "pushDownPredicate is for batch queries"),
        ({"view": "latest"}, "view=changes has the last one of each batch"),
    ],
)
def test_what_means_nothing_in_a_stream_is_refused_there(given: dict[str, str], told: str) -> None:
    with pytest.raises(SourceOptionError, match=told):
        options(streaming=True, **given)

    options(streaming=None, **given)  # not known yet


def test_a_limit_of_a_stream_is_read() -> None:
    assert options(streaming=True, maxOffsetsPerTrigger="1000").max_offsets_per_trigger == 1000
