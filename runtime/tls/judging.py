"""Whether the contents of TLS files may be used, and if not, what to do about it. Pure: bytes and a time in.

OpenSSL says of most of these mistakes only that something is wrong somewhere. So each is looked for here first.

Certificates of clients are compared with the revocation list by us, not by OpenSSL: OpenSSL refuses *every* client
whose authority has no list, or whose list is older than it said it would be. Here an old list goes on to refuse the
certificates that it names, and no other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID

from runtime.tls.files import PemFile, TlsFileError

_CRL_BLOCK = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)
_DER_START = b"\x30"
_CRL_EXTENSIONS = {ExtensionOID.AUTHORITY_KEY_IDENTIFIER, ExtensionOID.CRL_NUMBER}

_BOTH_WAYS = {ExtendedKeyUsageOID.SERVER_AUTH: "serverAuth", ExtendedKeyUsageOID.CLIENT_AUTH: "clientAuth"}


@dataclass(frozen=True, slots=True)
class JudgedIdentity:
    """A certificate with its issuers and key, good for use now."""

    subject: str
    expires_ms: int
    """When the first of the certificates expires."""


@dataclass(frozen=True, slots=True)
class Revocations:
    """The certificates that lists of revocation name."""

    names: frozenset[tuple[bytes, int]] = frozenset()
    """Issuer (DER) and serial number."""
    expires_ms: int | None = None
    """When the first of the lists says that a newer one should be there."""

    def include(self, certificate: x509.Certificate) -> bool:
        return (certificate.issuer.public_bytes(), certificate.serial_number) in self.names


NO_REVOCATIONS = Revocations()


def judge_identity(cert: PemFile, key: PemFile, now_ms: int) -> JudgedIdentity:
    """Raises TlsFileError."""
    chain = certificates_in(cert)
    own = chain[0]
    if _public_bytes(cert, own) != _key_bytes(key):
        raise key.error(
            f"this key does not belong to the certificate {_subject(own)} in {cert.path}",
            f"name that certificate's key in '{key.setting}'; in the certificate file its own certificate comes first",
        )
    for each in chain:
        # A root's expiry is the business of those who trust it.
        if each is own or each.issuer != each.subject:
            _must_be_current(cert, each, now_ms)
    judged = [each for each in chain if each is own or each.issuer != each.subject]
    return JudgedIdentity(_subject(own), min(_ms(each.not_valid_after_utc.timestamp()) for each in judged))


def host_names(certificate: x509.Certificate) -> frozenset[str]:
    """The DNS names of a certificate in lower case; not its addresses, nor its subject. Raises ValueError for one whose
    extensions are damaged.
    """
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    except (x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise ValueError(str(error)) from error
    return frozenset(name.lower() for name in names.get_values_for_type(x509.DNSName))


def judge_both_ways(cert: PemFile) -> frozenset[str]:
    """The host names of a certificate that serves and dials, at least one. Raises TlsFileError."""
    own = certificates_in(cert)[0]
    try:
        names = host_names(own)
        usages = _usages(own)
    except ValueError as error:
        raise cert.error(f"a damaged certificate: {error}", "copy it from the authority again") from error
    if not names:
        raise cert.error(
            f"the certificate {_subject(own)} has no host name, and its peers are known by one that they share",
            "get one whose subject alternative names hold a DNS name that all its peers have too",
        )
    for usage, name in _BOTH_WAYS.items():
        if usages and not usages & {usage, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE}:
            raise cert.error(
                f"the certificate {_subject(own)} is not for {name}, and both sides show it",
                "get one with the extended key usages serverAuth and clientAuth",
            )
    return names


def _usages(certificate: x509.Certificate) -> set[x509.ObjectIdentifier]:
    """Empty: any."""
    try:
        return set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        return set()


def judge_authorities(ca: PemFile, now_ms: int) -> Sequence[x509.Certificate]:
    """One authority at least must be current. Raises TlsFileError."""
    authorities = certificates_in(ca)
    if all(_ms(each.not_valid_after_utc.timestamp()) <= now_ms for each in authorities):
        _must_be_current(ca, authorities[0], now_ms)
    return authorities


def judge_revocations(crl: PemFile, authorities: Sequence[x509.Certificate]) -> Revocations:
    """Raises TlsFileError. A list that is out of date is no error, see above."""
    blocks = _CRL_BLOCK.findall(crl.data)
    if not blocks:
        raise _not_pem(crl, "X509 CRL", "crl")
    names: set[tuple[bytes, int]] = set()
    expires: list[int] = []
    for block in blocks:
        try:
            revoked = x509.load_pem_x509_crl(block)
            issuer = revoked.issuer.public_bytes()
            _must_be_whole_and_signed(crl, revoked, authorities)
            names.update((issuer, each.serial_number) for each in revoked)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise crl.error(f"a damaged revocation list: {error}", "fetch it from the authority again") from error
        if revoked.next_update_utc is not None:
            expires.append(_ms(revoked.next_update_utc.timestamp()))
    return Revocations(frozenset(names), min(expires, default=None))


def certificates_in(file: PemFile) -> Sequence[x509.Certificate]:
    """At least one. Raises TlsFileError."""
    if b"-----BEGIN CERTIFICATE-----" not in file.data:
        raise _not_pem(file, "CERTIFICATE", "x509")
    try:
        return x509.load_pem_x509_certificates(file.data)
    except ValueError as error:
        raise file.error(f"a damaged certificate: {error}", "copy it from the authority again") from error


def _key_bytes(key: PemFile) -> bytes:
    if b"PRIVATE KEY-----" not in key.data:
        raise _not_pem(key, "PRIVATE KEY", "pkey")
    try:
        private: PrivateKeyTypes = load_pem_private_key(key.data, None)
    except TypeError as error:
        raise key.error(
            "the key is encrypted, and this process knows no passphrase",
            f"write it without one, readable for this process alone: openssl pkey -in {key.path} -out FILE",
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise key.error(f"a damaged key, or one of an unknown kind: {error}", "use an ECDSA or RSA key") from error
    return private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _public_bytes(cert: PemFile, certificate: x509.Certificate) -> bytes:
    try:
        return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise cert.error(f"a key of an unknown kind: {error}", "use a certificate for an ECDSA or RSA key") from error


def _must_be_current(file: PemFile, certificate: x509.Certificate, now_ms: int) -> None:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now_ms >= _ms(end.timestamp()):
        raise file.error(
            f"the certificate {_subject(certificate)} expired at {end.isoformat()}",
            "get a new one from its authority, and write it and its key over the old files",
        )
    if now_ms < _ms(begin.timestamp()):
        raise file.error(
            f"the certificate {_subject(certificate)} is not valid before {begin.isoformat()}",
            "check the clock of this machine, or use the earlier certificate until then",
        )


def _must_be_whole_and_signed(
    crl: PemFile, revoked: x509.CertificateRevocationList, authorities: Sequence[x509.Certificate]
) -> None:
    if any(extension.critical and extension.oid not in _CRL_EXTENSIONS for extension in revoked.extensions):
        raise crl.error("a delta list, or one for a part of the certificates", "use a complete list of the authority")
    issuers = [each for each in authorities if each.subject == revoked.issuer]
    for issuer in issuers:
        try:
            if revoked.is_signature_valid(issuer.public_key()):  # type: ignore[arg-type]
                return
        except TypeError:  # a kind of key that signs no lists
            continue
    what = "no authority of the CA file signed it" if issuers else "its issuer is not in the CA file"
    raise crl.error(
        f"the revocation list of {revoked.issuer.rfc4514_string()}: {what}",
        "fetch the list of the authority whose certificate is in the CA file",
    )


def _not_pem(file: PemFile, block: str, tool: str) -> TlsFileError:
    if not file.data:
        return file.error("the file is empty", f"write a PEM block '{block}' into it")
    if file.data.startswith(_DER_START):
        return file.error("DER, and PEM is needed", f"convert it: openssl {tool} -inform DER -in {file.path} -out FILE")
    held = [kind.decode("ascii", "replace") for kind in re.findall(rb"-----BEGIN ([A-Z0-9 ]{1,40})-----", file.data)]
    holds = f"it holds {', '.join(dict.fromkeys(held[:5]))}" if held else "this is not a PEM file"
    return file.error(f"no PEM block '{block}' in it; {holds}", f"name the right file in '{file.setting}'")


def _subject(certificate: x509.Certificate) -> str:
    return certificate.subject.rfc4514_string() or f"with serial number {certificate.serial_number:x}"


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
