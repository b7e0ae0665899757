"""The agent that all clients of a module come in to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.security.secured import SecuredAgent, secured_agent


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredAgent]:
    with secured_agent(tmp_path_factory.mktemp("secured")) as agent:
        yield agent
