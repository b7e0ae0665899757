"""Answers SQL with Spark and Iceberg's runtime: a query as JSON on each line of the input, its rows as JSON on a line
of the output. Arguments: the runtime's jar, and a folder."""

import importlib
import json
import os
import sys
from typing import Any


def main(jar: str, folder: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Spark says goes elsewhere
    sql: Any = importlib.import_module("pyspark.sql")
    settings = {
        "spark.jars": jar,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.local.dir": folder,
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    }
    builder = sql.SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    for line in sys.stdin:
        try:
            answer: Any = [list(row) for row in session.sql(json.loads(line)).collect()]
        except Exception as error:
            answer = str(error)
        print(json.dumps(answer, default=str), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
