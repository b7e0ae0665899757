"""A whole system whose secrets are canaries, and what is said of it."""

from __future__ import annotations

import asyncio
import secrets
import ssl
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from siltstone.cli import main
from siltstone.kafka.security.properties import read_client_config
from siltstone.kafka.security.values import ClientSecurity
from tests.fixtures.agents import RawConnection
from tests.fixtures.canaries import Canaries, Processes
from tests.fixtures.collector import Collector
from tests.fixtures.dev import Dev

HIDDEN = {"SILTSTONE_DATA": None, "SILTSTONE_BOOTSTRAP": None, "SILTSTONE_CLIENT_CONFIG": None}


@dataclass
class World:
    dev: Dev
    collector: Collector
    folder: Path
    processes: Processes
    tokens: str
    """The address of the listener with PLAIN and OAUTHBEARER."""
    canaries: Canaries = field(default_factory=Canaries)
    said: list[bytes] = field(default_factory=list)
    """All that commands have printed, and the tracebacks that they would have shown."""

    @property
    def url(self) -> str:
        return self.dev.run["metadata_url"]

    @property
    def data(self) -> tuple[str, str]:
        return "--data", str(self.dev.data)

    def secret(self, name: str) -> str:
        made = f"canary-{secrets.token_hex(16)}"
        self.canaries.add(**{name: made})
        return made

    def file(self, name: str, content: str | bytes) -> str:
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    async def command(self, *words: str, stdin: str = "", code: int | None = 0, **environ: str) -> str:
        def run() -> Any:
            return CliRunner(env={**HIDDEN, **environ}).invoke(main, words, input=stdin)

        ran = await asyncio.to_thread(run)
        crash = "" if ran.exc_info is None else "".join(traceback.format_exception(*ran.exc_info))
        self.said += [ran.output.encode(), crash.encode()]
        assert code is None or ran.exit_code == code, ran.output
        return ran.stdout

    async def process(self, *words: str, stdin: str) -> None:
        """A command as a process of its own."""
        command = [sys.executable, "-m", "siltstone", *words]
        ran = await asyncio.to_thread(subprocess.run, command, input=stdin.encode(), capture_output=True, check=False)
        self.said += [ran.stdout, ran.stderr]
        assert ran.returncode == 0, ran.stderr

    async def refused(self, *words: str, stdin: str = "", **environ: str) -> None:
        """As a person who asks for tracebacks."""
        await self.command(*words, stdin=stdin, code=1, **environ)
        await self.command(*words, stdin=stdin, code=1, SILTSTONE_TRACEBACK="1", **environ)

    def as_user(self, username: str, password: str, mechanism: str = "SCRAM-SHA-512") -> ClientSecurity:
        admin = read_client_config(self.dev.data / "clients" / "admin.properties").security
        return replace(admin, mechanism=mechanism, username=username, password=password)

    def properties(self, username: str, password: str) -> str:
        ca = self.dev.data / "certificates" / "ca.pem"
        lines = "security.protocol=SASL_SSL", "sasl.mechanisms=SCRAM-SHA-256", f"ssl.ca.location={ca}"
        text = "\n".join((*lines, f"sasl.username={username}", f"sasl.password={password}"))
        return self.file(f"{username}-{len(self.said)}.properties", text)

    @asynccontextmanager
    async def raw(self, address: str) -> AsyncIterator[RawConnection]:
        host, _, port = address.rpartition(":")
        context = ssl.create_default_context(cafile=str(self.dev.data / "certificates" / "ca.pem"))
        raw = RawConnection(*await asyncio.open_connection(host, int(port), ssl=context))
        try:
            yield raw
        finally:
            await raw.close()
