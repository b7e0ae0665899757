"""An S3-compatible server on loopback for one row of a benchmark: versitygw if available, else moto.

versitygw is looked for at the path in VERSITYGW, then on the PATH. Its objects lie in memory (/dev/shm) if there is
room, because the server itself is not measured. `S3Server.url(latency)` is the URL of an empty bucket. With a latency,
`bench.servers.latency_proxy` holds answers back, because loopback is nothing like the way to a real store.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3  # pyright: ignore[reportMissingTypeStubs]  # it has none

from bench.servers.started import Started

ROOT = Path(__file__).parents[2]
ACCESS_KEY, SECRET_KEY, REGION = "bench", "benchbench", "us-east-1"
BUCKET = "bench"
START_S = 30.0
SHARED_MEMORY = Path("/dev/shm")
ROOM_BYTES = 6 << 30

CLIENT_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
}
"""The variables that the AWS chain of this server's clients must find; see also `NOT_FOR_CLIENTS`."""
NOT_FOR_CLIENTS = ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")


@dataclass(frozen=True, slots=True)
class Latency:
    put_ms: float
    get_ms: float


def versitygw_path() -> str | None:
    return os.environ.get("VERSITYGW") or shutil.which("versitygw")


def server_name() -> str:
    return "versitygw" if versitygw_path() else "moto"


def client_environment() -> dict[str, str]:
    """The environment of a process that uses the server."""
    kept = {name: value for name, value in os.environ.items() if name not in NOT_FOR_CLIENTS}
    return {**kept, **CLIENT_ENVIRONMENT}


class S3Server(Started):
    """Started by `with`; stopped, and its objects removed, at the end."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self._log = log
        self._port = 0
        self.pid = 0

    def url(self, latency: Latency | None = None, *, prefix: str = "data", log: Path | None = None) -> str:
        """`s3://...` of the bucket, which is the same with and without latency.

        `log`: a file that gets a line for each request by this URL (`bench/measures/requests.py`).
        """
        port = self._port if latency is None and log is None else self._proxy_port(latency or Latency(0, 0), log)
        return f"s3://{BUCKET}/{prefix}?endpoint=http://127.0.0.1:{port}&region={REGION}"

    def sizes(self, *, prefix: str = "data") -> dict[str, int]:
        """The bytes of each object, by its key below the prefix."""
        pages = self._client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{prefix}/")
        return {
            each["Key"].removeprefix(f"{prefix}/"): each["Size"] for page in pages for each in page.get("Contents", ())
        }

    def _start(self) -> None:
        self._port = free_port()
        versitygw = versitygw_path()
        if versitygw is None:
            command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]
        else:
            objects = self._objects_directory()
            command = [versitygw, "--port", f"127.0.0.1:{self._port}", "--keep-alive", "--quiet", "--region", REGION]
            command += ["posix", "--concurrency", "64", "--data-integrity-etag", str(objects)]
        environment = {**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
        log = self._stack.enter_context(self._log.open("wb"))
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        self._stack.callback(stop, process)
        self.pid = process.pid
        self._await(process)
        self._client().create_bucket(Bucket=BUCKET)

    def _client(self) -> Any:
        untyped: Any = boto3
        return untyped.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self._port}",
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )

    def _objects_directory(self) -> Path:
        in_memory = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)
        roomy = in_memory and shutil.disk_usage(SHARED_MEMORY).free >= ROOM_BYTES
        directory = Path(tempfile.mkdtemp(prefix="siltstone-bench-", dir=SHARED_MEMORY if roomy else None))
        self._stack.callback(shutil.rmtree, directory, ignore_errors=True)
        return directory

    def _await(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                break
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            time.sleep(0.02)
        raise RuntimeError(f"{server_name()} does not listen; its log ends with:\n{self._log.read_text()[-2000:]}")

    def _proxy_port(self, latency: Latency, log: Path | None) -> int:
        proxy = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "bench.servers.latency_proxy",
                str(self._port),
                str(latency.put_ms),
                str(latency.get_ms),
                *([str(log)] if log is not None else []),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stack.enter_context(self._log.with_suffix(".proxy").open("wb")),
            cwd=ROOT,
            start_new_session=True,
        )
        self._stack.callback(stop, proxy)
        assert proxy.stdout is not None
        line = proxy.stdout.readline()
        if not line:
            raise RuntimeError("the latency proxy did not start")
        return int(line)


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def stop(process: subprocess.Popen[bytes], *, wait_s: float = 10) -> None:
    """SIGTERM, then SIGKILL; closes its pipes."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
