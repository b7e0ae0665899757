"""An agent process with TLS: SIGHUP has it read its certificates again; a bad start says what to do."""

from __future__ import annotations

import os
import signal
import ssl
from pathlib import Path
from typing import Any

from tests.fixtures.certificates import EXPIRED, Certificates, IdentityFiles
from tests.fixtures.faults import Processes
from tests.fixtures.s3 import free_port
from tests.fixtures.waiting import wait_until


def listener(address: str, files: IdentityFiles) -> dict[str, Any]:
    members = {"address": address, "protocol": "SSL", "tls.cert.file": files.cert, "tls.key.file": files.key}
    return {f"listener.public.{name}": value for name, value in members.items()}


def served(port: int, certificates: Certificates) -> str:
    """The certificate that the agent shows, in PEM."""
    return ssl.get_server_certificate(("127.0.0.1", port), ca_certs=str(certificates.ca), timeout=20)


def test_a_hangup_renews_the_certificate_and_stops_nothing(
    processes: Processes, certificates: Certificates, tmp_path: Path
) -> None:
    files = certificates.authority.server().write(tmp_path / "server")
    port = free_port()
    listener = {
        "address": f"127.0.0.1:{port}",
        "protocol": "SSL",
        "tls.cert.file": files.cert,
        "tls.key.file": files.key,
    }
    agent = processes.add(**{f"listener.public.{name}": value for name, value in listener.items()})
    agent.start()
    before = served(port, certificates)
    certificates.authority.server().write(tmp_path / "server")
    os.kill(agent.pid, signal.SIGHUP)
    wait_until(
        lambda: agent.metric("tls_reloads_total", listener="public", outcome="used") >= 1, said=lambda: agent.log
    )
    assert served(port, certificates) == files.cert.read_text() != before
    assert agent.is_running and agent.stop() == 0


def test_a_start_with_an_expired_certificate_says_what_to_do(
    processes: Processes, certificates: Certificates, tmp_path: Path
) -> None:
    files = certificates.authority.server(validity=EXPIRED).write(tmp_path / "server")
    agent = processes.add(**listener("127.0.0.1:0", files))
    agent.begin_start()
    assert agent.await_end() != 0
    assert f"listener.public.tls.cert.file = {files.cert}" in agent.log
    assert "expired" in agent.log and "get a new one" in agent.log
