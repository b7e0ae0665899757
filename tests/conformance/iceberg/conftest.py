"""The programs that read our Iceberg tables, one of each for a module."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing

import pytest

from tests.conformance.iceberg import readers
from tests.conformance.iceberg.readers import Program


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Generator[Program]:
    with closing(readers.spark(tmp_path_factory.mktemp("spark"))) as program:
        yield program


@pytest.fixture(scope="module")
def duckdb() -> Generator[Program]:
    with closing(readers.duckdb()) as program:
        yield program
