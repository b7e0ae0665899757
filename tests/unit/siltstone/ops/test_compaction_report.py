"""The commands' reports about a topic's compaction, from hand-made views: every figure, every reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from compactor.planning.plan import Plan
from compactor.planning.spec import MIB, PlanOptions
from metadata.contract.compactors import PartitionView
from metadata.contract.jobs import JobState
from metadata.contract.leveled import FileClass
from siltstone.ops.compaction.evidence import (
    Evidence,
    fraction_of,
    is_compacted,
    partition_states,
    troubled_by_partition,
)
from siltstone.ops.compaction.reasons import Reason, explain
from siltstone.ops.compaction.report import states_json
from siltstone.ops.hint_options import HintOptions
from tests.fixtures.compaction_views import COMPACT, DAY_MS, HOUR_MS, NOW_MS, extent, file, job, partition, view

OPTIONS = PlanOptions()
NO_FILES = view()


def reasons(*views: PartitionView, options: PlanOptions = OPTIONS, **known: Any) -> Sequence[Reason]:
    seen = known.get("view", NO_FILES)
    known["troubled"] = troubled_by_partition(seen, views, ())
    given: dict[str, Any] = {"compactors": [(9, "host")], "view": seen, "plan": Plan(specs=(), notes=()), **known}
    evidence = Evidence(topic="users", options=options, **given)
    states = partition_states(views, options, evidence.view)
    return explain(states, evidence)


def only(found: Sequence[Reason], code: str) -> Reason:
    matching = [reason for reason in found if reason.cause.code == code]
    assert len(matching) == 1, [reason.cause.code for reason in found]
    return matching[0]


CLEAN = partition(extent(0, 99), end=100, cleaned_through=100, last_cleaned_ms=NOW_MS - 1000)


# ---- describe


def test_the_head_is_what_no_pass_has_seen_and_l0_is_what_lies_above_the_unbroken_stretch() -> None:
    # given a log cleaned through 60, leveled through 90, written through 100
    (state,) = partition_states(
        [partition(extent(0, 59), extent(60, 89, level=1), end=100, cleaned_through=60)], OPTIONS, NO_FILES
    )
    assert (state.head_offsets, state.head_bytes, state.l0_offsets) == (40, 3000, 10)
    assert state.dirtiness.ratio == pytest.approx(3000 / 9000)
    (shown_json,) = states_json([state], ())
    assert shown_json["dirty_ratio"] == 0.3333 and shown_json["cleaned_through_offset"] == 60
    assert shown_json["leveled_through_offset"] == 90 and shown_json["due"] == ""


def test_partitions_are_shown_in_the_order_of_their_numbers() -> None:
    views = [partition(end=0, number=2), partition(end=0, number=0), partition(end=0, number=1)]
    assert [state.view.partition for state in partition_states(views, OPTIONS, NO_FILES)] == [0, 1, 2]


def test_a_policy_is_compacted_by_override_not_by_default() -> None:
    assert is_compacted({"cleanup.policy": "delete, compact"})
    assert not is_compacted({}) and not is_compacted({"cleanup.policy": ""})


@pytest.mark.parametrize(
    ("seen", "waits"),
    [
        (partition(end=5, log_start=5), ""),
        (partition(extent(0, 99), end=100, cleaned_through=100), ""),
        (
            partition(extent(0, 59), end=60, cleaned_through=50, stable=50),
            "has an open transaction from offset 50 on; no record at or above that offset is cleaned.",
        ),
        (
            partition(extent(0, 99), end=116, cleaned_through=100),
            "has 16 offsets from 100 on in L0 files, where nothing is deduped. L0 files go to L1 when there are 32 and "
            "the oldest has waited 10s, or when the oldest has waited 1m00s (compaction.l0.wait.max.ms).",
        ),
        (
            partition(extent(0, 89), extent(90, 99, level=1), end=100, cleaned_through=90),
            "is 0.10 dirty (1000 B), not above min.cleanable.dirty.ratio (0.50): superseded records stay until more is "
            "written, or until the daily merge.",
        ),
        (
            partition(
                extent(0, 9),
                extent(10, 99, level=1, length=45 * MIB),
                end=100,
                cleaned_through=10,
                last_cleaned_ms=NOW_MS - 8 * 60_000,
            ),
            "is 1.00 dirty, but has only 45.0 MiB of dirty records. A pass of its own needs 64.0 MiB "
            "(forced.dirty.bytes.min), or to be dirty for 1h00m (forced.dirty.wait.ms), which is in 52m00s. Merges "
            "of whole runs dedupe it too.",
        ),
        (
            partition(extent(0, 99, level=1, length=99 * MIB), end=100, last_forced_ms=NOW_MS - 60_000),
            "is 1.00 dirty, and had a pass of its own less than 15m00s ago (forced.interval.ms): the next one may "
            "begin in 14m00s.",
        ),
        (
            partition(
                extent(0, 99, level=1, max_timestamp_ms=NOW_MS),
                end=100,
                configs={**COMPACT, "min.compaction.lag.ms": "60000"},
            ),
            "keeps its last 100 offsets, from offset 0 on, as they are: some of them are younger than "
            "min.compaction.lag.ms (1m00s).",
        ),
    ],
)
def test_what_a_partition_waits_for_is_said_when_it_is_not_due(seen: PartitionView, waits: str) -> None:
    states = partition_states([seen], OPTIONS, NO_FILES)
    [shown] = states_json(states, reasons(seen))
    assert (shown["due"], shown["held"], shown["waits"]) == ("", "", waits)


def test_one_that_is_due_waits_for_nothing() -> None:
    due = partition(extent(0, 99, level=1, length=99 * MIB), end=100)
    [shown] = states_json(partition_states([due], OPTIONS, NO_FILES), reasons(due))
    assert shown["due"] and shown["waits"] == shown["held"] == ""


# ---- explain


def test_a_plain_topic_is_told_how_to_become_compacted() -> None:
    (reason,) = reasons(partition(end=5, configs={}))
    assert (reason.cause.code, reason.partition) == ("plain", None)
    assert "its cleanup.policy is delete" in reason.says
    assert reason.remedy.startswith("none, if that is intended")  # because the command that follows loses records
    assert reason.remedy.endswith("`siltstone topics alter users --config cleanup.policy=compact`")


def test_a_clean_partition_has_nothing_to_explain() -> None:
    (reason,) = reasons(CLEAN)
    assert (reason.cause.code, reason.partition, reason.remedy) == ("clean", 0, "")
    assert reason.says == "partition 0 is compacted through offset 100; there is nothing to do."


def test_an_empty_partition_is_called_empty() -> None:
    assert [reason.cause.code for reason in reasons(partition(end=7, log_start=7))] == ["empty"]


def test_without_a_compactor_that_is_said_first() -> None:
    found = reasons(CLEAN, compactors=())
    assert [reason.cause.code for reason in found] == ["no compactor", "clean"]
    assert "siltstone compactor" in found[0].remedy and found[0].partition is None


def test_a_write_stall_is_said_when_there_are_more_l0_files_than_the_limit() -> None:
    files = view(*(file(each, 0) for each in range(1, 5)))
    assert "4 L0 files are live" in only(reasons(CLEAN, view=files, stall_files=3), "write stall").says
    assert [reason.cause.code for reason in reasons(CLEAN, view=files, stall_files=4)] == ["clean"]
    assert [reason.cause.code for reason in reasons(CLEAN, view=files, stall_files=0)] == ["clean"]
    # files that no object holds do not count, as agents do not count them
    markers = view(*(file(each, 0) for each in range(1, 4)), replace(file(4, 0), is_inline=True))
    assert [reason.cause.code for reason in reasons(CLEAN, view=markers, stall_files=3)] == ["clean"]


def test_records_in_l0_are_counted_and_the_wait_is_told() -> None:
    in_l0 = partition(extent(0, 89), end=100, cleaned_through=90, last_cleaned_ms=NOW_MS)
    reason = only(reasons(in_l0), "in L0")
    assert "has 10 offsets from 90 on in L0 files" in reason.says and "waited 1m00s" in reason.says
    assert "siltstone compact users --now" in reason.remedy


def test_records_in_l0_that_are_too_young_are_not_told_to_be_compacted_now() -> None:
    # given only L0, all of it younger than the lag
    young = partition(end=16, configs={**COMPACT, "min.compaction.lag.ms": "3600000"})
    found = reasons(young, young_l0_from={1: 0})
    assert "--now" not in only(found, "in L0").remedy
    assert "keeps its last 16 offsets, from offset 0 on" in only(found, "too young").says
    # but if a part of it is old enough, that part is
    found = reasons(young, young_l0_from={1: 12})
    assert "--now" in only(found, "in L0").remedy and "last 4 offsets, from offset 12" in only(found, "too young").says


def test_remedies_repeat_where_the_system_is() -> None:
    hints = HintOptions(places=" --data X", agents=" --data X", compactor="siltstone dev --data X")
    in_l0 = partition(extent(0, 89), end=100, cleaned_through=90, last_cleaned_ms=NOW_MS)
    found = reasons(in_l0, hints=hints, compactors=(), jobs=[job(14, JobState.FAILED, error="gone")])
    assert "`siltstone compact users --now --data X`" in only(found, "in L0").remedy
    assert "`siltstone dev --data X`" in only(found, "no compactor").remedy
    assert "`siltstone jobs show 14 --data X`" in only(found, "failed").remedy
    (plain,) = reasons(partition(end=5, configs={}), hints=hints)
    assert plain.remedy.endswith("`siltstone topics alter users --config cleanup.policy=compact --data X`")


def test_a_partition_below_its_dirty_ratio_is_told_both_numbers() -> None:
    quiet = partition(extent(0, 89), extent(90, 99, level=1), end=100, cleaned_through=90, last_cleaned_ms=NOW_MS)
    reason = only(reasons(quiet), "below the dirty ratio")
    assert "is 0.10 dirty" in reason.says and "(0.50)" in reason.says


def test_few_dirty_bytes_wait_for_an_hour_after_the_last_pass() -> None:
    dirty = partition(
        extent(0, 9), extent(10, 99, level=1), end=100, cleaned_through=10, last_cleaned_ms=NOW_MS - 600_000
    )
    reason = only(reasons(dirty), "few dirty bytes")
    assert (
        "is 0.90 dirty" in reason.says
        and "to be dirty for 1h00m (forced.dirty.wait.ms), which is in 50m00s" in reason.says
    )
    # and after that hour it is due
    waited = replace(dirty, last_cleaned_ms=NOW_MS - HOUR_MS)
    assert "0.90 over 0.50" in only(reasons(waited), "due").says


def test_a_partition_forced_lately_waits_for_the_interval() -> None:
    big = extent(10, 99, level=1, length=100 * MIB)
    forced = partition(extent(0, 9), big, end=100, cleaned_through=10, last_forced_ms=NOW_MS - 60_000)
    reason = only(reasons(forced), "forced lately")
    assert "less than 15m00s ago" in reason.says and "in 14m00s" in reason.says
    assert only(reasons(replace(forced, last_forced_ms=None)), "due").remedy == ""


def test_the_minimum_lag_names_the_first_offset_it_holds() -> None:
    young = extent(50, 99, level=1, max_timestamp_ms=NOW_MS - 1000)
    held = partition(
        extent(0, 49), young, end=100, cleaned_through=50, configs={**COMPACT, "min.compaction.lag.ms": "3600000"}
    )
    reason = only(reasons(held), "too young")
    assert "from offset 50 on" in reason.says and "(1h00m)" in reason.says


def test_an_open_transaction_names_where_it_begins() -> None:
    held = partition(extent(0, 99), end=100, stable=80, cleaned_through=80)
    assert "from offset 80 on" in only(reasons(held), "open transaction").says


def test_the_maximum_lag_tells_when_it_will_force_a_pass() -> None:
    configs = {**COMPACT, "max.compaction.lag.ms": str(2 * DAY_MS)}
    waiting = partition(extent(0, 89), extent(90, 99), end=100, cleaned_through=90, configs=configs)
    assert "is compacted in 23h59m at the latest" in only(reasons(waiting), "max lag").says
    past = partition(
        extent(0, 89),
        extent(90, 99, max_timestamp_ms=NOW_MS - 3 * DAY_MS),
        end=100,
        cleaned_through=90,
        configs=configs,
    )
    found = reasons(past)
    assert "max.compaction.lag.ms" in only(found, "due").says
    assert "max lag" not in {reason.cause.code for reason in found}


def test_a_maximum_lag_that_has_passed_says_that_records_wait_in_l0() -> None:
    # given records committed 3 days ago under a lag of 2, a pass two minutes ago, and later records in L0
    configs = {**COMPACT, "max.compaction.lag.ms": str(2 * DAY_MS)}
    old = extent(90, 99, max_timestamp_ms=NOW_MS - 3 * DAY_MS)
    stuck = partition(
        extent(0, 89), old, end=120, cleaned_through=90, configs=configs, last_forced_ms=NOW_MS - 1, last_cleaned_ms=0
    )
    says = only(reasons(stuck), "past max lag").says
    assert "is past its max.compaction.lag.ms (2d00h)" in says and "20 of its offsets wait in L0 files" in says
    # and the short answer names the lag, not only L0
    [shown] = states_json(partition_states([stuck], OPTIONS, NO_FILES), reasons(stuck))
    assert "max.compaction.lag.ms" in shown["waits"]


def test_records_that_are_stuck_in_l0_are_past_their_maximum_lag_too() -> None:
    # given a clean partition with records that came to L0 an hour, or 3 days ago, under a lag of 2 days
    configs = {**COMPACT, "max.compaction.lag.ms": str(2 * DAY_MS)}
    clean = partition(extent(0, 99), end=120, cleaned_through=100, configs=configs)
    for stuck in (clean, replace(clean, extents=[], cleaned_through_offset=0)):
        ahead = reasons(stuck, l0_since_ms={stuck.partition_id: NOW_MS - 3_600_000})
        assert "in 1d23h at the latest" in only(ahead, "max lag").says
        late = reasons(stuck, l0_since_ms={stuck.partition_id: NOW_MS - 3 * DAY_MS})
        says = only(late, "past max lag").says
        assert "committed 3d00h ago" in says and "of its offsets wait in L0 files, and go to L1 first" in says
        [shown] = states_json(partition_states([stuck], OPTIONS, NO_FILES), late)
        assert "max.compaction.lag.ms" in shown["waits"]


def test_a_maximum_lag_that_has_passed_is_named_whatever_waits() -> None:
    # given records committed 3 days ago under a lag of 2, and a pass that took a minute and began two minutes ago
    configs = {**COMPACT, "max.compaction.lag.ms": str(2 * DAY_MS)}
    dirty = extent(90, 99)._replace(committed_ms=NOW_MS - 3 * DAY_MS)
    past = partition(
        extent(0, 89), dirty, end=100, cleaned_through=90, configs=configs, last_forced_ms=NOW_MS - 120_000
    )
    reason = only(reasons(replace(past, last_pass_took_ms=60_000)), "past max lag")
    assert "was committed 3d00h ago" in reason.says
    assert "the next one may begin in 2m00s" in reason.says
    # and when something is in the way of the pass
    held = replace(view(), busy_extents=frozenset(each.extent_id for each in past.extents))
    assert "in its way" in only(reasons(replace(past, last_forced_ms=None), view=held), "past max lag").says
    # and not before its time, by the commit and not by the record's timestamp
    young = partition(extent(0, 89), dirty._replace(committed_ms=NOW_MS), end=100, cleaned_through=90, configs=configs)
    assert "past max lag" not in {reason.cause.code for reason in reasons(young)}


def test_a_topic_s_own_numbers_are_told_in_place_of_the_compactors() -> None:
    own = {**COMPACT, "siltstone.forced.interval.ms": "60000", "siltstone.forced.dirty.bytes.min": "1"}
    lately = partition(extent(0, 99), end=100, configs=own, last_forced_ms=NOW_MS - 10_000)
    says = only(reasons(lately), "forced lately").says
    assert "less than 1m00s ago" in says and "in 50s" in says


def test_a_running_job_is_shown_with_its_progress() -> None:
    running = job(12, JobState.RUNNING, progress={"fraction": 0.4, "step": "rewrite"})
    assert (
        only(reasons(CLEAN, jobs=[running]), "running").says
        == "partition 0 is being merged: job 12 (forced), 40 % (rewrite), for 4s."
    )


def test_a_job_of_another_partition_is_not_shown() -> None:
    other = job(12, JobState.RUNNING, spec={"partitions": [[99, 0, 0, 0, 0, 0, 0, 1, []]], "file_ids": [1]})
    assert [reason.cause.code for reason in reasons(CLEAN, jobs=[other])] == ["clean"]
    # but a merge that only copies its file is
    copied = job(13, JobState.RUNNING, spec={"partitions": [], "file_ids": [7]}, kind="purge")
    assert "job 13 (purge)" in only(reasons(CLEAN, jobs=[copied]), "running").says


def test_a_planned_job_that_nobody_takes_says_so() -> None:
    ready = job(12, JobState.READY, attempts=0)
    assert (
        "job 12 (forced) waits for a compactor." in only(reasons(CLEAN, jobs=[ready]), "waiting for a compactor").says
    )
    tried = only(reasons(CLEAN, jobs=[replace(ready, attempts=2)]), "waiting for a compactor")
    assert tried.says.endswith("waits for a compactor after 2 attempts.")


def test_the_newest_failure_is_told_with_its_error() -> None:
    failures = [job(14, JobState.FAILED, error="object l1/x is not there."), job(13, JobState.FAILED, error="old")]
    reason = only(reasons(CLEAN, jobs=failures), "failed")
    assert "job 14 (forced), which failed 2m00s ago: object l1/x is not there." in reason.says
    assert "siltstone jobs show 14" in reason.remedy


def test_a_file_in_trouble_is_left_alone_for_a_while() -> None:
    troubled = view(file(7, 2, file_class=FileClass.COMPACTED, trouble_until_ms=NOW_MS + 30_000))
    assert "file 7" in only(reasons(CLEAN, view=troubled), "file in trouble").says
    over = view(file(7, 2, file_class=FileClass.COMPACTED, trouble_until_ms=NOW_MS))
    assert [reason.cause.code for reason in reasons(CLEAN, view=over)] == ["clean"]


def test_flagged_extents_are_counted_and_the_first_is_named() -> None:
    bad = partition(
        extent(0, 49), extent(50, 59, flagged="CRC of the batch at 53"), extent(60, 99), end=100, cleaned_through=100
    )
    reason = only(reasons(bad), "flagged")
    assert "has 1 extent " in reason.says and "offsets 50 to 59 of file 7: CRC of the batch at 53." in reason.says
    assert "siltstone file inspect l2/" in reason.remedy


def test_an_overflow_announces_a_deep_pass() -> None:
    deep = partition(extent(0, 99), end=100, cleaned_through=100, passes_needed=4, last_forced_ms=NOW_MS)
    assert "reads the partition 5 times" in only(reasons(deep), "buffer overflow").says


def test_tombstones_below_cleaned_through_wait_for_their_time() -> None:
    kept = partition(extent(0, 99, has_tombstones=True), end=100, cleaned_through=100)
    assert "100. A tombstone stays for delete.retention.ms (1d00h now), as" in only(reasons(kept), "tombstones").says
    # when their time is known, so is that of the pass: once in a day for tombstones alone
    horizon_ms = NOW_MS + 3_600_000
    stamped = partition(
        extent(0, 99, has_tombstones=True)._replace(earliest_horizon_ms=horizon_ms, uncompressed_bytes=1),
        end=100,
        cleaned_through=100,
        last_cleaned_ms=NOW_MS - 22 * 3_600_000,
    )
    told = only(reasons(stamped), "tombstones")
    assert "which comes in 2h00m at the latest (for tombstones alone once in 1d00h)" in told.says
    assert "below offset 100, the first of which may go in 1h00m. " in told.says
    assert "siltstone compact users --now" in told.remedy
    overdue = replace(
        stamped, last_cleaned_ms=NOW_MS - 2 * DAY_MS, extents=[stamped.extents[0]._replace(earliest_horizon_ms=NOW_MS)]
    )
    assert "tombstones (delete.retention.ms) has passed" in only(reasons(overdue), "due").says
    # those above it are merely dirty
    above = partition(extent(0, 89), extent(90, 99, has_tombstones=True), end=100, cleaned_through=90)
    assert "tombstones" not in {reason.cause.code for reason in reasons(above)}


def test_a_request_that_stands_is_told_with_its_end() -> None:
    asked = partition(extent(0, 89), end=100, cleaned_through=90, requested=100)
    says = only(reasons(asked), "asked for").says
    assert "up to offset 100, and is cleaned through 90" in says
    assert says.endswith("the planner takes it when nothing that is named here is in its way.")


def test_reasons_come_partition_by_partition() -> None:
    found = reasons(CLEAN, replace(CLEAN, partition=1, partition_id=2, high_watermark=105, last_stable_offset=105))
    assert [(reason.partition, reason.cause.code) for reason in found] == [(0, "clean"), (1, "in L0")]
    assert found[1].as_json()["partition"] == 1


def test_a_fraction_that_is_no_number_counts_as_nothing_done() -> None:
    assert fraction_of(job(1, JobState.RUNNING, progress={"fraction": "most"})) == 0.0
    assert fraction_of(job(1, JobState.RUNNING, progress={"fraction": 7})) == 1.0
