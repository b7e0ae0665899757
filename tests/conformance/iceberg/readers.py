"""Programs that read Iceberg tables, found by the environment, each as a process that answers SQL.

- `ICEBERG_DUCKDB_PYTHON`: a Python with `duckdb` and the wheels of its extensions `avro` and `iceberg`.
- `ICEBERG_SPARK_PYTHON`: a Python with PySpark; `ICEBERG_SPARK_JAR`: Iceberg's runtime for that Spark.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

HERE = Path(__file__).parent


class Program:
    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, sql: str) -> list[list[Any]]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(sql), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        assert line, f"the program ended at: {sql}"
        answer = json.loads(line)
        assert isinstance(answer, list), f"{sql}: {answer}"
        return cast("list[list[Any]]", answer)

    def close(self) -> None:
        try:
            self.process.communicate(timeout=60)
        finally:
            self.process.kill()


def duckdb() -> Program:
    return Program(_named("ICEBERG_DUCKDB_PYTHON"), str(HERE / "duckdb_program.py"))


def spark(folder: Path) -> Program:
    python, jar = _named("ICEBERG_SPARK_PYTHON"), _named("ICEBERG_SPARK_JAR")
    return Program(python, str(HERE / "spark_program.py"), jar, str(folder))


def _named(variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} is not set (tests/conformance/iceberg/readers.py)")
    return value
