"""Bugs of Spark's source and sink: topics that come and go, predicates, and rows on their way to an agent."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_TESTS = "tests/integration/spark/source"
_TOPICS = f"{_TESTS}/test_topics.py"
_PUSHDOWN = f"{_TESTS}/test_pushdown.py"
_SINK = f"{_TESTS}/test_sink.py"

SPARK_SOURCE = (
    Mutant(
        name="offsets-of-a-topic-that-is-not-there-are-ignored",
        file="spark_jobs/source/options.py",
        text="if strange := sorted((offsets or {}).keys() - set(topics)):",
        replacement="if strange := []:",
        tests=(
            f"{_TOPICS}::test_a_batch_reads_the_topics_that_are_listed_assigned_or_matched",
            f"{_TOPICS}::test_a_stream_with_latest_begins_behind_what_is_there_and_reads_a_new_topic_whole",
        ),
    ),
    Mutant(
        name="a-topic-that-goes-ends-the-query-of-a-pattern",
        file="spark_jobs/source/scan.py",
        text="        if options.topics.pattern is None or options.names_offsets_of(topic):\n            raise\n",
        replacement="        raise\n",
        tests=(f"{_TOPICS}::test_a_topic_that_goes_between_list_and_snapshot_had_not_matched",),
    ),
    Mutant(
        name="a-topic-made-anew-is-read-from-where-the-old-one-was",
        file="spark_jobs/source/stream.py",
        text="begin.next_offsets if begin is not None and begin.topic_id == until.topic_id else {}",
        replacement="begin.next_offsets if begin is not None else {}",
        tests=(f"{_TOPICS}::test_a_topic_that_goes_is_told_or_left_while_the_others_are_read_on",),
    ),
    Mutant(
        name="a-run-to-the-present-end-follows-a-topic-made-anew",
        file="spark_jobs/source/stream.py",
        text="        if target is None or target.topic_id != now.topic.topic_id:\n            return None\n",
        replacement="        if target is None:\n            return None\n"
        "        if target.topic_id != now.topic.topic_id:\n            return now.ends\n",
        tests=(f"{_TOPICS}::test_a_topic_that_is_made_anew_under_a_run_to_the_present_end_is_for_the_next_run",),
    ),
    Mutant(
        name="a-list-of-offsets-is-exact",
        file="spark_jobs/source/filters.py",
        text='return replace(self, within=within), predicate.comparison != "in"',
        replacement="return replace(self, within=within), True",
        tests=(
            f"{_PUSHDOWN}::test_fewer_slices_are_planned_for_partitions_offsets_and_a_time",
            f"{_PUSHDOWN}::test_any_predicates_leave_the_rows_that_spark_would_keep",
        ),
    ),
    Mutant(
        name="a-list-of-times-begins-at-its-latest",
        file="spark_jobs/source/filters.py",
        text="return (min(values) - _EPOCH) // timedelta(milliseconds=1)",
        replacement="return (max(values) - _EPOCH) // timedelta(milliseconds=1)",
        tests=(f"{_PUSHDOWN}::test_any_predicates_leave_the_rows_that_spark_would_keep",),
    ),
    Mutant(
        name="predicates-are-taken-unasked",
        file="spark_jobs/source/source.py",
        text="predicate_of(each) if self._options.takes_predicates else None",
        replacement="predicate_of(each)",
        tests=(f"{_TESTS}/test_pushdown_on_spark.py::test_a_frame_that_is_used_twice_has_all_its_rows",),
    ),
    Mutant(
        name="a-time-beyond-pythons-ends-the-query",
        file="spark_jobs/source/source.py",
        text="        leave_unreadable_filters()\n        return",
        replacement="        return",
        tests=(f"{_TESTS}/test_pushdown_on_spark.py::test_any_predicates_leave_what_spark_keeps_of_all_rows",),
    ),
    Mutant(
        name="a-negative-partition-is-chosen-by-the-key",
        file="spark_jobs/sink/producing.py",
        text="        if not 0 <= partition < self._known[topic]:\n",
        replacement="        if partition >= self._known[topic]:\n",
        tests=(f"{_SINK}::test_what_is_wrong_with_a_write_is_named",),
    ),
    Mutant(
        name="a-task-ends-before-its-records-are-acknowledged",
        file="spark_jobs/sink/producing.py",
        text="        count += batch.num_rows\n    producer.finish()\n",
        replacement="        count += batch.num_rows\n",
        tests=(f"{_SINK}::test_a_killed_agent_costs_no_row",),
    ),
)
