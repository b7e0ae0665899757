"""A driver on Amazon EMR Serverless: StartJobRun, GetJobRun, CancelJobRun by aioboto3.

The AWS chain gives region and credentials (`AWS_ENDPOINT_URL_EMR_SERVERLESS` names another endpoint). The token is sent
as clientToken, so a restarted compactor gets the job run that it started before. A run ends by itself after the merge's
time limit, so that none is left running when the compactor is gone.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import aioboto3
from aiobotocore.config import AioConfig
from aiohttp import ClientError as HttpError
from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError

from compactor.heavy.submitter import Phase, SubmissionState, SubmitError, SubmitUnavailableError
from runtime.logging import get_logger
from runtime.settings.table import Settings
from spark_jobs.submitters.spark_submit import UNPACKED

TIMEOUT_MINUTES_MIN = 5
"""StartJobRun refuses less."""
PHASES: Mapping[str, Phase] = {
    "SUBMITTED": Phase.PENDING,
    "PENDING": Phase.PENDING,
    "SCHEDULED": Phase.PENDING,
    "QUEUED": Phase.PENDING,
    "RUNNING": Phase.RUNNING,
    "CANCELLING": Phase.RUNNING,  # its executors may still write
    "SUCCESS": Phase.SUCCEEDED,
    "FAILED": Phase.FAILED,
    "CANCELLED": Phase.FAILED,
}
"""All states that the API knows (JobRunState)."""
_TRANSIENT = {
    "InternalServerException",
    "RequestTimeout",
    "ServiceQuotaExceededException",
    "ServiceUnavailableException",
    "ThrottlingException",
    "TooManyRequestsException",
}
_OVER = {"ConflictException", "ResourceNotFoundException", "ValidationException"}
"""CancelJobRun's answers for a run that has ended."""
_REMEDIES = {
    "ResourceNotFoundException": "check spark.emr.application.id and the region of this process",
    "AccessDeniedException": "this process needs emr-serverless:StartJobRun, GetJobRun and CancelJobRun on the"
    " application, and iam:PassRole on spark.emr.role.arn for emr-serverless.amazonaws.com",
    "ValidationException": "check spark.emr.role.arn, spark.emr.entry.url and spark.submit.args",
    "ConflictException": "settings were changed since this merge was submitted: it is planned again when it fails",
}
_OUR_SIDE = "check the AWS credentials and region of this process, and the settings spark.emr.*"
ASK_EVERY_S = 5.0
"""The seconds between two calls of GetJobRun: AWS limits the rate of calls, and manifests show the progress."""
_log = get_logger(__name__)


