"""`--engine`, as a user types it: jobs and passes that run in the command's own process, with or without Spark."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from compactor.planning.plan import new_job, plan_merges
from compactor.planning.spec import MergeKind, MergeSpec, PlanOptions
from metadata.contract.jobs import JobState, MergeJob
from metadata.contract.store import MetadataStore
from metadata.urls import open_metadata
from runtime.clock import SystemClock
from runtime.settings.table import Settings
from siltstone.cli import main
from siltstone.demo.stack import Stack, running_stack
from siltstone.processes.spark_note import spark_note
from tests.integration.siltstone.test_compaction_cli import BALANCES, read, write

OPTIONS = ("--set", "produce.linger.ms=5", "--set", "gc.grace.ms=4000", "--compactors", "0")
SPARK = ("--set", "spark.submitter=local", "--set", "spark.master=local[1]", "--set", "spark.driver.memory=512m")
LATEST = [("user:101", "balance=440"), ("user:102", "balance=1180"), ("user:104", "balance=900")]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A system without a compactor, so that no other process takes a job."""
    data = tmp_path_factory.mktemp("stack") / "data"
    data.mkdir()
    with running_stack(data, SystemClock(), options=OPTIONS) as running:
        yield running


def run(stack: Stack, *words: str) -> Result:
    return CliRunner().invoke(main, [*words, "--data", str(stack.data)])


