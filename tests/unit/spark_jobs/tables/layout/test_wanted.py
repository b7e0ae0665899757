"""The layout of a new table as users write it."""

from __future__ import annotations

import pytest

from spark_jobs.tables.errors import BadTableError
from spark_jobs.tables.layout.wanted import SectionRule, SortRule, parse_layout


def test_rules_are_read_as_iceberg_writes_them() -> None:
    written = {
        "seat": SectionRule("seat", "identity"),
        " two words ": SectionRule("two words", "identity"),
        "day(kafka_timestamp)": SectionRule("kafka_timestamp", "day"),
        "MONTH( at )": SectionRule("at", "month"),
        "bucket(16, kafka_key)": SectionRule("kafka_key", "bucket[16]"),
        "truncate(4,a, b)": SectionRule("a, b", "truncate[4]"),
    }
    assert {text: parse_layout([text], []).sections[0] for text in written} == written
    assert [parse_layout([text], []).sections[0].text for text in written] == [
        "seat",
        "two words",
        "day(kafka_timestamp)",
        "month(at)",
        "bucket(16, kafka_key)",
        "truncate(4, a, b)",
    ]
    names = [rule.field_name for rule in parse_layout(list(written), []).sections]
    assert names[2:] == ["kafka_timestamp_day", "at_month", "kafka_key_bucket_16", "a, b_trunc_4"]
    order = (SortRule("seat", False), SortRule("price", True), SortRule("two words", True))
    assert parse_layout([], ["seat asc,price DESC", "two words desc"]).order == order


@pytest.mark.parametrize(
    ("partition_by", "sort_by", "says"),
    [
        (["bucket(0, key)"], [], "no rule for partitions"),
        (["bucket(key)"], [], "no rule for partitions"),
        (["truncate(3, )"], [], "no rule for partitions"),
        (["day()"], [], "no rule for partitions"),
        (["week(at)"], [], "no rule for partitions"),
        ([" "], [], "names no column"),
        (["day(at)", "hour(at)"], [], "says no more than"),
        (["seat", "seat"], [], "says no more than"),
        ([], ["seat,"], "names no column"),
        ([], ["desc"], None),
        ([], ["seat,seat desc"], "twice"),
    ],
)
def test_rules_that_mean_nothing_are_refused(partition_by: list[str], sort_by: list[str], says: str | None) -> None:
    if says is None:  # a column may have that name
        assert parse_layout(partition_by, sort_by).order == (SortRule("desc", False),)
        return
    with pytest.raises(BadTableError, match=says) as refused:
        parse_layout(partition_by, sort_by)
    assert refused.value.remedy
