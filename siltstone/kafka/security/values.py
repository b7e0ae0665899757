"""The settings by which a client speaks with agents safely. The password is never shown, and never in an error."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from runtime.errors import BadInputError

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")


class ClientConfigError(BadInputError):
    """The file of --client-config, or one that it names, is of no use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurity:
    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    ca_file: Path | None = None
    """The authorities that may issue certificates of agents; None: those that the machine trusts."""
    certificate_file: Path | None = None
    key_file: Path | None = None
    key_password: str = field(default="", repr=False)
    checks_host: bool = True
    """An agent's certificate must name the host that the client asked for."""
    source: str = ""
    """The file, for messages."""

    @property
    def has_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def has_sasl(self) -> bool:
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")


NO_SECURITY: Final = ClientSecurity()

CLIENT_SECURITY: ContextVar[ClientSecurity] = ContextVar("CLIENT_SECURITY", default=NO_SECURITY)
"""For every connection of a command. A command connects in many places, to agents that others name, and is one client
to all of them."""
