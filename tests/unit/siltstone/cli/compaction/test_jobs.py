"""`siltstone jobs show` for a merge that runs on Spark, in each of its states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from metadata.contract.jobs import JobState, MergeJob
from siltstone.cli.compaction.jobs import described

STEP = "emr-serverless: running, 67 of 160 units done; job run 00fabc is RUNNING"
NOW_MS = 600_000
RUNNING = MergeJob(
    job_id=12,
    kind="merge",
    state=JobState.RUNNING,
    epoch=2,
    spec={"reason": "10 runs of L2", "level": 2, "partitions": []},
    holder=4,
    attempts=1,
    created_ms=0,
    started_ms=60_000,
    deadline_ms=3_000_000,
    finished_ms=None,
    lease_until_ms=NOW_MS,
    input_files=80,
    input_bytes=40 << 30,
    progress={"fraction": 0.42, "step": STEP, "engine": "emr-serverless"},
    result={},
    error="",
)


def shown(**changes: Any) -> dict[str, str]:
    return described(replace(RUNNING, **changes), NOW_MS)


def test_while_it_runs_who_runs_it_its_units_and_the_clusters_words_are_shown() -> None:
    pairs = shown()
    assert pairs["engine"] == "Spark, by emr-serverless"
    assert pairs["progress"] == f"######..........  42% {STEP}"
    assert (pairs["took"], pairs["time left"]) == ("9m00s", "40m00s")


def test_when_it_is_done_its_units_are_a_result_and_it_does_nothing_any_more() -> None:
    pairs = shown(state=JobState.DONE, finished_ms=500_000, result={"units": 160, "engine": "emr-serverless"})
    assert pairs["progress"] == "################ 100%"
    assert (pairs["result: units"], pairs["engine"]) == ("160", "Spark, by emr-serverless")
    assert "result: engine" not in pairs and "time left" not in pairs


def test_given_back_it_does_not_run_and_says_when_it_is_tried_again_and_how_far_it_came() -> None:
    pairs = shown(state=JobState.READY, not_before_ms=NOW_MS + 8_000, error="the driver failed: no room")
    assert pairs["progress"] == f"######..........  42% (last: {STEP})"
    assert (pairs["took"], pairs["tried again in"], pairs["error"]) == ("-", "8s", "the driver failed: no room")


def test_what_has_failed_says_how_far_it_came_and_what_a_compactor_ran_itself_is_embedded() -> None:
    pairs = shown(state=JobState.FAILED, finished_ms=500_000, error="unit 12: gone")
    assert (pairs["progress"], pairs["error"]) == (f"######..........  42% (last: {STEP})", "unit 12: gone")
    assert shown(progress={})["engine"] == "-"
    assert shown(progress={"fraction": 0.0, "step": "starting", "engine": ""})["engine"] == "embedded"
    assert shown(state=JobState.DONE, progress={})["engine"] == "embedded"
