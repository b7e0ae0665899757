"""The declarative pipeline of the guide, run by Spark's own command from its files as they stand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from spark_jobs.environment import find_environment
from tests.fixtures.spark_topics import SparkTopics, aside

ROOT = Path(__file__).resolve().parents[4]
LIMIT_S = 400

pytestmark = pytest.mark.timeout(600)


@pytest.mark.soak
async def test_the_pipeline_of_the_guide_fills_its_tables(spark_topics: SparkTopics, tmp_path: Path) -> None:
    # given the two files of the guide
    guide = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8").partition("\n## Pipelines\n")[2]
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "flights.py").write_text(_block(guide, "python"))
    specification = _block(guide, "yaml").replace("file:///srv/pipelines/flights", (tmp_path / "storage").as_uri())
    (tmp_path / "spark-pipeline.yml").write_text(specification)
    await spark_topics.client.create_topic("flights", partitions=2)
    written = await spark_topics.fill("flights", partitions=2, batches=2, records=20)

    def run() -> subprocess.CompletedProcess[str]:
        options = spark_topics.options("flights")
        environ = {
            **find_environment(os.environ).for_child(os.environ),
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "PYTHONPATH": os.pathsep.join(path for path in [str(ROOT), *sys.path] if path),
            "SILTSTONE_METADATA_URL": options["metadataUrl"],
            "SILTSTONE_OBJECT_STORE_URL": options["objectStoreUrl"],
        }
        command = [str(Path(sys.executable).parent / "spark-pipelines"), "run"]
        return subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )

    # when it runs
    ran = await aside(run)

    # then both tables have what the topic has
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    tables = {path.name: pq.read_table(path) for path in tmp_path.glob("spark-warehouse/*")}
    assert sorted(zip(*(tables["flights"][name].to_pylist() for name in ("partition", "offset")), strict=True)) == [
        (row.partition, row.offset) for row in written
    ]
    counts = tables["flights_by_origin"]
    assert dict(zip(counts["key"].to_pylist(), counts["count"].to_pylist(), strict=True)) == {
        key: sum(row.key == key for row in written) for key in {row.key for row in written}
    }


def _block(text: str, language: str) -> str:
    return text.partition(f"```{language}\n")[2].partition("```")[0]
