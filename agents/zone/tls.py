"""An agent proves itself to the agents of its zone by a certificate; both ends of a connection show one.

An agent takes for an agent whoever shows a certificate of an authority in `zone.tls.ca.file` that shares a host name
with its own. The address that was dialed says nothing: agents come and go by addresses that no certificate can know
beforehand, and all agents may do the same. The shared name tells agents from all else that the authority has signed.
While the authority changes, the file holds the old and the new one, and certificates of both share the name.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

from cryptography import x509

from runtime.errors import BadInputError
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from runtime.tls.certificates import Certificates
from runtime.tls.contexts import ServerTls
from runtime.tls.files import ClientAuth, ServerTlsSettings
from runtime.tls.judging import host_names

LISTENER = "zone.listen"
"""In metrics and log lines. No listener of clients can have this name."""


class NotAnAgentError(BadInputError):
    """The certificate of the other side is good, and not that of an agent of this cluster."""


class ZoneTls:
    def __init__(self, settings: Settings, runtime: Runtime) -> None:
        """Reads the files. Raises TlsFileError."""
        self.certificates = Certificates(
            ServerTlsSettings(
                listener=LISTENER,
                prefix="zone.tls",
                cert_file=Path(settings.zone_tls_cert_file),
                key_file=Path(settings.zone_tls_key_file),
                ca_file=Path(settings.zone_tls_ca_file),
                version_min=ssl.TLSVersion.TLSv1_3,
                client_auth=ClientAuth.REQUIRED,
                dials=True,
            ),
            runtime.clock,
            runtime.metrics,
        )

    def current(self) -> ServerTls:
        return self.certificates.current()

    async def dial(self, factory: Callable[[], asyncio.BufferedProtocol], host: str, port: int) -> None:
        """Connect, and know the other side for an agent before anything is asked. Raises OSError, NotAnAgentError."""
        current = self.current()
        transport, _ = await asyncio.get_running_loop().create_connection(
            factory, host, port, ssl=current.dialing, server_hostname=""
        )
        try:
            shown = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
            must_be_an_agent(shown, current.names)
        except BaseException:
            transport.abort()
            raise


def zone_tls_of(settings: Settings, runtime: Runtime, keep: Callable[[Certificates], None]) -> ZoneTls | None:
    """None if the zone is off, or plain. `keep` sees to it that certificates are renewed. Raises TlsFileError."""
    if not (settings.zone_listen and settings.zone_tls_cert_file):
        return None
    found = ZoneTls(settings, runtime)
    keep(found.certificates)
    return found


def must_be_an_agent(certificate: bytes | None, names: frozenset[str]) -> None:
    """`certificate`: DER, verified already. Raises NotAnAgentError."""
    try:
        shown = host_names(x509.load_der_x509_certificate(certificate or b""))
    except ValueError as error:
        raise NotAnAgentError(f"its certificate cannot be read: {error}") from error
    if not shown & names:
        raise NotAnAgentError(
            f"its certificate names {', '.join(sorted(shown)) or 'no host'}, and ours {', '.join(sorted(names))}",
            remedy="give the certificates of all agents (zone.tls.cert.file) one DNS name in common",
        )
