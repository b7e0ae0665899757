"""The PEM files of TLS: the settings that name them, and how they are read."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from ssl import TLSVersion

from runtime.errors import BadInputError

FILE_BYTES_MAX = 16 << 20
"""A revocation list of 400,000 certificates."""


class TlsFileError(BadInputError):
    """A file of TLS cannot be used; the message names its setting and its path."""


class ClientAuth(StrEnum):
    NONE = "none"
    REQUESTED = "requested"
    """A client may show a certificate. If it shows one, it must be good."""
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTlsSettings:
    """The TLS settings of a listener."""

    listener: str
    """Its name, for metrics and log lines."""
    prefix: str
    """The beginning of its settings' names, such as `listener.public.tls`, for messages."""
    cert_file: Path
    """The certificate first, then those of its issuers up to the root."""
    key_file: Path
    """May be the same file."""
    ca_file: Path | None = None
    """Authorities of clients' certificates."""
    crl_file: Path | None = None
    version_min: TLSVersion = TLSVersion.TLSv1_2
    client_auth: ClientAuth = ClientAuth.NONE
    dials: bool = False
    """The same certificate is shown to peers that are dialed, and theirs are of the same authorities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTlsSettings:
    """The TLS settings of a client of ours."""

    prefix: str
    ca_file: Path | None = None
    """Authorities of servers' certificates; None: those that the system trusts."""
    cert_file: Path | None = None
    key_file: Path | None = None


@dataclass(frozen=True, slots=True)
class PemFile:
    """A file as it was read, with the setting that named it."""

    setting: str
    path: Path
    data: bytes
    is_world_readable: bool = False

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.setting} = {self.path}"

    def error(self, what: str, remedy: str) -> TlsFileError:
        return TlsFileError(f"{self.name}: {what}", remedy=remedy)


Stamp = tuple[int, int, int, int]
"""Tells one state of a file from another: device, inode, time of the last change, size. All of the file that a
symbolic link leads to: Kubernetes swaps the link of a whole directory."""


def stamp(path: Path) -> Stamp | None:
    """None if the file is not there or not ours to see."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def read_file(setting: str, path: Path) -> PemFile:
    """Raises TlsFileError."""
    try:
        # Not blocking: a named pipe would hold up the process before anybody can see what it is.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        remedy = f"check the setting '{setting}', or put the file there"
        raise TlsFileError(f"{setting} = {path}: no such file", remedy=remedy) from error
    except OSError as error:
        raise _unreadable(setting, path, error) from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise TlsFileError(f"{setting} = {path}: not a file", remedy=f"name a PEM file in '{setting}'")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _unreadable(setting, path, error) from error
    finally:
        os.close(descriptor)
    if len(data) > FILE_BYTES_MAX:
        raise TlsFileError(
            f"{setting} = {path}: larger than {FILE_BYTES_MAX >> 20} MiB", remedy=f"name a PEM file in '{setting}'"
        )
    return PemFile(setting, path, data, bool(found.st_mode & stat.S_IROTH))


def _unreadable(setting: str, path: Path, error: OSError) -> TlsFileError:
    return TlsFileError(
        f"{setting} = {path}: cannot be read: {error.strerror or error}",
        remedy=f"let the user that runs this process (uid {os.geteuid()}) read it",
    )
