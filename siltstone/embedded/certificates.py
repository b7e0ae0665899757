"""The certificates of `siltstone dev --secure`: an authority that nobody else trusts, and a server certificate of it.

They are kept, so that clients go on to trust what they were given, and made anew a week before they expire. The
authority's key stays beside them: a developer makes certificates of clients with it (docs/security.md).
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from siltstone.embedded.private_files import write_private

AUTHORITY_DAYS: Final = 3_650
SERVER_DAYS: Final = 365
RENEWED_BEFORE: Final = datetime.timedelta(days=7)
_EARLY: Final = datetime.timedelta(hours=1)
"""A machine whose clock is a little behind trusts a new certificate too."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def ca_key(self) -> Path:
        return self.folder / "ca.key"

    @property
    def server(self) -> Path:
        return self.folder / "server.pem"

    @property
    def server_key(self) -> Path:
        return self.folder / "server.key"


@dataclass(frozen=True, slots=True)
class Identity:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def keep_certificates(files: CertificateFiles, names: Sequence[str], now: datetime.datetime) -> bool:
    """Make whatever is missing, of no use, or about to expire; True if anything was. `names`: the hosts and addresses
    that clients connect to. Raises OSError."""
    files.folder.mkdir(mode=0o700, exist_ok=True)
    authority = _read(files.ca, files.ca_key)
    is_new = authority is None or not _lasts(authority.certificate, now)
    if authority is None or is_new:
        authority = make_authority(now)
        write_private(files.ca_key, authority.key_pem)
        write_private(files.ca, authority.pem)
    server = _read(files.server, files.server_key)
    if not is_new and server is not None and is_server_of(authority, server.certificate, names, now):
        return False
    server = make_server(authority, names, now)
    write_private(files.server_key, server.key_pem)
    write_private(files.server, server.pem)
    return True


# ---- pure but for the keys, which are chance


def make_authority(now: datetime.datetime) -> Identity:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "siltstone dev, a throwaway authority")])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        _builder(name, name, key, now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return Identity(builder.sign(key, hashes.SHA256()), key)


def make_server(authority: Identity, names: Sequence[str], now: datetime.datetime) -> Identity:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = (
        _builder(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "siltstone dev")]),
            authority.certificate.subject,
            key,
            now,
            SERVER_DAYS,
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(each) for each in names]), critical=False)
        .add_extension(issuer, critical=False)
    )
    return Identity(builder.sign(authority.key, hashes.SHA256()), key)


def is_server_of(
    authority: Identity, certificate: x509.Certificate, names: Sequence[str], now: datetime.datetime
) -> bool:
    try:
        certificate.verify_directly_issued_by(authority.certificate)
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    return _lasts(certificate, now) and {_general_name(each) for each in names} <= set(found)


def _lasts(certificate: x509.Certificate, now: datetime.datetime) -> bool:
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - RENEWED_BEFORE


def _read(certificate_file: Path, key_file: Path) -> Identity | None:
    """None if a file is missing or of no use, or the two do not fit."""
    try:
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
    except (FileNotFoundError, ValueError, TypeError):
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
        return None
    return Identity(certificate, key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLY)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
