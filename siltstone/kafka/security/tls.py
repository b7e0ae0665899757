"""The client's side of TLS: a context from the files that were named, and errors in words."""

from __future__ import annotations

import ssl

from runtime.errors import BadInputError
from siltstone.kafka.security.values import ClientConfigError, ClientSecurity


class TlsFailedError(BadInputError):
    """The two ends cannot agree, or do not trust each other. Trying again does not help."""


def context_of(security: ClientSecurity) -> ssl.SSLContext:
    """Raises ClientConfigError."""
    named = security.ca_file
    try:
        context = ssl.create_default_context(cafile=security.ca_file)
        context.check_hostname = security.checks_host
        named = security.certificate_file
        if security.certificate_file is not None:
            # A function: without a password OpenSSL would ask for one at the terminal.
            context.load_cert_chain(
                security.certificate_file, security.key_file, password=lambda: security.key_password or ""
            )
    except OSError as error:
        # An SSLError is one too; its text names no file and is about OpenSSL's insides.
        why = "is of no use as PEM" if isinstance(error, ssl.SSLError) else error.strerror or str(error)
        raise ClientConfigError(
            f"{security.source}: {named}: {why}",
            remedy="name PEM files that this user can read; a key that is encrypted needs ssl.key.password, and it must"
            " fit the certificate",
        ) from None
    return context


def failed(address: str, error: ssl.SSLError, security: ClientSecurity) -> TlsFailedError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailedError(
            f"the certificate of {address} is not trusted: {error.verify_message}",
            remedy="name the right authority in ssl.ca.location, and connect by a name that the certificate has",
        )
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "certificate" in reason:
        return TlsFailedError(
            f"{address} does not take our certificate: {reason}",
            remedy="name a certificate that it trusts in ssl.certificate.location, and its key in ssl.key.location",
        )
    return TlsFailedError(
        f"no TLS with {address}: {reason}",
        remedy=f"is it a listener with TLS? {security.source} says security.protocol={security.protocol}",
    )
