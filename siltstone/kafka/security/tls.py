"""The client's side of TLS: a context from the files that were named, and errors in words."""

from __future__ import annotations

import ssl
from pathlib import Path

from runtime.errors import BadInputError
from siltstone.kafka.security.values import ClientConfigError, ClientSecurity


class TlsFailedError(BadInputError):
    """The two ends cannot agree, or do not trust each other. Trying again does not help."""


def context_of(security: ClientSecurity) -> ssl.SSLContext:
    """Raises ClientConfigError."""
    certificate, key = security.certificate_file, security.key_file
    named = security.ca_file
    try:
        context = ssl.create_default_context(cafile=security.ca_file)
        context.check_hostname = security.checks_host
        if certificate is not None and key is not None:
            for named in (certificate, key):
                named.open("rb").close()
            if not _is_certificate(certificate):
                named = certificate
            # A function: without a password OpenSSL would ask for one at the terminal.
            context.load_cert_chain(certificate, key, password=lambda: security.key_password or "")
    except OSError as error:
        if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
            raise ClientConfigError(
                f"{security.source}: {key} does not belong to {certificate}",
                remedy="name the key that the certificate was made with",
            ) from None
        # An SSLError is one too; its text names no file and is about OpenSSL's insides.
        why = "is of no use as PEM" if isinstance(error, ssl.SSLError) else error.strerror or str(error)
        raise ClientConfigError(
            f"{security.source}: {named}: {why}",
            remedy="name PEM files that this user can read; a key that is encrypted needs ssl.key.password",
        ) from None
    return context


def _is_certificate(path: Path) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        return False
    return True


def failed(address: str, error: ssl.SSLError, security: ClientSecurity) -> TlsFailedError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailedError(
            f"the certificate of {address} is not trusted: {error.verify_message}",
            remedy="name the right authority in ssl.ca.location, and connect by a name that the certificate has",
        )
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "certificate required" in reason and security.certificate_file is None:
        return TlsFailedError(
            f"{address} wants a certificate, and {security.source} names none: {reason}",
            remedy="set ssl.certificate.location and ssl.key.location",
        )
    if "certificate" in reason or "unknown ca" in reason:
        return TlsFailedError(
            f"{address} does not take our certificate: {reason}",
            remedy="name a certificate that it trusts in ssl.certificate.location, and its key in ssl.key.location",
        )
    return TlsFailedError(
        f"no TLS with {address}: {reason}",
        remedy=f"is it a listener with TLS? {security.source} says security.protocol={security.protocol}",
    )
