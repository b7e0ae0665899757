"""The doctor's job on a cluster: `spark-submit spark_jobs/doctor/cluster_job.py [STORE_URL]`.

Each task tells which Python, Spark and Siltstone it has, and whether it can read the object store. The function of the
tasks travels whole, so that an archive of another release, which may lack it, can tell all the same. Prints one line of
JSON; Spark, Java and Python themselves report errors on stderr.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__" and sys.path and sys.path[0] == str(Path(__file__).resolve().parent):
    del sys.path[0]  # a script's own directory, whose modules would hide others of the same name

import json
from typing import Any

from runtime.clock import SystemClock
from spark_jobs.session import end_session, session_for

TASKS = 4


def look(store_url: str) -> dict[str, Any]:
    """The task. Everything is imported in it: it must run where this module is not."""
    import os
    import socket
    import sys
    from importlib import metadata

    import pyspark

    host = os.environ.get("SPARK_LOCAL_IP") or socket.gethostname()
    told: dict[str, Any] = {"host": host, "python": sys.executable, "spark": pyspark.__version__}

    import compactor.merging.execute

    told["code"] = str(compactor.merging.execute.__file__)
    told["release"] = metadata.version("siltstone")
    try:
        from compactor.heavy.plan.codec import PLAN_VERSION

        told["plan"] = PLAN_VERSION
    except ImportError:  # a release that has it elsewhere
        told["plan"] = "unknown"
    if store_url:
        import asyncio

        from storage.keys import CLUSTER_KEY
        from storage.objects import ObjectNotFoundError
        from storage.urls import open_store

        async def read() -> str:
            store: Any = open_store(store_url)
            await store.open()
            try:
                await store.head(CLUSTER_KEY)
            except ObjectNotFoundError:
                return ""  # nobody has begun to use it, or these are other hosts' files
            finally:
                await store.close()
            return ""

        try:
            asyncio.run(read())
        except Exception as error:  # whatever it is, people should read it
            told["store_error"] = f"{type(error).__name__}: {error}"
    return told


def main(store_url: str = "") -> None:
    clock = SystemClock()
    began_ms = clock.monotonic_ms()
    spark = session_for("siltstone doctor", conf={"spark.log.level": "WARN", "spark.ui.enabled": "false"})
    try:
        started_ms = clock.monotonic_ms()
        told = spark.sparkContext.parallelize([store_url] * TASKS, TASKS).map(look).collect()
        ended_ms = clock.monotonic_ms()
        found = {"spark": spark.version, "tasks": told}
        print(json.dumps(found | {"start_ms": started_ms - began_ms, "job_ms": ended_ms - started_ms}))  # noqa: T201
    finally:
        end_session(spark)


if __name__ == "__main__":
    main(*sys.argv[1:2])
