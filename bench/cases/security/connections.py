"""The cost of a new connection for an agent, by each way to come in."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping

from bench.cases.security.secured import PASSWORD, USER, SecuredStack
from bench.loads.load import progress
from bench.loads.raw import connected
from bench.registry import Size
from bench.table import Cell, Column, Table

COUNT = {Size.SMALL: 300, Size.FULL: 3_000}
Come = Callable[[], object]


def table(stack: SecuredStack, size: Size) -> Table:
    count = COUNT[size]
    rows: list[list[Cell]] = []
    least = 0.0
    for name, come in _ways(stack).items():
        come()
        before, began_s = stack.read(), time.monotonic()
        for _ in range(count):
            come()
        seconds = time.monotonic() - began_s
        agent_ms = (stack.read() - before).agents.cpu_s * 1000 / count
        least = least or agent_ms
        progress(f"{count} connections, {name}: {agent_ms:.2f} ms of the agent each")
        rows.append([name, agent_ms, agent_ms - least, agent_ms / least, 1000 / agent_ms, count / seconds])
    return Table(
        "Connections",
        f"{count:,} connections of each kind, one after another: come in, ask for ApiVersions, close. Certificates of"
        " P-256, TLS 1.3; SCRAM and PLAIN by 4,096 iterations. A core's: as many as the agent's CPU allows.",
        (
            Column("comes in by"),
            Column("agent CPU", "ms", 2),
            Column("more than the first", "ms", 2),
            Column("of the first", "", 1),
            Column("a core's", "1/s"),
            Column("seen, one after another", "1/s"),
        ),
        rows,
    )


def _ways(stack: SecuredStack) -> Mapping[str, Come]:
    context, with_certificate = stack.context(), stack.context(with_certificate=True)

    def open_way() -> None:
        with connected(stack.plain) as client:
            client.api_versions()

    def tls(way: str, context: ssl.SSLContext) -> None:
        with connected(stack.address(way), context) as client:
            client.api_versions()

    def sasl(mechanism: str) -> None:
        with connected(stack.address("sasl"), context) as client:
            client.log_in(mechanism, USER, PASSWORD)
            client.api_versions()

    return {
        "an open listener": open_way,
        "TLS": lambda: tls("tls", context),
        "mutual TLS": lambda: tls("mtls", with_certificate),
        "TLS and SCRAM-SHA-512": lambda: sasl("SCRAM-SHA-512"),
        "TLS and SCRAM-SHA-256": lambda: sasl("SCRAM-SHA-256"),
        "TLS and PLAIN": lambda: sasl("PLAIN"),
    }
