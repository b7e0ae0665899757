"""An agent that may not open any more files: its listener lives on, and who has talked stays."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from agents.listeners.acceptor import ACCEPTS_PER_TURN, RETRY_MS, Acceptor, Pause
from agents.listeners.pace import TokenBucket
from runtime.clock import SystemClock
from tests.fixtures.agents import Dial, RawConnection
from tests.fixtures.waiting import until
from tests.integration.agents.listeners.strangers import Strangers
from wire.messages.api_versions import ApiVersionsRequest

FILES = 12


@contextlib.asynccontextmanager
async def small_agent() -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.agents.listeners.small_process", str(FILES)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield process, (await process.stdout.readline()).decode().strip()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ended(process: asyncio.subprocess.Process) -> dict[str, float]:
    """Its count."""
    said, _ = await asyncio.wait_for(process.communicate(b""), 60)
    assert process.returncode == 0
    return json.loads(said)


async def asks(raw: RawConnection) -> None:
    await raw.begin(ApiVersionsRequest(), 0)
    await raw.read_frame(60)


async def test_silent_connections_give_their_descriptors_to_who_talks(dial: Dial) -> None:
    strangers = Strangers()
    async with small_agent() as (process, address):
        try:
            await asyncio.to_thread(strangers.come, address, 3 * FILES)
            for _ in range(3):
                await asks(await dial.raw(address))
        finally:
            strangers.close()
        counted = await ended(process)
    assert counted["evicted"] > 0


async def test_without_descriptors_clients_wait_for_one_and_the_loop_does_not_spin(dial: Dial) -> None:
    async with small_agent() as (process, address):
        talking: list[RawConnection] = []
        for _ in range(FILES):
            talking.append(await dial.raw(address))
            await asks(talking[-1])
        # when more come, of whom the kernel takes the connections
        waiting = [await dial.raw(address) for _ in range(6)]
        asking = [asyncio.create_task(asks(each)) for each in waiting]
        done, _ = await asyncio.wait(asking, timeout=1)
        assert len(done) < 6
        # then those that are in are served as before
        for each in talking:
            await asks(each)
        # and the others as soon as there is room
        for each in talking[:6]:
            await each.close()
        await asyncio.gather(*asking)
        counted = await ended(process)
    assert 1 <= counted["pauses"] <= counted["seconds"] * 1_000 / RETRY_MS + 1


class Flaky(socket.socket):
    """Its next calls of `accept` end in these errors."""

    errors: list[int]

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        if self.errors:
            raise OSError(self.errors.pop(0), "by the test")
        return super().accept()


async def test_no_error_of_accept_ends_the_listener() -> None:
    flaky = Flaky(socket.AF_INET, socket.SOCK_STREAM)
    flaky.bind(("127.0.0.1", 0))
    flaky.listen(100)
    flaky.errors = [errno.ECONNABORTED, errno.EPROTO, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EINVAL]
    made: list[asyncio.Protocol] = []
    paused: list[Pause] = []

    class Greets(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(self)
            transport.close()

    clock = SystemClock()
    acceptor = Acceptor(
        flaky,
        factory=Greets,
        pace=TokenBucket(1_000, clock.monotonic_ms()),
        clock=clock,
        on_pause=lambda why, _: paused.append(why),
    )
    acceptor.start()
    strangers = Strangers()
    try:
        await asyncio.to_thread(strangers.come, "{}:{}".format(*flaky.getsockname()), ACCEPTS_PER_TURN + 10)
        await until(lambda: len(made) == ACCEPTS_PER_TURN + 10)
    finally:
        strangers.close()
        acceptor.close()
        acceptor.close()
        await acceptor.wait_closed()
    assert paused == [Pause.DESCRIPTORS] * 3 + [Pause.ERROR]


@pytest.mark.parametrize(
    ("files", "said"),
    [(5_000, "connections 2000"), (400, "connections 1"), (150, "DescriptorsError"), (200, "DescriptorsError")],
)
def test_an_agent_takes_as_many_connections_as_it_may_open_files(files: int, said: str) -> None:
    program = (
        "import resource; from runtime.settings.table import Settings\n"
        "from siltstone.processes.descriptors import settings_within_descriptors\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (100, {files}))\n"
        "print('connections', settings_within_descriptors(Settings()).connections_max)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert said in ran.stdout + ran.stderr
    if files < 2_000 and not ran.returncode:
        assert "raise the limit of open files" in ran.stderr
