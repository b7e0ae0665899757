"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): the credentials that a server keeps, and how they are made.

A password becomes bytes as UTF-8, without SASLprep, as in Kafka: `secreT` and its look-alikes in other scripts differ.
The messages that prove a password are in `security.sasl`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from runtime.errors import BadInputError

ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 16_384
"""Kafka's bounds (`ScramMechanism`, `ScramControlManager`)."""
ITERATIONS_DEFAULT: Final = 4_096
"""Kafka's tools use it too. A user with another number can be told from a user who does not exist."""
SALT_BYTES: Final = 16
SALT_BYTES_MAX: Final = 1_024
"""Kafka has no bound; its own salts have 25 bytes. Every one is kept by every agent."""
PASSWORD_BYTES_MAX: Final = 4_096
NAME_BYTES_MAX: Final = 1_024


class CredentialError(BadInputError):
    """No credential can be made of these values. The message never shows a secret."""


class Mechanism(IntEnum):
    """The numbers are those of KIP-554, in requests and in the metadata store."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return self.name.replace("_", "-")

    @property
    def digest(self) -> str:
        """The name of its hash in `hashlib`."""
        return "sha256" if self is Mechanism.SCRAM_SHA_256 else "sha512"

    @property
    def key_bytes(self) -> int:
        return 32 if self is Mechanism.SCRAM_SHA_256 else 64


BY_SASL_NAME: Final[Mapping[str, Mechanism]] = {each.sasl_name: each for each in Mechanism}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """All that a server keeps of a password. The keys are never shown: `server_key` lets its reader pose as an agent,
    and a short password can be guessed from either."""

    mechanism: Mechanism
    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """A client derives these from its password, salt and iterations. They are as good as the password."""

    client_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def credential_of(
    mechanism: Mechanism, password: str, *, salt: bytes, iterations: int = ITERATIONS_DEFAULT
) -> ScramCredential:
    """Costs about a millisecond for 4,096 iterations. Raises CredentialError."""
    check_password(password)
    _check(mechanism, salt, iterations)
    return credential_of_salted(
        mechanism, salted_password(mechanism, password, salt, iterations), salt=salt, iterations=iterations
    )


def credential_of_salted(mechanism: Mechanism, salted: bytes, *, salt: bytes, iterations: int) -> ScramCredential:
    """The credential of a salted password, which clients send instead of the password (KIP-554).

    Raises CredentialError.
    """
    _check(mechanism, salt, iterations)
    if len(salted) != mechanism.key_bytes:
        raise CredentialError(
            f"a salted password for {mechanism.sasl_name} has {mechanism.key_bytes} bytes, not {len(salted)}",
            remedy=f"send the output of PBKDF2 with {mechanism.digest}, uncut",
        )
    keys = keys_of(mechanism, salted)
    return ScramCredential(
        mechanism=mechanism,
        salt=salt,
        iterations=iterations,
        stored_key=stored_key_of(mechanism, keys.client_key),
        server_key=keys.server_key,
    )


def salted_password(mechanism: Mechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """RFC 5802's `Hi`: PBKDF2. It lets other threads run meanwhile."""
    return hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)


def keys_of(mechanism: Mechanism, salted: bytes) -> ClientKeys:
    return ClientKeys(
        hmac.digest(salted, b"Client Key", mechanism.digest), hmac.digest(salted, b"Server Key", mechanism.digest)
    )


def stored_key_of(mechanism: Mechanism, client_key: bytes) -> bytes:
    return hashlib.new(mechanism.digest, client_key).digest()


def is_password_of(credential: ScramCredential, password: str) -> bool:
    """Costs as much as `credential_of`, whether or not it is the password."""
    salted = salted_password(credential.mechanism, password, credential.salt, credential.iterations)
    client_key = keys_of(credential.mechanism, salted).client_key
    return hmac.compare_digest(stored_key_of(credential.mechanism, client_key), credential.stored_key)


def is_same(credential: ScramCredential, other: ScramCredential | None) -> bool:
    """Whether a password that was proved against one is still the password."""
    return (
        other is not None
        and credential.mechanism is other.mechanism
        and credential.iterations == other.iterations
        and hmac.compare_digest(credential.salt, other.salt)
        and hmac.compare_digest(credential.stored_key, other.stored_key)
    )


def stand_in(mechanism: Mechanism, name: str, cluster_secret: bytes) -> ScramCredential:
    """A credential for a user who does not exist, which no password proves. The same for each agent and each try, so
    that the salt in an answer does not tell who exists."""
    asked = b"\0".join((mechanism.sasl_name.encode(), name.encode()))
    salt = hmac.digest(cluster_secret, b"salt\0" + asked, "sha512")[:SALT_BYTES]
    keys = hmac.digest(cluster_secret, b"keys\0" + asked, "sha512")
    return ScramCredential(
        mechanism=mechanism,
        salt=salt,
        iterations=ITERATIONS_DEFAULT,
        stored_key=keys[: mechanism.key_bytes],
        server_key=keys[: mechanism.key_bytes],
    )


def check_password(password: str) -> None:
    """Raises CredentialError. The message says nothing of the password but its bound."""
    try:
        size = len(password.encode())
    except UnicodeEncodeError:
        # `from None`: the error holds the text.
        raise CredentialError("the password cannot be written as UTF-8", remedy="choose another password") from None
    if not 0 < size <= PASSWORD_BYTES_MAX:
        raise CredentialError(
            f"a password has 1 to {PASSWORD_BYTES_MAX:,} bytes as UTF-8", remedy="choose another password"
        )
    if "\0" in password:
        raise CredentialError(
            "the password holds a NUL, which ends it in the mechanism PLAIN", remedy="choose another password"
        )


def check_name(name: str) -> None:
    """Raises CredentialError."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise CredentialError("the user's name cannot be written as UTF-8", remedy="choose another name") from None
    if not 0 < size <= NAME_BYTES_MAX or "\0" in name:
        raise CredentialError(
            f"a user's name has 1 to {NAME_BYTES_MAX:,} bytes as UTF-8, and no NUL", remedy="choose another name"
        )


def check_credential(credential: ScramCredential) -> None:
    """Whether a credential from elsewhere can be one at all. Raises CredentialError."""
    mechanism = credential.mechanism
    _check(mechanism, credential.salt, credential.iterations)
    if {len(credential.stored_key), len(credential.server_key)} != {mechanism.key_bytes}:
        raise CredentialError(
            f"a key for {mechanism.sasl_name} that has not {mechanism.key_bytes} bytes", remedy="copy it uncut"
        )


def _check(mechanism: Mechanism, salt: bytes, iterations: int) -> None:
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise CredentialError(
            f"{iterations:,} iterations are too {'few' if iterations < ITERATIONS_MIN else 'many'}",
            remedy=f"{mechanism.sasl_name} takes {ITERATIONS_MIN:,} to {ITERATIONS_MAX:,}",
        )
    if not 0 < len(salt) <= SALT_BYTES_MAX:
        raise CredentialError(f"a salt of {len(salt):,} bytes", remedy=f"a salt has 1 to {SALT_BYTES_MAX:,} bytes")
