"""The agent that all clients of a module come in to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.security.secured import SecuredAgent
from tests.fixtures.faults import Postgres, Processes


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredAgent]:
    folder = tmp_path_factory.mktemp("secured")
    postgres = Postgres(folder / "postgres")
    processes = Processes(postgres, folder)
    try:
        agent = SecuredAgent(processes, folder)
        yield agent
        agent.stop()
    finally:
        processes.stop()
        postgres.stop()
