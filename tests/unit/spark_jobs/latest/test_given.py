"""Options of `read_latest`: Python's values and Spark's text mean the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest

from runtime.errors import BadInputError
from spark_jobs.latest.given import read_options
from spark_jobs.scan.contract import EARLIEST, LATEST, LOG, AtTimestamp
from spark_jobs.source.options import SourceOptions, parse_options

URLS = {"metadataUrl": "postgresql://p@localhost/db", "objectStoreUrl": "file:///data"}


def options(**given: Any) -> SourceOptions:
    return read_options({**URLS, "topic": "flights", **given}, {})


def test_the_whole_topic_is_read_without_tombstones_unless_told_otherwise() -> None:
    found = options()

    assert (found.scan.starting, found.scan.ending, found.keep_tombstones) == (EARLIEST, LATEST, False)
    # slices are cut as those of the log, not one for each partition
    assert found.scan.view == options(view="latest").scan.view == LOG


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ({"endingOffsets": {0: 23, 2: 5}}, {"endingOffsets": '{"flights": {"0": 23, "2": 5}}'}),
        ({"startingOffsets": {np.int64(0): np.int64(7)}}, {"startingOffsets": '{"flights": {"0": 7}}'}),
        ({"startingOffsets": {"flights": {"1": -2}}}, {"startingOffsets": '{"flights": {"1": -2}}'}),
        ({"columns": ["key", "value"]}, {"columns": "key,value"}),
        ({"partitions": range(3)}, {"partitions": "0-2"}),
        ({"partitions": 1, "minPartitions": 4}, {"partitions": "1", "minPartitions": "4"}),
        ({"failOnDataLoss": False}, {"failOnDataLoss": "false"}),
        ({"keepTombstones": True}, {"keeptombstones": "TRUE"}),
        ({"endingTimestamp": None, "pinTtl": "2h"}, {"pinTtl": "2h"}),
        ({"endingTimestamp": 1_769_860_800_000}, {"endingTimestamp": "2026-01-31T12:00:00Z"}),
    ],
)
def test_values_mean_what_their_text_means(values: dict[str, Any], texts: dict[str, str]) -> None:
    assert options(**values) == options(**texts)


def test_a_time_has_a_zone_and_is_rounded_up_to_a_millisecond() -> None:
    east = datetime(2026, 1, 31, 17, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    assert options(endingTimestamp=east).scan.ending == AtTimestamp(1_769_860_800_000)
    late = datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC)
    assert options(startingTimestamp=late).scan.starting == AtTimestamp(1_769_860_800_001)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"endingOffset": {0: 1}}, "did you mean 'endingOffsets'"),
        ({"pushDownPredicate": True}, "read_latest takes no predicates"),
        ({"keepTombstone": True}, "did you mean 'keepTombstones'"),
        ({"keepTombstones": "perhaps"}, "keepTombstones must be true or false, not 'perhaps'"),
        ({"view": "log"}, "read_latest reads the latest view"),
        ({"endingOffsets": 23}, "endingOffsets names no topic: '23'"),
        ({"endingOffsets": {0: True}}, "endingOffsets has '0': 'True'"),
        ({"endingOffsets": {0: 1.5}}, "endingOffsets has '0': '1.5'"),
        ({"endingOffsets": {}}, "names no partition"),
        ({"endingOffsets": [1, 2]}, "endingOffsets cannot be [1, 2]"),
        ({"endingTimestamp": datetime(2026, 1, 31, 12)}, "endingTimestamp is a time without a zone"),
        ({"endingTimestamp": 1.5}, "endingTimestamp cannot be 1.5"),
        ({"columns": b"key"}, "columns cannot be b'key'"),
        ({"topic": ""}, "no topic is named"),
        ({"maxOffsetsPerTrigger": 5}, "maxOffsetsPerTrigger is for streams"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_to_write_instead(given: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInputError) as refused:
        options(**given)

    assert told in str(refused.value)


def test_the_source_itself_cannot_keep_tombstones() -> None:
    for streaming in (None, False, True):
        with pytest.raises(BadInputError, match="import read_latest"):
            parse_options({**URLS, "topic": "flights", "keepTombstones": "true"}, {}, streaming=streaming)
