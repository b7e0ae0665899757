"""The agents that all clients of a module talk to."""

from __future__ import annotations

import gc
import warnings
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
        # kafka-python, closed while it connects, leaves the socket to the garbage collector, which would complain in
        # whatever test runs next; the agents are other processes, so nothing of ours is hidden
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"))
