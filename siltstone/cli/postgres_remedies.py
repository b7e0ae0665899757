"""What to do about a Postgres that does not answer, or refuses, by what its driver said: the error says what, this says
what now.

Decided by the cause of a `MetadataUnavailableError` or `RightsMissingError`: first the SQLSTATE (Postgres answered, and
refused), then the kind of OSError (it did not).
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from metadata.contract.service import MetadataUnavailableError, RightsMissingError

# Appendix A of Postgres's manual
_BY_SQLSTATE: Mapping[str, str] = {
    "28000": "correct the user in metadata.url, or let it in by pg_hba.conf",
    "28P01": "correct the user or the password: in metadata.url, PGPASSWORD or the file that PGPASSFILE names",
    "3D000": "create the database (`createdb NAME`), or correct its name in metadata.url",
    "42501": "GRANT the role in metadata.url what it lacks; `siltstone doctor` lists the tables",
    "53300": "raise max_connections, or stop other clients of that Postgres",
    "57P03": "it is starting or stopping: try again in a moment",
}
_ELSE = "check that Postgres runs there, and host and port in metadata.url"


def remedy_of(error: Exception) -> str:
    """Empty for errors about other things, and for those that have a remedy of their own."""
    if not isinstance(error, MetadataUnavailableError | RightsMissingError) or error.remedy:
        return ""
    cause = error.__cause__
    cause = getattr(cause, "orig", cause)
    sqlstate = getattr(cause, "sqlstate", None)
    if isinstance(sqlstate, str):
        return _BY_SQLSTATE.get(sqlstate, "see the log of that Postgres")
    if isinstance(cause, socket.gaierror):
        return "correct the host name in metadata.url"
    if isinstance(cause, ConnectionRefusedError):
        return "start Postgres there, or correct host and port in metadata.url"
    if isinstance(cause, TimeoutError):
        return "check that the host in metadata.url can be reached from here, and that no firewall drops packets"
    return _ELSE
