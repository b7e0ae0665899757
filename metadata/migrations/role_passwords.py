"""The passwords of Postgres roles, which `siltstone migrate --agent|--compactor ROLE` sets.

Postgres gets a SCRAM verifier. Where a secret of AWS Secrets Manager holds the password, programs try its current
version and the one before. One of the two must be what Postgres takes, at any moment, and wherever this process is
killed. So Postgres is first given the present password, which an earlier run may have failed to do. Then it is given
the new one in a transaction that commits after the secret has changed: without the right to do it, and without Secrets
Manager, nothing changes. A lock of the session, held from the first step to the last, keeps two runs apart, which would
push the password that Postgres takes out of the secret.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from metadata.contract.errors import MetadataUnavailableError
from metadata.migrations.grants import Rights, check_role
from metadata.postgres.connection import CONNECTION_ERRORS, INSUFFICIENT_PRIVILEGE, connect, sqlstate_of, unavailable
from metadata.postgres.driver import Connection
from runtime.errors import BadInputError
from runtime.secrets_manager import (
    EmptySecretError,
    SecretDeniedError,
    SecretMalformedError,
    put_password,
    read_secret,
)

PASSWORDS_LOCK: Final = 0x51_74_50_57
WAIT_MS: Final = 60_000
"""For another run, which may wait for Secrets Manager."""
ITERATIONS: Final = 4_096
"""Postgres's own default (`scram_iterations`)."""
QUERY_CANCELED: Final = "57014"
_PLAIN: Final = re.compile(r"[!-~]+")


async def set_password(url: str, role: str, rights: Rights, password: str, *, salt: bytes) -> None:
    """Give `role` this password; the role is made if it is missing. `salt` is 16 random bytes.

    Raises BadInputError if the role may do everything already, or if ours may not do this; MetadataUnavailableError.
    """
    verifier = scram_verifier(password, salt)
    async with _alone(url, role) as connection:
        await _set(connection, role, rights, verifier)


async def set_password_of_secret(
    url: str, role: str, rights: Rights, arn: str, *, new: bool, drawn: str, salt: bytes
) -> bool:
    """Give `role` the password of the secret. If that has none yet, or with `new`, `drawn` becomes its password first.

    Returns whether it is `drawn`. Raises what `set_password` does, and SecretUnreadableError.
    """
    async with _alone(url, role) as connection:
        present = await _present(arn, new=new)
        if present:
            await _set(connection, role, rights, scram_verifier(present, salt))
            if not new:
                return False
        await connection.execute("BEGIN")
        await _set(connection, role, rights, scram_verifier(drawn, salt))
        await put_password(arn, drawn)
        await connection.execute("COMMIT")
    return True


async def _present(arn: str, *, new: bool) -> str:
    """The secret's password; "" if there is none, or with `new` none that Postgres can be given: a new password is the
    cure for that. Raises SecretUnreadableError: also with `new`, unless it is certain that the secret has no password
    or hides it. The one before may be the only one that Postgres takes, and a new one would push it out."""
    try:
        password = (await read_secret(arn)).passwords[0]
    except EmptySecretError:
        return ""
    except (SecretMalformedError, SecretDeniedError):
        if not new:
            raise
        return ""
    return "" if new and not _PLAIN.fullmatch(password) else password


@asynccontextmanager
async def _alone(url: str, role: str) -> AsyncGenerator[Connection]:
    """A session during which no other run sets a password. Raises MetadataUnavailableError."""
    connection = await connect(url, application="siltstone-migrate", statement_timeout_ms=WAIT_MS)
    try:
        # A shorter time-out would end the session, and the lock with it, while Secrets Manager is waited for.
        await connection.execute(
            f"SET idle_session_timeout = {WAIT_MS}; SET idle_in_transaction_session_timeout = {WAIT_MS}"
        )
        try:
            await connection.execute(f"SELECT pg_advisory_lock({PASSWORDS_LOCK})")
        except CONNECTION_ERRORS as error:
            if sqlstate_of(error) != QUERY_CANCELED:
                raise
            raise MetadataUnavailableError(
                f"another `siltstone migrate` has been setting passwords for {WAIT_MS // 1000} s;"
                f" that of {role!r} was not changed",
                remedy="end that one, or run this one again after it",
            ) from error
        yield connection
    except CONNECTION_ERRORS as error:
        raise unavailable(error) from error
    finally:
        connection.terminate()


async def other_databases(url: str, role: str) -> list[str]:
    """The other databases of this server in which the role has rights, by name: clusters there may use it too. Raises
    MetadataUnavailableError."""
    connection = await connect(url, application="siltstone-migrate")
    try:
        return [str(row["datname"]) for row in await connection.fetch(_OTHER_DATABASES, role)]
    except CONNECTION_ERRORS as error:
        raise unavailable(error) from error
    finally:
        connection.terminate()


async def _set(connection: Connection, role: str, rights: Rights, verifier: str) -> None:
    named = await connection.fetchrow(_NAMED, role)
    if named is None:
        raise MetadataUnavailableError("Postgres did not answer: it gave no row to a question without a table")
    if named["is_there"]:
        await check_role(connection, role, rights)
    verb, quoted = "ALTER" if named["is_there"] else "CREATE", named["quoted"]
    try:
        # Base64 and the signs between it: nothing in it ends a literal.
        await connection.execute(f"{verb} ROLE {quoted} LOGIN PASSWORD '{verifier}'")
    except CONNECTION_ERRORS as error:
        if sqlstate_of(error) != INSUFFICIENT_PRIVILEGE:
            raise
        # From Postgres 16 on CREATEROLE is not enough for a role that another one made.
        over_it = f", and GRANT {quoted} TO {named['me']} WITH ADMIN OPTION" if named["is_there"] else ""
        raise BadInputError(
            f"the role of metadata.url may not set the password of {role!r}; its password was not changed",
            remedy=f"let a superuser run ALTER ROLE {named['me']} CREATEROLE{over_it}; then run this again",
        ) from error


_NAMED: Final = """SELECT quote_ident($1::text) AS quoted, quote_ident(current_user) AS me,
    EXISTS (SELECT FROM pg_roles WHERE rolname = $1) AS is_there"""

_OTHER_DATABASES: Final = """SELECT DISTINCT d.datname FROM pg_shdepend s JOIN pg_database d ON d.oid = s.dbid
    WHERE s.refclassid = 'pg_authid'::regclass AND s.refobjid = (SELECT oid FROM pg_roles WHERE rolname = $1)
        AND d.datname <> current_database() ORDER BY d.datname"""


def scram_verifier(password: str, salt: bytes) -> str:
    """The verifier that Postgres keeps, so that the password itself reaches neither the server nor its log (RFC 5802).

    Raises BadInputError for characters that clients would prepare in different ways.
    """
    if not _PLAIN.fullmatch(password):
        raise BadInputError(
            "the password for a role of Postgres has a space, or a character beyond ASCII",
            remedy="take letters, digits and punctuation of ASCII",
        )
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, ITERATIONS)
    stored_key = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    shown = [base64.b64encode(part).decode() for part in (salt, stored_key, server_key)]
    return f"SCRAM-SHA-256${ITERATIONS}:{shown[0]}${shown[1]}:{shown[2]}"
