"""The driver of a heavy merge: `spark-submit spark_jobs/heavy_merge.py --plan URL`.

Spark carries only numbers. Each task gets the URL of the plan and the number of one unit. It reads the head of the plan
and the inputs of its unit, merges the unit (`compactor/heavy/run_unit.py`) and itself writes the outputs and then the
manifest into the object store; no record passes through the JVM. The driver reads the head alone. Partitions that are
cut into slices go through `spark_jobs/full_dedupe.py` first.

The same driver runs the units of an export to a table (`spark_jobs/tables/cluster/unit.py`), if the plan is of one.

The driver commits nothing; the compactor does, or the exporter. A driver or a task that dies leaves manifests, which
the next driver finds, and outputs that no manifest names. Units may be tried again, twice at once, or by two drivers:
the first finished manifest of each counts. An error that another try cannot heal ends the driver at once, instead of
being tried four times. SIGTERM cancels the running units and ends the driver, and so does its time limit.

The driver prints a line of JSON on stdout for each finished unit. The exit code is 0 when all units have manifests, 1
when one failed, 2 for a plan that cannot be run, 143 after SIGTERM or out of time.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

if __name__ == "__main__" and sys.path and sys.path[0] == str(Path(__file__).resolve().parent):
    del sys.path[0]  # a script's own directory, whose modules would hide others of the same name

from compactor.heavy.failures import UnitFailedError
from compactor.heavy.plan.units import HeavyPlan, UnitKind
from compactor.heavy.run_unit import run_unit
from runtime.errors import BadInputError, SiltstoneError
from runtime.runtime import Runtime
from spark_jobs import worker_process
from spark_jobs.stored_plan import EXPORT, OpenPlan, kind_of

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext
    from pyspark.sql import SparkSession

    from spark_jobs.keys.layout import Surviving
    from spark_jobs.tables.cluster.unit import OpenExport

LOOK_S = 0.1
"""The seconds between two looks for finished units and signals."""
CANCEL_S = 5.0
"""The seconds to wait for cancelled tasks."""
STOPPED, FAILED, BAD_PLAN = 143, 1, 2
_LOCAL = re.compile(r"local(?:\[(\*|[1-9]\d*)(?:,\s*([1-9]\d*))?\])?")


class Finished(NamedTuple):
    """A task's report of its unit; the manifest holds more."""

    unit: int
    kind: str = ""
    seconds: float = 0.0
    input_bytes: int = 0
    output_bytes: int = 0
    error: str = ""
    """The error of a unit that failed for good."""

    def line(self) -> str:
        return json.dumps({name: value for name, value in self._asdict().items() if value != ""})


TaskFunction = Callable[[str, "Accumulator[list[Finished]]", Iterable[int]], Iterator[Finished]]
"""(URL of the plan, the accumulator of finished units, numbers of units) -> finished units."""


class StoppedError(SiltstoneError):
    """The driver was told to end."""


# ---- in a task


def run_in_task(plan_url: str, told: Accumulator[list[Finished]], numbers: Iterable[int]) -> Iterator[Finished]:
    """Run the units of one partition of the RDD, which holds one."""
    for number in numbers:
        finished = _unit(plan_url, number)
        # By the accumulator as well as the result: results come only at the end of the job, and people and failures
        # should not wait for it.
        told.add([finished])
        yield finished
    worker_process.settle()


def export_in_task(plan_url: str, told: Accumulator[list[Finished]], numbers: Iterable[int]) -> Iterator[Finished]:
    """As `run_in_task`, for the plan of an export."""
    worker_process.prepare()
    for number in numbers:
        finished = _exported(plan_url, number)
        told.add([finished])
        yield finished
    worker_process.settle()


def export_survivors_in_task(
    plan_url: str, told: Accumulator[list[Finished]], number: int, surviving: Surviving
) -> None:
    """As `export_in_task`, for one unit of a plan by key."""
    worker_process.prepare()
    told.add([_exported(plan_url, number, surviving)])
    worker_process.settle()


def _exported(plan_url: str, number: int, surviving: Surviving | None = None) -> Finished:
    """As `_unit`, for the plan of an export."""
    from spark_jobs.tables.cluster.unit import run_unit as run_export_unit

    try:
        return Finished(number, EXPORT, *run_export_unit(plan_url, number, surviving))
    except SiltstoneError as error:
        if error.retriable:
            raise
        return Finished(number, error=f"slice {number}: {error}")


def _unit(plan_url: str, number: int) -> Finished:
    """Run one unit. Raises only errors that another try, perhaps elsewhere, may heal."""
    worker_process.prepare()
    try:
        opened = OpenPlan.at(plan_url)
        plan = opened.with_unit(number)
        result = opened.call(lambda store: run_unit(store, plan, number, runtime=Runtime()))
    except SiltstoneError as error:
        if error.retriable:
            raise
        # Returned, not raised: Spark would try a raised error four times, and this one is final.
        return Finished(number, error=f"unit {number}: {error}")
    input_bytes, output_bytes = plan.unit(number).input_bytes, sum(file.size_bytes for file in result.outputs)
    return Finished(number, result.kind.value, round(result.seconds, 3), input_bytes, output_bytes)


