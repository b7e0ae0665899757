"""The end of a connection to an agent."""

from __future__ import annotations

import asyncio

CLOSE_TIMEOUT_MS = 500
"""TLS ends when both sides have said so, but an agent reads nothing from a client that is over its quota."""


async def close(writer: asyncio.StreamWriter, limit_ms: float | None) -> None:
    """Say that the connection ends, and wait for the agent to say so too: at most `limit_ms`, None as long as it takes.

    Nothing that was sent may still be on its way if there is a limit: it would be lost.
    """
    writer.close()
    try:
        async with asyncio.timeout(None if limit_ms is None else limit_ms / 1000):
            await writer.wait_closed()
    except TimeoutError:
        writer.transport.abort()
    except OSError:
        pass