def run_json(stack: Stack, *words: str) -> Any:
    done = run(stack, *words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@asynccontextmanager
async def metadata_of(stack: Stack) -> AsyncIterator[MetadataStore]:
    metadata = open_metadata(json.loads((Path(stack.data) / "run.json").read_text())["metadata_url"])
    await metadata.open()
    try:
        yield metadata
    finally:
        await metadata.close()


def planned(stack: Stack, kind: str) -> int:
    """Create a job as a planner does. Returns its id."""

    async def plan() -> int:
        async with metadata_of(stack) as metadata:
            view = await metadata.compactors.compaction_view()
            specs = plan_merges(view, PlanOptions(l0_wait_ms_max=0, l0_wait_ms=0, l0_files_min=1))
            (spec,) = [each for each in specs if each.kind == kind]
            return await metadata.compactors.create_job(new_job(spec))

    return asyncio.run(plan())


def test_a_job_runs_in_the_foreground_once_and_every_refusal_says_why(stack: Stack) -> None:
    write(stack.bootstrap, "orders", BALANCES, policy="delete")
    job_id = planned(stack, "level")
    # impossible requests: no such job, no Spark to be found, L0 files on Spark
    missing = run(stack, "jobs", "run", "99999")
    assert missing.exit_code == 1 and "there is no job 99999" in missing.stderr
    nowhere = run(stack, "jobs", "run", str(job_id), "--engine", "spark", "--set", "spark.merge.min.bytes=1")
    assert nowhere.exit_code == 1
    refused = run(stack, "jobs", "run", str(job_id), "--engine", "spark", *SPARK)
    assert refused.exit_code == 1 and "takes L0 files" in refused.stderr

    # another process runs it
    async def claimed() -> tuple[int, int]:
        async with metadata_of(stack) as metadata:
            lease = await metadata.compactors.register_compactor("elsewhere")
            found = await metadata.compactors.claim_job(lease, job_id=job_id)
            assert found is not None
            return lease.writer_id, found.job.epoch

    async def given_back(epoch: int) -> None:
        async with metadata_of(stack) as metadata:
            await metadata.compactors.give_back_job(job_id, epoch)

    holder, epoch = asyncio.run(claimed())
    busy = run(stack, "jobs", "run", str(job_id))
    assert busy.exit_code == 1 and f"job {job_id} is run by compactor {holder} at elsewhere" in busy.stderr
    asyncio.run(given_back(epoch))
    # it runs, and only once
    done = run_json(stack, "jobs", "run", str(job_id))
    assert (done["job_id"], done["state"], done["result"].get("engine")) == (job_id, "done", None)
    over = run(stack, "jobs", "run", str(job_id))
    assert over.exit_code == 1 and f"job {job_id} is over: it is done" in over.stderr


def test_a_merge_that_was_planned_with_less_time_than_a_cluster_takes_to_start_is_refused(stack: Stack) -> None:
    write(stack.bootstrap, "brief", BALANCES, policy="delete")
    run_json(stack, "jobs", "run", str(planned(stack, "level")))

    async def plain_merge() -> int:
        """Create a pass as a planner without Spark does."""
        async with metadata_of(stack) as metadata:
            topic = next(each for each in await metadata.agents.list_topics() if each.name == "brief")
            extents = [each for id_ in topic.partition_ids for each in await metadata.readers.leveled_extents(id_, 0)]
            spec = MergeSpec(
                kind=MergeKind.MERGE,
                now_ms=await metadata.now_ms(),
                limit_ms=60_000,
                level=2,
                output_bytes=1 << 30,
                dedupe=False,
                extent_ids=tuple(each.extent_id for each in extents),
                input_bytes=sum(each.length for each in extents),
            )
            return await metadata.compactors.create_job(new_job(spec))

    job_id = asyncio.run(plain_merge())
    refused = run(stack, "jobs", "run", str(job_id), "--engine", "spark", *SPARK)
    assert refused.exit_code == 1
    assert f"job {job_id} was planned for a compactor and must end within 60 s" in refused.stderr
    assert "may take 600 s" in refused.stderr and "leave --engine out" in refused.stderr
    assert run_json(stack, "jobs", "show", str(job_id))["state"] == "ready"
    run_json(stack, "jobs", "run", str(job_id))
    shown = run(stack, "jobs", "show", str(job_id)).stdout
    assert re.search(r"engine +embedded", shown) and re.search(r"progress +#{16} 100%\n", shown)


def test_where_nothing_says_where_spark_is_that_is_said_before_anything_runs(stack: Stack) -> None:
    write(stack.bootstrap, "nowhere", BALANCES)
    refused = run(stack, "compact", "nowhere", "--now", "--engine", "spark")
    assert refused.exit_code == 1
    assert "spark.submitter is none" in refused.stderr and "'.[spark]'" in refused.stderr
    assert len(read(stack.bootstrap, "nowhere")) == len(BALANCES)
    without_now = run(stack, "compact", "nowhere", "--engine", "embedded")
    assert without_now.exit_code == 2 and "--now" in without_now.stderr


def test_a_pass_on_the_embedded_engine_runs_here_and_stores_no_request(stack: Stack) -> None:
    write(stack.bootstrap, "here", BALANCES)
    done = run_json(stack, "compact", "here", "--now", "--engine", "embedded", "--timeout", "100")
    assert (done["records_before"], done["records_after"]) == (10, 5)
    (state,) = run_json(stack, "topics", "describe", "here")["compaction"]
    assert state["requested_through_offset"] is None
    assert [pair[1:] for pair in read(stack.bootstrap, "here") if pair[1:] in LATEST] != []


@pytest.mark.soak  # the demo's test does the same in every run
def test_a_pass_on_spark_leaves_one_record_a_key_and_the_job_says_who_ran_it(stack: Stack) -> None:
    write(stack.bootstrap, "users", BALANCES)
    done = run_json(stack, "compact", "users", "--now", "--engine", "spark", "--timeout", "100", *SPARK)
    assert (done["records_before"], done["records_after"]) == (10, 5)
    engines = [run_json(stack, "jobs", "show", str(each))["result"].get("engine") for each in done["jobs"]]
    assert engines[-1:] == ["local"] or "local" in engines
    assert {key for _, key, _ in read(stack.bootstrap, "users")} == {key for key, _ in BALANCES}


@pytest.mark.parametrize(
    ("changed", "told"), [({}, True), ({"kind": "level"}, False), ({"input_bytes": 9}, False), ({"result": "x"}, False)]
)
def test_a_job_that_spark_would_run_says_how_to_add_it(changed: dict[str, Any], told: bool) -> None:
    fields: dict[str, Any] = {"kind": "merge", "input_bytes": 10, "result": {}, **changed}
    if fields["result"]:
        fields["result"] = {"engine": "local"}
    job = MergeJob(
        **fields,
        job_id=1,
        state=JobState.DONE,
        epoch=1,
        spec={},
        holder=1,
        attempts=1,
        created_ms=0,
        started_ms=0,
        deadline_ms=0,
        finished_ms=0,
        lease_until_ms=None,
        input_files=1,
        progress={},
        error="",
    )
    note = spark_note(job, Settings(spark_merge_min_bytes=10))
    assert ("'.[spark]'" in note) is told
    assert not spark_note(job, Settings(spark_merge_min_bytes=10, spark_submitter="local"))