# ---- the driver


def say(finished: Finished) -> None:
    """Print a line on stdout."""
    print(finished.line(), flush=True)  # noqa: T201


class UnitJobs:
    """Runs Spark jobs on a session, whose tasks are units of one plan.

    All jobs have the plan's tag, by which Spark's page and `cancel` find them, and a description for people.
    """

    def __init__(
        self,
        spark: SparkSession,
        tag: str,
        plan_url: str,
        *,
        stop: threading.Event,
        tell: Callable[[Finished], None] = say,
    ) -> None:
        self._spark, self._tag, self._plan_url, self._stop, self._tell = spark, tag, plan_url, stop, tell

    def units(self, numbers: Sequence[int], run: TaskFunction, description: str) -> None:
        """Run the units, one per task. `local[2]` and `parallelize` keep to that; `repartition` would not."""
        if not numbers:
            return
        context = self._spark.sparkContext
        self.telling(
            lambda told: (
                context.parallelize(numbers, len(numbers))
                .mapPartitions(functools.partial(run, self._plan_url, told))
                .collect()
            ),
            description,
        )

    def telling(self, work: Callable[[Accumulator[list[Finished]]], object], description: str) -> None:
        """Run a Spark job whose tasks add finished units to the accumulator, and tell of each."""
        none: list[Finished] = []
        told: Accumulator[list[Finished]] = self._spark.sparkContext.accumulator(none, _list_param())
        shown = 0

        def tell() -> None:
            nonlocal shown
            finished = told.value
            new, shown = finished[shown:], len(finished)
            for each in new:
                self._tell(each)
            failed = next((each.error for each in new if each.error), "")
            if failed:
                raise UnitFailedError(failed)

        self.beside(lambda: work(told), tell, description)

    def beside(self, work: Callable[[], object], tell: Callable[[], None], description: str) -> None:
        """Run a Spark job in a thread and watch beside it: signals reach only the main thread."""
        problem: list[BaseException] = []

        def job() -> None:
            context: SparkContext = self._spark.sparkContext
            try:
                # In this thread, because Spark keeps both by thread.
                context.addJobTag(self._tag)
                context.setJobDescription(f"siltstone: {description}")
                work()
            # Kept for the main thread; in this one nobody would see it.
            except BaseException as error:
                problem.append(error)

        thread = threading.Thread(target=job, name="units", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(LOOK_S)
                tell()
                if self._stop.is_set():
                    raise StoppedError("told to end")
        except SiltstoneError:
            self._cancel()
            # Not longer: the caller ends the JVM next, and that ends whatever is left.
            thread.join(CANCEL_S)
            raise
        if problem:
            raise problem[0]
        tell()

    def _cancel(self) -> None:
        context: SparkContext = self._spark.sparkContext
        context.cancelJobsWithTag(self._tag)


class Driver:
    """Runs the units of a merge. `plan`: its head is enough."""

    def __init__(
        self,
        spark: SparkSession,
        plan: HeavyPlan,
        plan_url: str,
        *,
        stop: threading.Event,
        tell: Callable[[Finished], None] = say,
    ) -> None:
        self._spark, self._plan, self._plan_url = spark, plan, plan_url
        self._jobs = UnitJobs(spark, _tag(plan.job_id, plan.fingerprint), plan_url, stop=stop, tell=tell)

    def run(self) -> None:
        """Run until every unit has its manifest. Raises UnitFailedError, StoppedError, and Spark's errors."""
        if self._plan.units_of(UnitKind.KEYS):
            from spark_jobs import full_dedupe

            # Before the other units, because REWRITE units need the grouped keys of their whole partition.
            slices = len(self._plan.units_of(UnitKind.KEYS))
            self._jobs.beside(
                lambda: full_dedupe.run(self._spark, self._plan, self._plan_url),
                lambda: None,
                f"reading the keys of {slices} slices of merge {self._plan.job_id}",
            )
        units = [unit for unit in self._plan.units if unit.kind is not UnitKind.KEYS]
        # the longest first, so that it does not run alone at the end
        numbers = [unit.number for unit in sorted(units, key=lambda unit: -unit.input_bytes)]
        self._jobs.units(numbers, run_in_task, f"writing {len(numbers)} units of merge {self._plan.job_id}")


class ExportDriver:
    """Runs the units of an export."""

    def __init__(
        self,
        spark: SparkSession,
        plan: OpenExport,
        plan_url: str,
        *,
        stop: threading.Event,
        tell: Callable[[Finished], None] = say,
    ) -> None:
        self._spark, self._plan, self._plan_url = spark, plan, plan_url
        self._jobs = UnitJobs(spark, _tag(plan.head.job_id, plan.fingerprint), plan_url, stop=stop, tell=tell)

    def run(self) -> None:
        """Run until every unit has its manifest. Raises UnitFailedError, StoppedError, and Spark's errors."""
        head = self._plan.head
        description = f"writing {len(head.sizes)} slices of topic {head.options.topic} to {head.place_name}"
        if head.places:
            self._jobs.telling(self._by_key, description)
            return
        numbers = sorted(range(head.units), key=lambda number: -head.sizes[number])
        self._jobs.units(numbers, export_in_task, description)

    def _by_key(self, told: Accumulator[list[Finished]]) -> None:
        from spark_jobs.tables.cluster import keyed

        write = functools.partial(export_survivors_in_task, self._plan_url, told)
        keyed.run(self._spark, keyed.places_left(self._plan), self._plan_url, write)


def _tag(job_id: int, fingerprint: str) -> str:
    return f"siltstone-{job_id}-{fingerprint[:8]}"


def _list_param() -> Any:
    from pyspark.accumulators import AccumulatorParam

    class Joined(AccumulatorParam[list[Finished]]):
        def zero(self, value: list[Finished]) -> list[Finished]:
            return []

        def addInPlace(self, value1: list[Finished], value2: list[Finished]) -> list[Finished]:
            return value1 + value2

    return Joined()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the units of a heavy merge.")
    parser.add_argument("--plan", required=True, metavar="URL", help="the plan that a compactor stored")
    parser.add_argument("--master", default="", help="local[CORES,ATTEMPTS]; under spark-submit, leave it out")
    parser.add_argument("--memory", default="1g", help="memory of the driver's JVM; only with --master")
    parser.add_argument("--limit-ms", type=int, default=0, help="end after this time as if by SIGTERM; 0: no limit")
    given = parser.parse_args(arguments)
    stop = threading.Event()
    heed_sigterm(stop)
    if given.limit_ms:
        end_after(given.limit_ms, stop)
    try:
        return _run(given.plan, given.master, given.memory, stop)
    except StoppedError:
        return STOPPED
    except BadInputError as error:
        print(f"siltstone: {error}", file=sys.stderr, flush=True)  # noqa: T201
        return BAD_PLAN
    except SiltstoneError as error:
        print(f"siltstone: {error}", file=sys.stderr, flush=True)  # noqa: T201
        return FAILED
    except Exception as error:
        if stop.is_set():
            return STOPPED  # the error comes from our own ending
        print(f"siltstone: {_told_by_spark(error)}", file=sys.stderr, flush=True)  # noqa: T201
        return FAILED


def end_after(limit_ms: int, stop: threading.Event) -> None:
    """Stop after this time: a driver on a cluster outlives its compactor, so nobody may be left to stop it."""
    timer = threading.Timer(limit_ms / 1000, stop.set)
    timer.daemon = True
    timer.start()


def heed_sigterm(stop: threading.Event) -> None:
    def told_to_end(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, told_to_end)


def _run(plan_url: str, master: str, memory: str, stop: threading.Event) -> int:
    name, drive = _opened(plan_url, stop)  # before the JVM, which takes seconds: most mistakes show here
    from spark_jobs.session import end_session, local_session, session_for

    if master:
        cores, attempts = parse_master(master)
        spark = local_session(name, cores, attempts=attempts, memory=memory)
    else:
        spark = session_for(name, conf={"spark.log.level": "WARN"})  # its errors must not drown in other lines
    heed_sigterm(stop)  # PySpark has handlers of its own
    try:
        if stop.is_set():
            raise StoppedError("told to end")
        drive(spark)
    finally:
        end_session(spark)
    return 0


def _opened(plan_url: str, stop: threading.Event) -> tuple[str, Callable[[SparkSession], None]]:
    """The name of the work in a plan, and what does it. Raises PlanError, ExportPlanError and the store's errors."""
    if kind_of(plan_url) == EXPORT:
        from spark_jobs.tables.cluster.unit import OpenExport

        export = OpenExport.at(plan_url)
        name = f"siltstone export of {export.head.options.topic}"
        return name, lambda spark: ExportDriver(spark, export, plan_url, stop=stop).run()
    plan = OpenPlan.at(plan_url).head
    return f"siltstone merge {plan.job_id}", lambda spark: Driver(spark, plan, plan_url, stop=stop).run()


def parse_master(master: str) -> tuple[int | None, int]:
    """(cores, None = all; attempts) of local, local[N], local[*], local[N,M]. Raises BadInputError."""
    found = _LOCAL.fullmatch(master)
    if found is None:
        raise BadInputError(
            f"--master (spark.master) is {master!r}",
            remedy="write local[*], local[CORES] or local[CORES,ATTEMPTS]; for other clusters use spark-submit",
        )
    cores = {None: 1, "*": None}.get(found[1], found[1])
    return None if cores is None else int(cores), int(found[2] or 4)


def _told_by_spark(error: Exception) -> str:
    """The last Python error of a failed task, which Spark wraps in pages of stack traces."""
    lines = [line for line in str(error).splitlines() if re.match(r"(\w+\.)*\w*(Error|Exception)\b", line)]
    python = [line for line in lines if not line.startswith(("org.apache", "java.", "py4j."))]
    return (python or lines or [f"{type(error).__name__}: {error}"])[0]


if __name__ == "__main__":
    # Imported under its own name, so that tasks find the functions of this module where they are installed.
    from spark_jobs.heavy_merge import main as run

    sys.exit(run())
