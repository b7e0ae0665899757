"""Drivers as child processes, and job runs on EMR Serverless. No Spark is started here."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest

from compactor.heavy.submitter import Phase, SubmitError, SubmitUnavailableError
from runtime.settings.table import Settings
from spark_jobs import heavy_merge
from spark_jobs.environment import SHORT_LIVED
from spark_jobs.submitters import emr_serverless, open_submitter, spark_submit
from spark_jobs.submitters.child import ChildSubmission, driver_environ, start_child
from spark_jobs.submitters.emr_serverless import PHASES, EmrServerlessSubmitter
from spark_jobs.submitters.local import LocalSubmitter
from tests.fixtures.s3 import ROOT, S3Server
from tests.fixtures.waiting import until

# A driver of two processes, both deaf to SIGTERM on request. They identify themselves and stay.
DRIVER = """
import os, signal, subprocess, sys, time
if "deaf" in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("pids", os.getpid(), child.pid, flush=True)
time.sleep(600)
"""
PLAN = "s3://records/p/jobs/7/" + "ab" * 16 + "/plan.json.zst"


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


async def pids_of(driver: ChildSubmission) -> list[int]:
    def said() -> list[str]:
        return [line for line in driver.last_lines if line.startswith("pids")]

    await until(said)
    return [int(word) for word in said()[0].split()[1:]]


# ---- child processes


async def test_what_a_failed_driver_said_last_is_in_its_state_and_finished_units_are_not() -> None:
    script = "import sys; print('{\"unit\": 1}'); print('siltstone: no such bucket', file=sys.stderr); sys.exit(3)"
    driver = await start_child([sys.executable, "-c", script], os.environ)
    await until(lambda: driver.has_ended)
    state = await driver.state()
    assert state.phase is Phase.FAILED
    assert state.detail.splitlines()[1:] == ["siltstone: no such bucket"]
    assert "exit code 3" in state.detail
    await driver.cancel()


async def test_the_cause_of_a_failed_driver_is_told_though_much_came_after_it() -> None:
    # given a driver that ends as spark-submit does at an option that it does not know
    warned = "26/11/29 16:00:00 WARN TaskSchedulerImpl: Initial job has not accepted any resources"
    said = f"print({warned!r}); print('Error: Unrecognized option: --memroy'); print('usage\\n' * 99)"
    script = f"import sys; {said}; sys.exit(1)"
    driver = await start_child([sys.executable, "-c", script], os.environ)
    await until(lambda: driver.has_ended)
    # then its first lines are how it ended, and why
    how, cause, remedy, *rest = (await driver.state()).detail.splitlines()
    assert "exit code 1" in how and cause == "Error: Unrecognized option: --memroy"
    assert remedy == "remedy: correct spark.submit.args: `spark-submit --help` lists the options"
    assert set(rest) == {"usage"}
    await driver.cancel()


async def test_a_driver_that_does_not_stop_talking_ends_well() -> None:
    script = "print('x' * 300_000); print('\\n'.join('noise' for _ in range(20_000)))"
    driver = await start_child([sys.executable, "-c", script], os.environ)
    await until(lambda: driver.has_ended)
    assert (await driver.state()).phase is Phase.SUCCEEDED


async def test_a_driver_that_runs_says_what_it_said_last() -> None:
    script = "import time; print('WARN: no master answers', flush=True); time.sleep(600)"
    driver = await start_child([sys.executable, "-c", script], os.environ)
    await until(lambda: bool(driver.last_lines))
    assert await driver.state() == (Phase.RUNNING, "WARN: no master answers")
    await driver.let_go()  # no other compactor has this driver
    assert driver.has_ended


def test_a_driver_is_given_no_way_into_postgres() -> None:
    given = {"PATH": "/bin", "SILTSTONE_METADATA_URL": "x", "PGHOST": "x", "PGPASSWORD": "x", "PGSERVICE": "x"}
    assert driver_environ(given) == {"PATH": "/bin"}


def test_a_driver_whose_time_is_over_is_told_to_end() -> None:
    stop = threading.Event()
    heavy_merge.end_after(20, stop)
    assert stop.wait(10)


async def test_a_cancelled_driver_ends_with_all_its_processes() -> None:
    driver = await start_child([sys.executable, "-c", DRIVER], os.environ)
    pids = await pids_of(driver)
    assert (await driver.state()).phase is Phase.RUNNING
    await driver.cancel()
    await until(lambda: not any(map(is_alive, pids)))
    assert (await driver.state()).phase is Phase.FAILED
    await driver.cancel()  # a second call is harmless


async def test_a_driver_that_does_not_heed_sigterm_is_killed() -> None:
    driver = await start_child([sys.executable, "-c", DRIVER, "deaf"], os.environ, grace_s=0.2)
    pids = await pids_of(driver)
    await driver.cancel()
    await until(lambda: not any(map(is_alive, pids)))


async def test_a_driver_ends_when_the_process_that_started_it_is_killed() -> None:
    # given a process that has started a driver
    parent_script = (
        "import asyncio, os, sys\n"
        "from spark_jobs.submitters.child import start_child\n"
        "async def main():\n"
        "    driver = await start_child([sys.executable, '-c', sys.argv[1]], os.environ)\n"
        "    while not driver.last_lines: await asyncio.sleep(0.02)\n"
        "    print(driver.last_lines[0], driver.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", parent_script, DRIVER], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert parent.stdout is not None
    pids = [int(word) for word in (await asyncio.to_thread(parent.stdout.readline)).split()[1:]]
    assert len(pids) == 3 and all(map(is_alive, pids))
    # when it is killed
    parent.send_signal(signal.SIGKILL)
    await asyncio.to_thread(parent.wait)
    parent.stdout.close()
    # then no process of the driver is left
    await until(lambda: not any(map(is_alive, pids)))


async def test_a_driver_dies_with_its_supervisor() -> None:
    driver = await start_child([sys.executable, "-c", DRIVER], os.environ)
    pids = await pids_of(driver)
    os.kill(driver.pid, signal.SIGKILL)
    await until(lambda: not is_alive(pids[0]))
    await until(lambda: driver.has_ended)
    assert (await driver.state()).phase is Phase.FAILED
    os.kill(pids[1], signal.SIGKILL)  # in a real driver this is the JVM, which ends when its stdin closes
    await driver.cancel()


# ---- the choice of a submitter


def test_no_submitter_is_opened_where_none_is_wanted() -> None:
    assert open_submitter(Settings()) is None


def test_a_spark_submit_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    settings = Settings(spark_submitter="spark-submit", spark_submit_path=str(tmp_path / "spark-submit"))
    with pytest.raises(SubmitError, match="no such file"):
        open_submitter(settings)


def test_an_archive_that_the_cluster_cannot_read_is_told_at_once() -> None:
    settings = Settings(
        spark_submitter="spark-submit", spark_master="spark://127.0.0.1:7077", spark_archive_url="s3://code/env.tar.gz"
    )
    with pytest.raises(SubmitError, match=r"no file system here for s3://.* write s3a://.*hadoop-aws:"):
        open_submitter(settings)


async def test_spark_submit_is_given_the_plan_and_what_the_settings_say_and_no_way_into_postgres(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a spark-submit that prints how it was called
    program = tmp_path / "spark-submit"
    program.write_text('#!/bin/sh\nfor each in "$@"; do echo "$each"; done\nenv\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("SILTSTONE_METADATA_URL", "postgresql://me:secret@db/silt")
    settings = Settings(
        spark_submitter="spark-submit",
        spark_submit_path=str(program),
        spark_submit_args="--conf 'spark.app.name=a b'",
        spark_master="spark://127.0.0.1:7077",
        spark_archive_url="http://127.0.0.1/env.tar.gz",
    )
    submitter = open_submitter(settings)
    assert submitter is not None
    monkeypatch.setattr("spark_jobs.submitters.child.LINES_KEPT", 1_000)
    # when a driver is submitted
    driver = await submitter.submit(PLAN, job_id=7, token="7-ab-1", limit_ms=60_000)
    assert isinstance(driver, ChildSubmission)
    await until(lambda: driver.has_ended)
    # then
    said = (await driver.state()).detail.splitlines()
    at = said.index(str(spark_submit.ENTRY))
    assert said[at : at + 5] == [str(spark_submit.ENTRY), "--plan", PLAN, "--limit-ms", "60000"]
    assert said[said.index("--master") + 1] == "spark://127.0.0.1:7077"
    assert {"spark.app.name=a b", "spark.archives=http://127.0.0.1/env.tar.gz#environment"} <= set(said[:at])
    assert not [line for line in said if "secret" in line]
    assert any(line.startswith("PYSPARK_PYTHON=") for line in said)


def test_a_driver_on_this_machine_compiles_less_unless_somebody_chose_javas_options() -> None:
    def options(**environ: str) -> str | None:
        kept = {name: text for name, text in os.environ.items() if not name.endswith(("_OPTIONS", "_SUBMIT_OPTS"))}
        submitter = open_submitter(Settings(spark_submitter="local"), environ={**kept, **environ})
        assert isinstance(submitter, LocalSubmitter)
        return submitter.environ.get("SPARK_SUBMIT_OPTS")

    assert options() == SHORT_LIVED
    assert options(SPARK_SUBMIT_OPTS="-Xss2m") == "-Xss2m"
    assert options(JAVA_TOOL_OPTIONS="-XX:+UseZGC") is None


# ---- EMR Serverless


EMR = {
    "spark_submitter": "emr-serverless",
    "spark_emr_application_id": "00f1abcd2efg3h09",
    "spark_emr_role_arn": "arn:aws:iam::123456789012:role/merges",
    "spark_emr_entry_url": "s3://records/heavy_merge.py",
}


class EmrStub:
    """An API that gives the answers that the test sets, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, Any]] = []
        self.state = "RUNNING"
        self.details = ""
        self.fails: tuple[int, str] | None = None
        self.runs: dict[str, str] = {}
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length) or b"{}")
                stub.requests.append((self.command, self.path, body))
                status, said = stub.answer(self.command, self.path, body)
                encoded = json.dumps(said).encode()
                self.send_response(status)
                if status >= 400:
                    self.send_header("x-amzn-ErrorType", said["code"])
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(encoded)))
                self.end_headers()
                self.wfile.write(encoded)

            do_GET = do_POST = do_DELETE = answer

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def answer(self, method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        if self.fails is not None:
            return self.fails[0], {"code": self.fails[1], "message": "said the stub"}
        if method == "POST":
            run_id = self.runs.setdefault(body["clientToken"], f"run{len(self.runs)}")
            return 200, {"applicationId": "a", "jobRunId": run_id, "arn": "arn"}
        run_id = path.rpartition("/")[2]
        if method == "DELETE":
            return 200, {"applicationId": "a", "jobRunId": run_id}
        return 200, {"jobRun": {"jobRunId": run_id, "state": self.state, "stateDetails": self.details}}


@pytest.fixture
def emr(aws_environment: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmrStub]:
    stub = EmrStub()
    monkeypatch.setenv("AWS_ENDPOINT_URL_EMR_SERVERLESS", f"http://127.0.0.1:{stub.server.server_port}")
    yield stub
    stub.server.shutdown()
    stub.server.server_close()
    stub.thread.join()


@pytest.fixture
async def submitter(emr: EmrStub) -> AsyncIterator[EmrServerlessSubmitter]:
    opened = open_submitter(Settings(**EMR, spark_archive_url="s3://records/env.tar.gz"))
    assert isinstance(opened, EmrServerlessSubmitter)
    yield opened


async def submit(submitter: EmrServerlessSubmitter, *, limit_ms: int = 600_001) -> Any:
    return await submitter.submit(PLAN, job_id=7, token="7-ab-1", limit_ms=limit_ms)


async def test_a_job_run_is_started_with_the_plan_a_token_and_an_end_and_known_again_and_cancelled(
    submitter: EmrServerlessSubmitter, emr: EmrStub
) -> None:
    run = await submit(submitter)
    method, path, body = emr.requests[0]
    assert (method, path) == ("POST", "/applications/00f1abcd2efg3h09/jobruns")
    assert (body["clientToken"], body["executionTimeoutMinutes"]) == ("7-ab-1", 11)
    assert body["executionRoleArn"] == EMR["spark_emr_role_arn"]
    driver = body["jobDriver"]["sparkSubmit"]
    assert (driver["entryPoint"], driver["entryPointArguments"]) == (EMR["spark_emr_entry_url"], ["--plan", PLAN])
    assert "spark.archives=s3://records/env.tar.gz#environment" in driver["sparkSubmitParameters"]
    # and a restarted compactor is given the same run, which EMR lets live at least five minutes
    again = await submit(submitter, limit_ms=1)
    assert again.run_id == run.run_id
    assert emr.requests[1][2]["executionTimeoutMinutes"] == 5
    # and the first to let go cancels it, once; an API answer that the run is over already is no error
    await run.cancel()
    await run.cancel()
    assert [request[:2] for request in emr.requests[2:]] == [("DELETE", f"{path}/{run.run_id}")]
    emr.fails = 400, "ValidationException"
    await again.cancel()


async def test_every_state_of_a_job_run_is_known(
    submitter: EmrServerlessSubmitter, emr: EmrStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = boto3.session.Session()._session.get_service_model("emr-serverless")
    assert set(service.shape_for("JobRunState").enum) == set(PHASES)
    monkeypatch.setattr(emr_serverless, "ASK_EVERY_S", 0.0)
    run = await submit(submitter)
    emr.details = "worker 3 ran out of disk"
    for said in sorted(PHASES, key=lambda each: PHASES[each].is_over):
        emr.state, run._known = said, None
        state = await run.state()
        assert state.phase is PHASES[said]
        assert said in state.detail and "worker 3 ran out of disk" in state.detail
    emr.state, run._known = "MELTED", None
    with pytest.raises(SubmitError, match="MELTED"):
        await run.state()
    await run.cancel()


async def test_a_job_run_that_is_let_go_runs_on(submitter: EmrServerlessSubmitter, emr: EmrStub) -> None:
    run = await submit(submitter)
    await run.let_go()
    await run.cancel()
    assert [method for method, *_ in emr.requests] == ["POST"]


async def test_a_job_run_is_not_asked_about_more_often_than_every_few_seconds(
    submitter: EmrServerlessSubmitter, emr: EmrStub
) -> None:
    run = await submit(submitter)
    for _ in range(5):
        assert (await run.state()).phase is Phase.RUNNING
    assert len(emr.requests) == 2
    await run.cancel()


async def test_what_may_heal_is_told_from_what_does_not(submitter: EmrServerlessSubmitter, emr: EmrStub) -> None:
    wanted: dict[tuple[int, str], type[Exception]] = {
        (429, "ThrottlingException"): SubmitUnavailableError,
        (402, "ServiceQuotaExceededException"): SubmitUnavailableError,
        (500, "InternalServerException"): SubmitUnavailableError,
        (403, "AccessDeniedException"): SubmitError,
        (400, "ValidationException"): SubmitError,
        (404, "ResourceNotFoundException"): SubmitError,
        (409, "ConflictException"): SubmitError,
    }
    for fails, error in wanted.items():
        emr.fails = fails
        with pytest.raises(error, match="said the stub"):
            await submit(submitter)


async def test_nobody_at_home_may_heal(aws_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_EMR_SERVERLESS", "http://127.0.0.1:9")
    with pytest.raises(SubmitUnavailableError, match="start_job_run"):
        await submit(EmrServerlessSubmitter(Settings(**EMR)))


async def test_a_job_run_on_moto_is_started_asked_and_cancelled(
    moto_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_EMR_SERVERLESS", moto_server.endpoint)
    client: Any = boto3.client("emr-serverless", endpoint_url=moto_server.endpoint, region_name="us-east-1")
    application = client.create_application(name="merges", releaseLabel="emr-7.8.0", type="SPARK")["applicationId"]
    submitter = EmrServerlessSubmitter(Settings(**{**EMR, "spark_emr_application_id": application}))
    run = await submit(submitter)
    assert (await run.state()).phase in set(Phase)
    assert client.get_job_run(applicationId=application, jobRunId=run.run_id)["jobRun"]["executionTimeoutMinutes"] == 11
    await run.cancel()
