"""`python -m siltstone.health` against the endpoint that it requests."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator

import pytest

from runtime.metrics import Metrics
from siltstone.health import VARIABLE, what_is_wrong
from siltstone.processes.monitoring.http_endpoint import HttpEndpoint
from tests.fixtures.s3 import free_port


@pytest.fixture
async def reasons() -> AsyncIterator[tuple[list[str], str]]:
    """The reasons why the process is not ready, which a test may change, and its address."""
    not_ready: list[str] = []
    endpoint = HttpEndpoint(listen="127.0.0.1:0", metrics=Metrics(), not_ready=lambda: not_ready)
    await endpoint.start()
    yield not_ready, endpoint.address
    await endpoint.stop()


async def asked(listen: str, path: str = "/healthz") -> str:
    return await asyncio.to_thread(what_is_wrong, {VARIABLE: listen}, path)


async def test_a_process_that_drains_is_alive_and_not_ready(reasons: tuple[list[str], str]) -> None:
    not_ready, address = reasons
    assert (await asked(address), await asked(address, "/readyz")) == ("", "")
    not_ready.append("stopping")
    assert await asked(address) == ""
    assert "/readyz answers 503" in (said := await asked(address, "/readyz")) and "stopping" in said


async def test_an_address_of_all_interfaces_is_asked_on_loopback(reasons: tuple[list[str], str]) -> None:
    port = reasons[1].rpartition(":")[2]
    assert await asked(f"0.0.0.0:{port}") == ""


async def test_a_process_that_is_gone_or_cannot_be_found_is_told() -> None:
    assert "does not answer" in await asked(f"127.0.0.1:{free_port()}")
    assert "has port 0" in await asked("127.0.0.1:0")
    assert f"{VARIABLE} must be HOST:PORT" in await asked("")


async def test_as_a_command_it_leaves_with_what_docker_expects(reasons: tuple[list[str], str]) -> None:
    not_ready, address = reasons
    not_ready.append("stopping")

    async def run(*words: str) -> int:
        environ = {**os.environ, VARIABLE: address}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "siltstone.health", *words, env=environ, stderr=asyncio.subprocess.DEVNULL
        )
        return await process.wait()

    assert [await run(), await run("--ready"), await run("--redy")] == [0, 1, 2]
