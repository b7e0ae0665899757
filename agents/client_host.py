"""The host of the client whose request is being begun, for the few handlers that tell others of it.

A connection sets it before it calls a handler; what the handler awaits keeps the value.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

CLIENT_HOST: Final[ContextVar[str]] = ContextVar("client_host", default="")
"""Without port; "" where it is not known."""
