"""`make bench-security`: what it costs an agent that nobody comes in who does not belong: TLS, logins, ACLs."""

from __future__ import annotations

from collections.abc import Iterator

from bench.cases.security import acls, connections, encryption
from bench.cases.security.secured import SecuredStack
from bench.registry import Size
from bench.table import Table


def run(size: Size) -> Iterator[Table]:
    with SecuredStack() as stack:
        yield from encryption.produce(stack, size)
        yield encryption.consume(stack, size)
        yield connections.table(stack, size)
        yield acls.table(stack, size)
