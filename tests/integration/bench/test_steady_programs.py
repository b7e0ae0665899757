"""Steady clients as processes, and the load balancer before a fleet."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bench.servers.fleet import silenced
from bench.servers.load_balancer import LoadBalancer, Target
from bench.steady.clients import SteadyClient
from bench.steady.programs.protocol import WRITER, Job
from bench.steady.running import Steady
from tests.fixtures.s3 import free_port
from tests.fixtures.waiting import wait_until

PROGRAM = """
from bench.steady.programs.protocol import *
import sys
job, orders = job_of(sys.argv[1:]), Orders()
say("ready")
number = 0
while orders.go_on():
    acknowledged(0, number, job.value(number))
    number += 1
    orders.pause(0.01)
failed(ValueError("the\\nend"))
"""
JOB = Job("nowhere:1", "t", 1, WRITER, "one", {})


@dataclass(frozen=True, slots=True)
class Ticking(SteadyClient):
    """A program that needs no broker."""

    program: str = PROGRAM

    def command(self) -> Sequence[str]:
        return [sys.executable, "-c", self.program]


def test_a_client_sleeps_wakes_and_ends_by_order(tmp_path: Path) -> None:
    with Steady(Ticking("ticking"), JOB, log=tmp_path / "log") as client:
        client.until_ready()
        client.until_steps(5, 10)
        client.sleep()
        # what was on its way has come
        wait_until(lambda: _stands_still(client), 10)
        before = len(client.acknowledged)
        client.wake()
        client.until_steps(5, 10)
        assert client.end()
        assert client.acknowledged == {(0, number): f"one:{number:08d}" for number in range(len(client.acknowledged))}
        assert len(client.acknowledged) >= before + 5
        assert client.errors == ["ValueError: the end"]


def test_a_sleeping_client_ends_by_order(tmp_path: Path) -> None:
    with Steady(Ticking("ticking"), JOB, log=tmp_path / "log") as client:
        client.until_ready()
        client.sleep()
        assert client.end()


def test_a_client_that_fails_is_told_of_with_what_it_wrote(tmp_path: Path) -> None:
    failing = Ticking("failing", program="raise RuntimeError('no broker for me')")
    with (
        Steady(failing, JOB, log=tmp_path / "log") as client,
        pytest.raises(RuntimeError, match=r"(?s)one: not ready .* ended with 1.*no broker for me"),
    ):
        client.until_ready()


def test_a_program_ends_with_whoever_started_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, *JOB.arguments()]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(30) == 1


def _stands_still(client: Steady) -> bool:
    before = len(client.acknowledged)
    time.sleep(0.1)
    return len(client.acknowledged) == before


# ---- the servers


def test_the_address_of_an_agent_that_is_gone_can_be_silent() -> None:
    port = free_port()
    held = silenced(port)
    try:
        with pytest.raises(TimeoutError):
            socket.create_connection(("127.0.0.1", port), timeout=0.3)
    finally:
        for each in held:
            each.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=10)


class Backend:
    """Says its name to every connection, and its health."""

    def __init__(self, name: str) -> None:
        self.name, self.is_ready = name, True
        self.listener = socket.create_server(("127.0.0.1", 0))
        backend = self

        class Health(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200 if backend.is_ready and self.path == "/readyz" else 503)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                return None

        self.health = ThreadingHTTPServer(("127.0.0.1", 0), Health)

    @property
    def target(self) -> Target:
        return Target(self.listener.getsockname()[1], self.health.server_address[1])

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection:
            connection.sendall(f"{self.name}\n".encode())
            while data := connection.recv(1024):
                connection.sendall(data)


@contextmanager
def backend(name: str) -> Iterator[Backend]:
    made = Backend(name)
    threads = [threading.Thread(target=work) for work in (made.serve, made.health.serve_forever)]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        made.health.shutdown()
        made.health.server_close()
        made.listener.shutdown(socket.SHUT_RDWR)
        made.listener.close()
        for thread in threads:
            thread.join()


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def answer(address: str) -> str:
    with connect(address) as connection:
        return connection.makefile().readline().strip()


def test_new_connections_go_to_ready_targets_and_open_ones_stay() -> None:
    with LoadBalancer() as balancer, backend("old") as old, backend("new") as new:
        assert answer(balancer.address) == "", "nobody is behind it yet"
        balancer.set_targets([old.target])
        wait_until(lambda: balancer.ready == {old.target}, 10)
        with connect(balancer.address) as stays:
            lines = stays.makefile()
            assert lines.readline() == "old\n"
            # when another takes over
            balancer.set_targets([old.target, new.target])
            old.is_ready = False
            wait_until(lambda: balancer.ready == {new.target}, 10)
            # then new connections go there, and the open one works on
            assert {answer(balancer.address) for _ in range(8)} == {"new"}
            stays.sendall(b"still there?\n")
            assert lines.readline() == "still there?\n"
            lines.close()
        new.is_ready = old.is_ready = True
        wait_until(lambda: len(balancer.ready) == 2, 10)
        assert {answer(balancer.address) for _ in range(64)} == {"old", "new"}
