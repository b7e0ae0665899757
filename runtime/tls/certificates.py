"""The certificate of a listener, renewed from its files while the process runs.

Every CHECK_MS, and when somebody asks (SIGHUP), the files are compared with what was read. If they changed, a new
context is made of them. It takes the place of the old one only if all of it is good; otherwise the old one goes on, one
line in the log says why, and a counter rises. Connections keep the context that they began with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from runtime.clock import Clock
from runtime.errors import SiltstoneError
from runtime.logging import get_logger
from runtime.metrics import Metrics
from runtime.tls.contexts import ServerTls, server_tls
from runtime.tls.files import ServerTlsSettings, Stamp, stamp

_log = get_logger(__name__)

CHECK_MS = 10_000

Stamps = tuple[Stamp | None, ...]


class Certificates:
    """Those of one listener."""

    def __init__(self, settings: ServerTlsSettings, clock: Clock, metrics: Metrics) -> None:
        """Reads the files. Raises TlsFileError."""
        self._settings = settings
        self._clock = clock
        self._expires = metrics.tls_certificate_expires_seconds.labels(listener=settings.listener)
        self._used = metrics.tls_reloads_total.labels(listener=settings.listener, outcome="used")
        self._refused = metrics.tls_reloads_total.labels(listener=settings.listener, outcome="refused")
        paths = (settings.cert_file, settings.key_file, settings.ca_file, settings.crl_file)
        self._paths: Sequence[Path] = [path for path in paths if path is not None]
        self._reloading = asyncio.Lock()
        self._refusal = ""
        """Why the files, as they are now, are not used; empty if they are."""
        # Before the files are read: what changes while they are read is seen by the next check.
        self._stamps = self._look()
        self._current = server_tls(settings, clock.wall_ms())
        self._told_of_list = 0
        """The revocation list, by its expiry, that the log has called old."""
        self._report()
        self._warn(self._current)

    def current(self) -> ServerTls:
        """For a new connection."""
        return self._current

    async def check(self, *, anyway: bool = False) -> None:
        """Read the files again if they have changed, or `anyway`. Raises nothing."""
        async with self._reloading:
            # Files that were refused are tried again: a certificate becomes valid without any change to its file.
            stamps = await asyncio.to_thread(self._look)
            if anyway or self._refusal or stamps != self._stamps:
                await self._reload(stamps)
            self._report()

    async def _reload(self, stamps: Stamps) -> None:
        try:
            renewed = await asyncio.to_thread(server_tls, self._settings, self._clock.wall_ms())
        except SiltstoneError as error:
            # Once for each mistake, not every time that it is still there.
            if stamps != self._stamps or str(error) != self._refusal:
                self._refused.inc()
                _log.error(
                    "changed TLS files are not used, the listener goes on with the old ones",
                    listener=self._settings.listener,
                    error=str(error),
                )
            self._stamps, self._refusal = stamps, str(error)
            return
        self._stamps, self._refusal, self._current = stamps, "", renewed
        self._used.inc()
        _log.info(
            "TLS files loaded", listener=self._settings.listener, subject=renewed.subject, expires_ms=renewed.expires_ms
        )
        self._warn(renewed)

    def _look(self) -> Stamps:
        return tuple(stamp(path) for path in self._paths)

    def _report(self) -> None:
        now_ms, list_expires_ms = self._clock.wall_ms(), self._current.revocations.expires_ms
        self._expires.set((self._current.expires_ms - now_ms) / 1000)
        if list_expires_ms is not None and self._told_of_list != list_expires_ms <= now_ms:
            self._told_of_list = list_expires_ms
            _log.warning(
                "a newer revocation list should be there, the old one goes on to be used",
                listener=self._settings.listener,
                crl_file=str(self._settings.crl_file),
            )

    def _warn(self, loaded: ServerTls) -> None:
        for warning in loaded.warnings:
            _log.warning("TLS files", listener=self._settings.listener, warning=warning)


async def keep_certificates(certificates: Sequence[Certificates], clock: Clock) -> None:
    """Check them for ever; cancel it to end."""
    while True:
        await clock.sleep_ms(CHECK_MS)
        for each in certificates:
            await each.check()
