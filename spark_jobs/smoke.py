"""A Spark on this machine that runs one tiny job, started by the doctor: `python -m spark_jobs.smoke MEMORY`.

Prints one line of JSON. Spark, Java and Python themselves report errors on stderr.
"""

from __future__ import annotations

import json
import sys

from runtime.clock import SystemClock
from spark_jobs.environment import SHORT_LIVED
from spark_jobs.session import end_session, local_session

TASKS = 2


def in_a_worker(number: int) -> tuple[str, str]:
    """Import what a task needs: this Python, our packages, and Arrow."""
    import pyarrow  # pyright: ignore[reportMissingTypeStubs] -- it ships none

    import compactor.planning.spec

    return sys.executable, f"{pyarrow.__name__} {compactor.planning.spec.__name__} {number}"


def main(memory: str) -> None:
    clock = SystemClock()
    began_ms = clock.monotonic_ms()
    spark = local_session("siltstone doctor", TASKS, memory=memory, java_options=SHORT_LIVED)
    try:
        started_ms = clock.monotonic_ms()
        told = spark.sparkContext.parallelize(range(TASKS), TASKS).map(in_a_worker).collect()
        ended_ms = clock.monotonic_ms()
        found = {"workers": len(told), "python": told[0][0], "spark": spark.version}
        print(json.dumps(found | {"start_ms": started_ms - began_ms, "job_ms": ended_ms - started_ms}))  # noqa: T201
    finally:
        end_session(spark)


if __name__ == "__main__":
    # Imported under its own name: a function of `__main__` would be pickled whole.
    from spark_jobs import smoke

    smoke.main(*sys.argv[1:2])
