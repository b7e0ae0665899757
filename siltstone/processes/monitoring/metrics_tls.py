"""TLS of `metrics.listen`: certificates that are renewed while the process runs, and who may see what."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from runtime.runtime import Runtime
from runtime.settings.table import Settings
from runtime.tls.certificates import Certificates, keep_certificates
from runtime.tls.files import ClientAuth, ServerTlsSettings

LISTENER = "metrics.listen"
"""In metrics and log lines. No listener of clients can have this name."""
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/startupz"})
"""For everybody: whoever starts and stops processes has no certificate."""


class MetricsTls:
    def __init__(self, settings: ServerTlsSettings, runtime: Runtime) -> None:
        """Reads the files. Raises TlsFileError."""
        self._clock = runtime.clock
        self._certificates = Certificates(settings, runtime.clock, runtime.metrics)
        self.asks_clients = settings.client_auth is not ClientAuth.NONE
        """Whether a certificate is needed for all but OPEN_PATHS."""
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        """The server keeps this one. Each new connection gets the context of the files as they are then."""
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.verify_mode = self._certificates.current().context.verify_mode
        self.context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
        self.context.num_tickets = 0
        # Called for every client, also one that names no host.
        self.context.sni_callback = self._give_current
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._keep(keep_certificates([self._certificates], self._clock))

    def reload(self) -> None:
        """Read the files again now, changed or not."""
        self._keep(self._certificates.check(anyway=True))

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def only_for_known(self) -> Middleware:
        @web.middleware
        async def only_for_known(request: web.Request, handler: Handler) -> web.StreamResponse:
            if self.asks_clients and request.path not in OPEN_PATHS:
                transport = request.transport
                tls = transport.get_extra_info("ssl_object") if transport is not None else None
                if tls is None or not tls.getpeercert(binary_form=True):
                    raise web.HTTPForbidden(text="show a certificate of an authority in metrics.tls.ca.file\n")
            return await handler(request)

        return only_for_known

    def _give_current(self, tls: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        tls.context = self._certificates.current().context

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="metrics certificates")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def metrics_tls_of(settings: Settings, runtime: Runtime) -> MetricsTls | None:
    """None if it speaks plain HTTP. Raises TlsFileError."""
    if not (settings.metrics_listen and settings.metrics_tls_cert_file):
        return None
    ca = settings.metrics_tls_ca_file
    return MetricsTls(
        ServerTlsSettings(
            listener=LISTENER,
            prefix="metrics.tls",
            cert_file=Path(settings.metrics_tls_cert_file),
            key_file=Path(settings.metrics_tls_key_file),
            ca_file=Path(ca) if ca else None,
            client_auth=ClientAuth.REQUESTED if ca else ClientAuth.NONE,
        ),
        runtime,
    )
