"""An export's tasks on Spark: each reads its slice and writes its files itself; only names and counts come back.
Tasks `by_key` are one job with a shuffle before (`spark_jobs/tables/keyed/session_job.py`).

A task that is tried again, or run twice, writes files under other names. No commit names the files of the attempt that
Spark did not take. Only the driver commits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from pyspark.sql import SparkSession

from runtime.errors import SiltstoneError
from spark_jobs.session import end_session, local_session
from spark_jobs.tables.file_task import WriteResult, WriteTask
from spark_jobs.tables.keyed.session_job import written
from spark_jobs.tables.keyed.writes import write_task

POLL_S = 0.5


class OnSpark:
    """Runs tasks in a given session, or in one of its own on this machine, started at the first task."""

    name = "spark"
    shuffles = True

    def __init__(self, session: SparkSession | None = None) -> None:
        self._session, self._given = session, session is not None

    def run(self, tasks: Sequence[WriteTask], done: Callable[[int], None]) -> Sequence[WriteResult]:
        """Run the tasks. Raises a task's error if it was one of ours."""
        if not tasks:
            return []
        if self._session is None:
            self._session = local_session("siltstone tables export")
        context = cast("Any", self._session.sparkContext)
        counter = context.accumulator(0)
        ended = threading.Event()
        watch = threading.Thread(target=_watch, args=(counter, len(tasks), done, ended), daemon=True)
        watch.start()
        try:
            outcomes: list[WriteResult | SiltstoneError]
            if tasks[0].by_key and not tasks[0].survivors:
                outcomes = written(self._session, tasks, counter)
            else:
                rdd = context.parallelize(list(tasks), len(tasks))
                outcomes = rdd.mapPartitions(_Work(counter)).collect()
        finally:
            ended.set()
            # Before the last report below, or the watcher could show an older number after it.
            watch.join()
        results: list[WriteResult] = []
        for outcome in outcomes:
            if isinstance(outcome, SiltstoneError):
                raise outcome
            results.append(outcome)
        done(len(results))
        return results

    def close(self) -> None:
        """End the session, if it is ours."""
        if self._session is not None and not self._given:
            end_session(self._session)
            self._session = None


class _Work:
    """The function of the tasks; travels to them by reference to this module."""

    def __init__(self, counter: Any) -> None:
        self._counter = counter

    def __call__(self, tasks: Iterator[WriteTask]) -> Iterator[WriteResult | SiltstoneError]:
        for task in tasks:
            try:
                result = write_task(task)
            except SiltstoneError as error:
                if error.retriable:
                    raise
                yield error  # trying again would not help, and Spark would show it as a Java stack trace
                return
            self._counter.add(1)
            yield result


def _watch(counter: Any, count_max: int, done: Callable[[int], None], ended: threading.Event) -> None:
    while not ended.wait(POLL_S):
        done(min(int(counter.value), count_max))  # a task that Spark runs again counts again
