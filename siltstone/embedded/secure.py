"""`siltstone dev --secure`: TLS, SCRAM and ACLs on the listener `default`, and a super user to begin with.

In the directory of the data: `certificates/` (see `siltstone.embedded.certificates`), and `clients/admin.properties`
and `clients/admin.java.properties`, by which clients come in. The super user's password is in these two files alone: it
is made at the first start and kept. Whoever removes them gets a new one at the next start.
"""

from __future__ import annotations

import datetime
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from metadata.security.contract import SecurityMetadata, UserChange
from runtime.errors import BadInputError
from runtime.settings.addresses import parse_address
from runtime.settings.checks import is_memory
from runtime.settings.listeners import DEFAULT_LISTENER, listeners_of
from runtime.settings.table import Settings
from security.scram import SALT_BYTES, Mechanism, credential_of, is_password_of
from siltstone.embedded.attach import data_directory
from siltstone.embedded.certificates import CertificateFiles, keep_certificates
from siltstone.embedded.private_files import write_private
from siltstone.kafka.security.properties import read_client_config
from siltstone.kafka.security.values import ClientConfigError

ADMIN: Final = "admin"
LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
_ANY_HOST: Final = ("0.0.0.0", "::")  # noqa: S104


class OtherAdminError(BadInputError):
    """The metadata has a user `admin` whose password is not in our files. Nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admin:
    """The super user, and the files that hold its password."""

    password: str = field(repr=False)
    properties: Path
    """librdkafka's names, and those of our commands."""
    java_properties: Path


def certificate_files(data: Path) -> CertificateFiles:
    return CertificateFiles(data_directory(data) / "certificates")


def client_files(data: Path) -> tuple[Path, Path]:
    """For librdkafka and our own commands, and for Java's clients."""
    folder = data_directory(data) / "clients"
    return folder / f"{ADMIN}.properties", folder / f"{ADMIN}.java.properties"


def secure_options(data: Path) -> Mapping[str, str]:
    """The settings by name. The files need not be there yet. `acl.mode` is not among them: `auto` means `on` here, and
    whoever tries `shadow` is let do it."""
    files = certificate_files(data)
    return {
        f"listener.{DEFAULT_LISTENER}.protocol": "SASL_SSL",
        f"listener.{DEFAULT_LISTENER}.tls.cert.file": str(files.server),
        f"listener.{DEFAULT_LISTENER}.tls.key.file": str(files.server_key),
    }


def with_super_user(settings: Settings) -> Settings:
    """`settings` of `secure_options`, with the super user. Raises BadInputError."""
    if is_memory(settings.metadata_url) or is_memory(settings.object_store_url):
        raise BadInputError(
            "--secure makes a user in the metadata, and memory:// has none before the agent runs; nothing was started",
            remedy="leave out --secure, or memory://",
        )
    users = [each.strip() for each in settings.super_users.split(";") if each.strip()]
    return replace(settings, super_users=";".join(dict.fromkeys([*users, f"User:{ADMIN}"])))


def write_files(settings: Settings, data: Path, wall_ms: int) -> Admin:
    """Certificates and client files, as far as they are not there. The caller holds the directory's lock. Raises
    BadInputError."""
    files = certificate_files(data)
    properties, java_properties = client_files(data)
    try:
        keep_certificates(files, _host_names(settings), datetime.datetime.fromtimestamp(wall_ms / 1000, datetime.UTC))
        properties.parent.mkdir(mode=0o700, exist_ok=True)
        password = _kept_password(properties) or secrets.token_urlsafe(24)
        write_private(properties, librdkafka_properties(password, files.ca).encode())
        write_private(java_properties, java_client_properties(password, files.ca).encode("ascii"))
    except OSError as error:
        raise BadInputError(
            f"cannot write {error.filename}: {error.strerror}; nothing was started",
            remedy="give this user the right, or choose another directory with --data",
        ) from error
    return Admin(password=password, properties=properties, java_properties=java_properties)


async def keep_admin(metadata: SecurityMetadata, admin: Admin, *, is_ours: bool) -> None:
    """See that the super user's password is that of the files. `is_ours`: nobody else has users in this metadata.

    Raises OtherAdminError, and what the metadata raise.
    """
    found = (await metadata.users([ADMIN])).get(ADMIN, {})
    if found.keys() >= set(Mechanism) and all(is_password_of(each, admin.password) for each in found.values()):
        return
    if found and not is_ours:
        raise OtherAdminError(
            f"the metadata has a user {ADMIN!r} already, with another password than {admin.properties}; nothing was"
            " changed",
            remedy=f"write its password into that file, or delete the user: `siltstone users delete {ADMIN} --direct`",
        )
    await metadata.alter_users(
        [
            UserChange(
                name=ADMIN,
                mechanism=each,
                credential=credential_of(each, admin.password, salt=secrets.token_bytes(SALT_BYTES)),
            )
            for each in Mechanism
        ]
    )


# ---- client files. Pure.


def librdkafka_properties(password: str, ca: Path) -> str:
    return (
        "# Written by `siltstone dev --secure`. kcat: -F; siltstone: --client-config\n"
        "security.protocol=SASL_SSL\n"
        "sasl.mechanisms=SCRAM-SHA-512\n"
        f"sasl.username={ADMIN}\n"
        f"sasl.password={password}\n"
        f"ssl.ca.location={ca}\n"
    )


def java_client_properties(password: str, ca: Path) -> str:
    """ASCII, which Java reads the same in every encoding."""
    quoted = re.sub(r'(["\\])', r"\\\1", password)
    jaas = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{ADMIN}" password="{quoted}";'
    return (
        "# Written by `siltstone dev --secure`. Kafka's tools: --command-config, siltstone: --client-config\n"
        "security.protocol=SASL_SSL\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        f"sasl.jaas.config={java_escaped(jaas)}\n"
        "ssl.truststore.type=PEM\n"
        f"ssl.truststore.location={java_escaped(str(ca))}\n"
    )


def java_escaped(value: str) -> str:
    """As `java.util.Properties` reads it."""
    units = value.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    text = "".join(
        "\\\\" if code == ord("\\") else chr(code) if 0x20 <= code < 0x7F else f"\\u{code:04x}" for code in codes
    )
    return f"\\{text}" if text.startswith(" ") else text


def _kept_password(properties: Path) -> str:
    """Empty if there is none."""
    try:
        return read_client_config(properties).security.password
    except ClientConfigError:
        return ""


def _host_names(settings: Settings) -> Sequence[str]:
    default = next(each for each in listeners_of(settings) if each.name == DEFAULT_LISTENER)
    hosts = [parse_address(each)[0] for each in (default.address, default.advertised) if each]
    return list(dict.fromkeys([*LOOPBACK_NAMES, *(each for each in hosts if each not in _ANY_HOST)]))
