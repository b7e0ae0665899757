"""The agents that all clients of a module talk to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.cluster import Cluster
from tests.fixtures.faults import Postgres, Processes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("conformance")
    postgres = Postgres(folder / "postgres")
    processes = Processes(postgres, folder)
    try:
        yield Cluster(processes)
    finally:
        processes.stop()
        postgres.stop()
