"""Remedies for a Postgres that does not answer or that refuses. The error says what happened; the remedy what to do.

The cause of the `MetadataUnavailableError` or `RightsMissingError` decides: a SQLSTATE means that Postgres answered and
refused, an OSError that it did not answer.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from metadata.contract.errors import MetadataUnavailableError, RightsMissingError

# The codes are from appendix A of the manual of Postgres.
_BY_SQLSTATE: Mapping[str, str] = {
    "28000": "correct the user in metadata.url, or allow that user in pg_hba.conf",
    "28P01": "correct user or password: in metadata.url or the place it names, PGPASSWORD, or the file of PGPASSFILE",
    "3D000": "create the database (`createdb NAME`), or correct its name in metadata.url",
    "42501": "run it as the owner of the schema, the role that ran `siltstone migrate` (metadata.url); before the first"
    " migration: GRANT CREATE ON SCHEMA public TO the role",
    "53100": "disk full: free space on the disk of that Postgres; acknowledged records are safe",
    "53300": "raise max_connections of that Postgres, or stop other clients of it",
    "57P03": "Postgres is starting or stopping: try again in a moment",
}
_ELSE = "check that Postgres runs, and that host and port in metadata.url are right"


def remedy_of(error: Exception) -> str:
    """The remedy for an error about Postgres; empty for other errors, and for an error that carries its own remedy."""
    if not isinstance(error, MetadataUnavailableError | RightsMissingError) or error.remedy:
        return ""
    # SQLAlchemy keeps the error of the driver, which has the SQLSTATE, in `orig`.
    cause = error.__cause__
    cause = getattr(cause, "orig", cause)
    sqlstate = getattr(cause, "sqlstate", None)
    if isinstance(sqlstate, str):
        return _BY_SQLSTATE.get(sqlstate, "look into the log of that Postgres")
    if isinstance(cause, socket.gaierror):
        return "correct the host name in metadata.url"
    if isinstance(cause, ConnectionRefusedError):
        return "start that Postgres, or correct host and port in metadata.url"
    if isinstance(cause, TimeoutError):
        return "check that the host in metadata.url can be reached from here, and that no firewall drops packets"
    return _ELSE
