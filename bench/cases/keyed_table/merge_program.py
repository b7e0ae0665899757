"""Spark's `MERGE INTO`, with Iceberg's runtime. It runs in an environment of its own: nothing of ours is imported.

Arguments: the runtime's jar, a folder for Spark, the newest metadata file of the table, the Parquet file of changed
rows, and the mode of the merge. The last line of the output is JSON: seconds of the statement, CPU seconds and peak
memory of Spark's JVM, and the metadata file that it leaves.
"""

import importlib
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

TABLE = "bench.n.t"


def main(jar: str, folder: str, metadata: str, changes: str, mode: str) -> None:
    sql: Any = importlib.import_module("pyspark.sql")
    place = Path(metadata.removeprefix("file://")).parent.parent
    # A catalog of Spark's that takes a folder's word for the newest metadata.
    warehouse = Path(folder) / "warehouse"
    (warehouse / "n" / "t").mkdir(parents=True, exist_ok=True)
    link = warehouse / "n" / "t" / "metadata"
    shutil.rmtree(link, ignore_errors=True)
    link.mkdir()
    shutil.copy(metadata.removeprefix("file://"), link / "v1.metadata.json")
    (link / "version-hint.text").write_text("1")
    settings = {
        "spark.jars": jar,
        "spark.ui.enabled": "false",
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": "8",
        "spark.local.dir": folder,
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.bench": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.bench.type": "hadoop",
        "spark.sql.catalog.bench.warehouse": warehouse.as_uri(),
        "spark.sql.catalog.bench.cache-enabled": "false",
    }
    builder = sql.SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sql(
        f"ALTER TABLE {TABLE} SET TBLPROPERTIES ('write.merge.mode'='{mode}', 'write.data.path'='{place}/data')"
    )
    session.read.parquet(changes).createOrReplaceTempView("changes")
    session.sql(f"SELECT count(*) FROM {TABLE} LIMIT 1").collect()
    pid = int(session.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    began, used = time.monotonic(), cpu_s(pid)
    session.sql(
        f"MERGE INTO {TABLE} t USING changes c ON t.kafka_key = c.kafka_key"
        " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    wall_s, spent = time.monotonic() - began, cpu_s(pid) - used
    status = Path(f"/proc/{pid}/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
    version = (link / "version-hint.text").read_text()
    left = (link / f"v{version}.metadata.json").as_uri()
    session.stop()
    print(json.dumps({"wall_s": wall_s, "cpu_s": spent, "peak_bytes": peak, "metadata": left}))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main(*sys.argv[1:])
