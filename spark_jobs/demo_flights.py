"""The demo's question to Spark about its flights, as a program of its own: `python -m spark_jobs.demo_flights TOPIC`.

Reads the topic by `spark.read.format("siltstone")`, with no agent in between, and prints one JSON object: carrier ->
[flights, miles, mean delay of departure in minutes]. SILTSTONE_METADATA_URL and SILTSTONE_OBJECT_STORE_URL tell where
the records lie.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import avg, col, count, from_json, lit
from pyspark.sql.functions import sum as sum_of

from spark_jobs.environment import SHORT_LIVED
from spark_jobs.session import end_session, local_session

CORES = 2
FIELDS = "carrier string, distance int, dep_delay int"


def by_carrier(spark: SparkSession, topic: str) -> dict[str, tuple[int, int, float]]:
    values = spark.read.format("siltstone").option("topic", topic).option("columns", "value").load()
    flights = values.select(from_json(col("value").cast("string"), FIELDS).alias("flight")).select("flight.*")
    rows = (
        flights.groupBy("carrier")
        .agg(count(lit(1)).alias("flights"), sum_of("distance").alias("miles"), avg("dep_delay").alias("delay"))
        .collect()
    )
    return {row["carrier"]: (row["flights"], row["miles"], row["delay"] or 0.0) for row in rows}


def main() -> None:
    [topic] = sys.argv[1:]
    spark = local_session("siltstone-demo", cores=CORES, java_options=SHORT_LIVED)
    try:
        found = by_carrier(spark, topic)
    finally:
        end_session(spark)
    json.dump(found, sys.stdout)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
