"""TLS of an agent's listeners: what the connections of each share, and its renewal while the agent runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from ssl import TLSVersion

from runtime.errors import SiltstoneError
from runtime.metrics.security import CERTIFICATE
from runtime.runtime import Runtime
from runtime.settings.listeners import ListenerSettings
from runtime.settings.values import SettingsError
from runtime.tls.certificates import Certificates, keep_certificates
from runtime.tls.contexts import ServerTls
from runtime.tls.files import ClientAuth, ServerTlsSettings
from security.principals import PrincipalRules
from wire.framing import LANDING_BYTES


@dataclass(frozen=True, slots=True)
class ListenerTls:
    current: Callable[[], ServerTls]
    """For a new connection; see `runtime.tls.certificates.Certificates`."""
    principal_of: Callable[[bytes], str]
    """The principal that a certificate (DER) names, as `User:ann`. Raises SiltstoneError if it names nobody."""
    landing: memoryview = field(default_factory=lambda: memoryview(bytearray(LANDING_BYTES)))
    """The buffer that ciphertext arrives in; not that of the plaintext, which would overwrite it."""


class TlsOfListeners:
    def __init__(self, listeners: Iterable[ListenerSettings], runtime: Runtime) -> None:
        """Reads the files of the listeners that encrypt. Raises TlsFileError, SettingsError."""
        self._clock = runtime.clock
        self._certificates: list[Certificates] = []
        self._of: dict[str, ListenerTls] = {}
        for listener in listeners:
            if not listener.encrypts:
                continue
            certificates = Certificates(tls_settings_of(listener), runtime.clock, runtime.metrics)
            self._certificates.append(certificates)
            if listener.tls_client_auth != "none":
                runtime.metrics.security.expect_mechanism(CERTIFICATE)
            self._of[listener.name] = ListenerTls(certificates.current, _principal_rules(listener).principal)
        self._keeping: asyncio.Task[None] | None = None
        self._reloads: set[asyncio.Task[None]] = set()

    def __bool__(self) -> bool:
        return bool(self._certificates)

    def of(self, listener: str) -> ListenerTls | None:
        """None if the listener does not encrypt."""
        return self._of.get(listener)

    def keep(self, certificates: Certificates) -> None:
        """Renew these too. Before `start`."""
        self._certificates.append(certificates)

    def start(self) -> None:
        if self._certificates:
            keeping = keep_certificates(self._certificates, self._clock)
            self._keeping = asyncio.create_task(keeping, name="certificates")

    def reload(self) -> None:
        """Read all files again now, changed or not."""
        for certificates in self._certificates:
            reload = asyncio.create_task(certificates.check(anyway=True), name="certificates asked for")
            self._reloads.add(reload)
            reload.add_done_callback(self._reloads.discard)

    async def close(self) -> None:
        tasks = [*self._reloads, *([self._keeping] if self._keeping is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def tls_settings_of(listener: ListenerSettings) -> ServerTlsSettings:
    """The settings of TLS of a listener that encrypts."""
    return ServerTlsSettings(
        listener=listener.name,
        prefix=listener.setting_name("tls"),
        cert_file=Path(listener.tls_cert_file),
        key_file=Path(listener.tls_key_file),
        ca_file=Path(listener.tls_ca_file) if listener.tls_ca_file else None,
        crl_file=Path(listener.tls_crl_file) if listener.tls_crl_file else None,
        version_min=TLSVersion.TLSv1_3 if listener.tls_version_min == "1.3" else TLSVersion.TLSv1_2,
        client_auth=ClientAuth(listener.tls_client_auth),
    )


def _principal_rules(listener: ListenerSettings) -> PrincipalRules:
    try:
        return PrincipalRules.of(listener.tls_principal_mapping_rules)
    except SiltstoneError as error:
        name = listener.setting_name("tls.principal.mapping.rules")
        raise SettingsError(f"{name}: {error.message}", remedy=error.remedy) from error
