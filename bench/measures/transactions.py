"""The longest statement and the longest transaction that one database sees, as `pg_stat_activity` shows them.

A thread with a connection of its own looks every few milliseconds, so what is shorter may not be seen. A statement
lasts until its client has taken the last row.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Self

from bench.measures.usage import usage
from metadata.postgres.driver import open_connection

EVERY_S = 0.01
_LOOK = """SELECT
    coalesce(max(extract(epoch FROM clock_timestamp() - query_start)) FILTER (WHERE state = 'active'), 0)::float8
        AS statement_s,
    coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8 AS transaction_s
    FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"""


class Watch:
    """Looks while its block runs. The figures are complete after the block."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ready, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._look()), name="watch")
        self.statement_ms = self.transaction_ms = 0.0
        self.own_cpu_s = self.own_server_cpu_s = 0.0
        """The cost of the looking to this process and the server, to be taken off a measurement."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    async def _look(self) -> None:
        try:
            line = await open_connection(self._url, connect_timeout_s=10, command_timeout_s=60, settings={})
            pid = await line.fetchval("SELECT pg_backend_pid()")
            await line.fetchrow(_LOOK)
        finally:
            self._ready.set()
        before, server_before = time.thread_time(), usage(pid).cpu_s
        while not self._end.is_set():
            (seen,) = await line.fetch(_LOOK)
            self.statement_ms = max(self.statement_ms, seen["statement_s"] * 1000)
            self.transaction_ms = max(self.transaction_ms, seen["transaction_s"] * 1000)
            await asyncio.sleep(EVERY_S)
        self.own_cpu_s, self.own_server_cpu_s = time.thread_time() - before, usage(pid).cpu_s - server_before
        await line.close()
