"""pyiceberg's own upsert. Arguments: the catalog's URL, the warehouse, the table, the Parquet file of changed rows."""

from __future__ import annotations

import sys
from typing import Any

import pyarrow.parquet as _parquet  # pyright: ignore[reportMissingTypeStubs]

from spark_jobs.tables.iceberg.catalog import CatalogPlace, open_catalog

parquet: Any = _parquet


def main(catalog_url: str, warehouse: str, name: str, changes: str) -> None:
    table = open_catalog(CatalogPlace(url=catalog_url, warehouse=warehouse)).load_table(name)
    table.upsert(parquet.read_table(changes), join_cols=["kafka_key"])


if __name__ == "__main__":
    main(*sys.argv[1:])
