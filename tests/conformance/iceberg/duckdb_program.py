"""Answers SQL with DuckDB: a query as JSON on each line of the input, its rows as JSON on a line of the output."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

duckdb: Any = importlib.import_module("duckdb")


def main() -> None:
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for name in ("avro", "iceberg"):
        folder = Path(str(importlib.import_module(f"duckdb_extension_{name}").__file__)).parent
        [file] = folder.rglob(f"{name}.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    for line in sys.stdin:
        answer = connection.execute(json.loads(line)).fetchall()
        print(json.dumps(answer, default=str), flush=True)


if __name__ == "__main__":
    main()
