"""A stock client that waits for each answer: the agent seals its files early, and says who waits and what to set."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from click.testing import CliRunner, Result

from runtime.metrics import Metrics
from siltstone.cli.producers import PAGE_BYTES_MAX, producers
from siltstone.processes.agent import producers_page
from siltstone.processes.monitoring.http_endpoint import HttpEndpoint
from storage.memory import MemoryStore
from storage.objects import Body
from tests.fixtures.agents import Dial, RunningAgent, StartAgent

LINGER_MS = 150
"""Long enough for a proof that a client waits."""


class SlowStore(MemoryStore):
    """Slow enough that the client waits for most of its time, however busy the machine is."""

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        await asyncio.sleep(0.05)
        await super().put_if_absent(key, body, crc32c=crc32c)


@asynccontextmanager
async def page_of(running: RunningAgent) -> AsyncIterator[str]:
    """The URL of the agent's HTTP endpoint."""
    endpoint = HttpEndpoint(
        listen="127.0.0.1:0", metrics=Metrics(), not_ready=list, producers=lambda: producers_page(running.agent)
    )
    await endpoint.start()
    try:
        yield f"http://{endpoint.address}"
    finally:
        await endpoint.stop()


async def ask(*arguments: str) -> Result:
    # In a thread: the endpoint answers from this loop.
    return await asyncio.to_thread(CliRunner().invoke, producers, list(arguments))


async def test_a_stock_client_is_recognized_served_early_and_named_with_its_remedy(
    start_agent: StartAgent, dial: Dial
) -> None:
    running = await start_agent(store=SlowStore(), produce_linger_ms=LINGER_MS)
    await (await dial.kafka(running.address)).create_topic("t", partitions=1)
    producer = AIOKafkaProducer(bootstrap_servers=running.address, client_id="orders")
    await producer.start()
    try:
        async with page_of(running) as url:
            before = await ask("--agent", url, "--seconds", "0")
            async with asyncio.timeout(60):
                # It has more to send than its window holds, until the agent knows it.
                while running.metric("l0_files_total", reason="early") < 30:
                    for _ in range(100):
                        await producer.send("t", bytes(1024))
            shown = await ask("--agent", url, "--seconds", "0")
            found = await ask("--agent", url, "--seconds", "0", "--json")
    finally:
        await producer.stop()
    assert before.output == "no producer waited for the agents since the agents started\n"
    assert "orders" in shown.output
    assert "batch.size=1000000, linger.ms=50" in shown.output
    (orders,) = json.loads(found.output)["producers"]
    assert orders["client_id"] == "orders"
    assert orders["rounds"] >= 20
    assert 0 < orders["bytes"] / orders["rounds"] <= 17_000, "a batch of 16 KiB at a time"
    assert running.metric("blocked_seconds_total") > 0
    assert 0.5 <= orders["waiting_share"] <= 1


async def test_what_is_no_agent_is_an_error_that_says_what_to_name(
    start_agent: StartAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    running = await start_agent()
    endpoint = HttpEndpoint(listen="127.0.0.1:0", metrics=Metrics(), not_ready=list)
    await endpoint.start()
    try:
        compactor = await ask("--agent", endpoint.address, "--seconds", "0")
        kafka_port = await ask("--agent", running.address, "--seconds", "0")
        for said in (compactor, kafka_port):
            assert "does not tell which producers wait" in str(said.exception)
    finally:
        await endpoint.stop()
    assert "is not the address of an agent" in str((await ask("--agent", "ftp://x")).exception)
    assert "no agent was named" in str((await ask()).exception)
    # and where `siltstone dev` once ran, its directory is taken
    (tmp_path / "siltstone-data" / "postgres").mkdir(parents=True)
    assert "no agent with metrics runs on siltstone-data" in str((await ask()).exception)


def answering(body: bytes) -> HTTPServer:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):  # the command hangs up
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return HTTPServer(("127.0.0.1", 0), Answers)


GOOD = {"early_per_second": 20.0, "early_tokens": 300.0, "put_ms": 30.0, "commit_ms": 3.0}
CLIENT = {"client_id": "c", "software": "s", "rounds": 1, "requests": 1, "batches": 1, "bytes": 1, "wait_ms": 1}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b"<html>", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[1, 2]", "no JSON object"),
        (b'{"a": 1}', "no list of clients"),
        (json.dumps({**GOOD, "put_ms": "x", "clients": []}).encode(), "no number put_ms"),
        (json.dumps({**GOOD, "put_ms": float("nan"), "clients": []}).encode(), "no number put_ms"),
        (json.dumps({**GOOD, "clients": [1]}).encode(), "a client that is no JSON object"),
        (json.dumps({**GOOD, "clients": [{**CLIENT, "client_id": 7}]}).encode(), "without client_id"),
        (json.dumps({**GOOD, "clients": [CLIENT]}).encode(), "no number away_ms"),
        (b'"' + b"x" * (PAGE_BYTES_MAX * 2), "longer than 2 MiB"),
    ],
)
def test_an_answer_that_no_agent_gives_is_an_error_that_says_so(body: bytes, says: str) -> None:
    server = answering(body)
    serving = threading.Thread(target=server.handle_request)
    serving.start()
    try:
        said = CliRunner().invoke(producers, ["--agent", f"127.0.0.1:{server.server_port}", "--seconds", "0"])
    finally:
        serving.join(60)
        server.server_close()
    assert "does not tell which producers wait" in str(said.exception) and says in str(said.exception)