class EmrServerlessSubmitter:
    """A `compactor.heavy.submitter.Submitter`."""

    name = "emr-serverless"

    def __init__(self, settings: Settings) -> None:
        self._application_id = settings.spark_emr_application_id
        self._role_arn = settings.spark_emr_role_arn
        self._entry_url = settings.spark_emr_entry_url
        memory = ["--conf", f"spark.driver.memory={settings.spark_driver_memory}"]
        arguments = [*memory, *_archive_arguments(settings.spark_archive_url)]
        self._parameters = shlex.join([*arguments, *shlex.split(settings.spark_submit_args)])
        self._session: Any = aioboto3.Session()  # typed `Any`: the stubs of this service are not installed

    async def submit(self, plan_url: str, *, job_id: int, token: str, limit_ms: int) -> EmrSubmission:
        """Raises SubmitError, SubmitUnavailableError."""
        application = await Application.opened(self._session, self._application_id)
        try:
            run_id = await self._start(application, plan_url, job_id, token, limit_ms)
        except BaseException:
            await application.close()
            raise
        _log.info("job run started", job=job_id, application=self._application_id, run=run_id)
        return EmrSubmission(application, run_id)

    async def about(self) -> Mapping[str, Any]:
        """EMR Serverless's account of the application. Raises SubmitError, SubmitUnavailableError."""
        application = await Application.opened(self._session, self._application_id)
        try:
            return (await application.call("get_application"))["application"]
        finally:
            await application.close()

    async def _start(self, application: Application, plan_url: str, job_id: int, token: str, limit_ms: int) -> str:
        answer = await application.call(
            "start_job_run",
            clientToken=token,
            name=f"siltstone-merge-{job_id}",
            executionRoleArn=self._role_arn,
            # Rounded up, so that the run never ends before its merge's time is over.
            executionTimeoutMinutes=max(-(-limit_ms // 60_000), TIMEOUT_MINUTES_MIN),
            jobDriver={
                "sparkSubmit": {
                    "entryPoint": self._entry_url,
                    "entryPointArguments": ["--plan", plan_url],
                    "sparkSubmitParameters": self._parameters,
                }
            },
        )
        return str(answer["jobRunId"])


class Application:
    """The API for one application."""

    def __init__(self, client: Any, stack: AsyncExitStack, application_id: str) -> None:
        self._client, self._stack, self._application_id = client, stack, application_id

    @staticmethod
    async def opened(session: Any, application_id: str) -> Application:
        """Raises SubmitError."""
        config = AioConfig(connect_timeout=5, read_timeout=30, retries={"mode": "standard", "total_max_attempts": 3})
        stack = AsyncExitStack()
        try:
            client = await stack.enter_async_context(session.client("emr-serverless", config=config))
        except BotoCoreError as error:
            raise SubmitError(f"EMR Serverless cannot be called: {error}", remedy=_OUR_SIDE) from error
        return Application(client, stack, application_id)

    async def close(self) -> None:
        await self._stack.aclose()

    async def call(self, operation: str, **arguments: Any) -> Mapping[str, Any]:
        """One operation. Raises SubmitError, SubmitUnavailableError."""
        try:
            return await getattr(self._client, operation)(applicationId=self._application_id, **arguments)
        except ClientError as error:
            raise _answered(operation, error) from error
        except (ConnectionError, HTTPClientError, HttpError, TimeoutError, OSError) as error:
            raise SubmitUnavailableError(f"EMR Serverless does not answer {operation}: {error}") from error
        except BotoCoreError as error:  # no region, no credentials, or an impossible parameter
            raise SubmitError(
                f"EMR Serverless cannot be called for {operation}: {error}",
                remedy=_OUR_SIDE,
            ) from error


class EmrSubmission:
    """A `compactor.heavy.submitter.Submission`: one job run."""

    def __init__(self, application: Application, run_id: str) -> None:
        self._application = application
        self.run_id = run_id
        self._known: SubmissionState | None = None
        self._known_s = 0.0
        self._is_closed = False

    async def state(self) -> SubmissionState:
        """The state, a few seconds old at most. Raises SubmitError, SubmitUnavailableError."""
        now_s = asyncio.get_running_loop().time()
        if self._known is None or (not self._known.phase.is_over and now_s - self._known_s >= ASK_EVERY_S):
            self._known, self._known_s = await self._asked(), now_s
        return self._known

    async def _asked(self) -> SubmissionState:
        run = (await self._application.call("get_job_run", jobRunId=self.run_id))["jobRun"]
        said, details = str(run["state"]), str(run.get("stateDetails") or "")
        phase = PHASES.get(said)
        if phase is None:
            raise SubmitError(f"EMR Serverless says that job run {self.run_id} is {said!r}, which we do not know")
        return SubmissionState(phase, f"job run {self.run_id} is {said}" + (f": {details}" if details else ""))

    async def cancel(self) -> None:
        """Cancel the run. A run that cannot be reached ends by its own timeout."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._known is None or not self._known.phase.is_over:
                await self._application.call("cancel_job_run", jobRunId=self.run_id)
        except (SubmitError, SubmitUnavailableError) as error:
            cause = error.__cause__
            if not (isinstance(cause, ClientError) and _code(cause) in _OVER):
                _log.warning("job run not cancelled; it ends by its timeout", run=self.run_id, error=str(error))
        finally:
            await self._application.close()

    async def let_go(self) -> None:
        """Leave the run alone: the next compactor gets the same run by its token, and may have it by now."""
        if not self._is_closed:
            self._is_closed = True
            await self._application.close()


def _archive_arguments(url: str) -> list[str]:
    """The driver and the executors both unpack it."""
    if not url:
        return []
    python = f"./{UNPACKED}/bin/python"
    confs = {
        "spark.archives": f"{url}#{UNPACKED}",
        "spark.emr-serverless.driverEnv.PYSPARK_DRIVER_PYTHON": python,
        "spark.emr-serverless.driverEnv.PYSPARK_PYTHON": python,
        "spark.executorEnv.PYSPARK_PYTHON": python,
    }
    return [argument for name, value in confs.items() for argument in ("--conf", f"{name}={value}")]


def _answered(operation: str, error: ClientError) -> SubmitError | SubmitUnavailableError:
    code = _code(error)
    said = f"EMR Serverless refuses {operation}: {code}: {error.response.get('Error', {}).get('Message', '')}"
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _TRANSIENT or status >= 500 or status == 429:
        return SubmitUnavailableError(said)
    return SubmitError(said, remedy=_REMEDIES.get(code, ""))


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
