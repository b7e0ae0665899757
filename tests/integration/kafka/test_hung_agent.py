"""An agent that takes requests and no longer answers: each command says so within 10 s, with a remedy."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack

import pytest

from siltstone.cli import main
from siltstone.kafka.client import BOOTSTRAP_TIMEOUT_MS, CONNECT_TIMEOUT_MS, TIMEOUT_MS, KafkaClient
from wire.api import APIS, encode_response, read_request_header
from wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from wire.schema import message_table

LIMIT_S = 10
ROOM_S = 5
"""For a busy machine. Four addresses one after the other would take 16 s, a second try 18 s."""
COMMANDS = (
    ["topics", "list"],
    ["topics", "create", "orders"],
    ["topics", "describe", "orders"],
    ["topics", "alter", "orders", "--config", "retention.ms=1"],
    ["topics", "delete", "orders", "--yes"],
    ["topics", "trim", "orders", "--before", "end", "--yes"],
    ["cluster", "info"],
    ["cluster", "config", "get"],
    ["cluster", "config", "set", "log.retention.ms=1"],
    ["groups", "list"],
    ["groups", "describe", "readers"],
    ["get", "orders", "key"],
)
"""`consume` and `produce` take signals, which a thread cannot."""
PROCESSES = (["consume", "orders"], ["consume", "orders", "--group", "readers"], ["produce", "orders", "-k", "key"])


@pytest.fixture
async def hung_agent() -> AsyncIterator[str]:
    """A server that answers the first request of each connection, ApiVersions, and no other."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frame = memoryview(await reader.readexactly(int.from_bytes(await reader.readexactly(4))))
        header, _ = read_request_header(frame)
        served = {key: message_table(each.request).versions for key, each in APIS.items()}
        keys = [
            ApiVersion(api_key=key, min_version=versions.low, max_version=versions.high)
            for key, versions in served.items()
        ]
        writer.writelines(encode_response(header, ApiVersionsResponse(api_keys=keys)))
        while await reader.read(1024):
            pass
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"


@pytest.fixture
async def mute_agents() -> AsyncIterator[str]:
    """Four addresses that accept connections and answer nothing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1024):
            pass
        writer.close()

    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(await asyncio.start_server(serve, "127.0.0.1", 0)) for _ in range(4)]
        yield ",".join("{}:{}".format(*server.sockets[0].getsockname()) for server in servers)


async def test_several_addresses_that_hang_are_all_reported_within_ten_seconds_with_a_remedy(
    mute_agents: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert BOOTSTRAP_TIMEOUT_MS < 1000 * LIMIT_S

    def run(words: Sequence[str]) -> float:
        begun = time.monotonic()
        with pytest.raises(SystemExit):
            main([*words, "--bootstrap", mute_agents])
        return time.monotonic() - begun

    # when
    loop, threads = asyncio.get_running_loop(), ThreadPoolExecutor(len(COMMANDS))
    times_s = await asyncio.gather(*(loop.run_in_executor(threads, run, words) for words in COMMANDS))
    # then
    assert max(times_s) < LIMIT_S + ROOM_S, times_s
    told = capfd.readouterr().err
    assert told.count("remedy: the process accepts connections and does not answer") == len(COMMANDS), told
    for address in mute_agents.split(","):
        assert told.count(f"{address} (connected, but it did not answer in time)") == len(COMMANDS), told


async def test_an_address_that_answers_is_found_behind_several_that_hang(mute_agents: str, hung_agent: str) -> None:
    client = await KafkaClient.connect(f"{mute_agents},{hung_agent}")
    assert client.address == hung_agent
    await client.close()


async def test_every_command_reports_a_hung_agent_within_ten_seconds_with_a_remedy(
    hung_agent: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert max(TIMEOUT_MS, 2 * CONNECT_TIMEOUT_MS) < 1000 * LIMIT_S

    def run(words: Sequence[str]) -> float:
        begun = time.monotonic()
        with pytest.raises(SystemExit):
            main([*words, "--bootstrap", hung_agent])
        return time.monotonic() - begun

    async def run_alone(words: Sequence[str]) -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "siltstone", *words, "--bootstrap", hung_agent),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        _, told = await process.communicate()
        return process.returncode, told.decode()

    # when they all run at once
    loop, threads = asyncio.get_running_loop(), ThreadPoolExecutor(len(COMMANDS))
    running = [loop.run_in_executor(threads, run, words) for words in COMMANDS]
    times_s, alone = await asyncio.gather(
        asyncio.gather(*running), asyncio.gather(*(run_alone(words) for words in PROCESSES))
    )
    # then each ends in time, and says what is the matter
    assert max(times_s) < LIMIT_S + ROOM_S, times_s
    told_by_all = capfd.readouterr().err
    for text in ("did not answer in time", "remedy: the process accepts connections and does not answer"):
        assert told_by_all.count(text) == len(COMMANDS), told_by_all
    for words, (code, told) in zip(PROCESSES, alone, strict=True):
        assert code and "did not answer in time" in told and "remedy: the process accepts" in told, (words, told)
        assert "retrying" not in told, (words, told)
