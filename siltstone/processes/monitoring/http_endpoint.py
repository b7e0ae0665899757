"""The HTTP endpoint of a process, for monitoring: `/metrics`, `/healthz` (alive), `/readyz` (ready for work),
`/startupz` (was ready once), and an agent's `/producers` (the clients that wait for it).

A scheduler that replaces processes asks `/startupz`: a process that waits for the schema must not take the place of one
that works, and a process that lost Postgres later must not be killed for it.

It listens only on loopback unless clients show certificates or `insecure` allows more, because everybody who can reach
it sees the activity of the cluster.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from aiohttp import web

from runtime.metrics import CONTENT_TYPE, Metrics
from runtime.settings.addresses import AddressInUseError, format_address, is_loopback, parse_address
from runtime.settings.values import SettingsError
from siltstone.processes.monitoring.metrics_tls import MetricsTls

PRODUCERS_PATH = "/producers"


class HttpEndpoint:
    """An HTTP server that is started once and stopped once.

    Args:
        listen: HOST:PORT; port 0: any free port.
        not_ready: the reasons why no work should be sent here; empty: ready. Called for every `/readyz`.
        producers: the JSON of `/producers`; without it there is no such page.
        tls: None: plain HTTP.
    """

    def __init__(
        self,
        *,
        listen: str,
        metrics: Metrics,
        not_ready: Callable[[], Sequence[str]],
        producers: Callable[[], Mapping[str, object]] | None = None,
        insecure: bool = False,
        tls: MetricsTls | None = None,
    ) -> None:
        self._host, self._port = parse_address(listen, name="metrics.listen")
        if not (is_loopback(self._host) or insecure or (tls is not None and tls.asks_clients)):
            raise SettingsError(
                f"metrics.listen {listen} can be reached from other machines, and clients are not authenticated",
                remedy="listen on 127.0.0.1, or set metrics.tls.cert.file, metrics.tls.key.file and"
                " metrics.tls.ca.file, or metrics.insecure to true on a network you trust",
            )
        self._tls = tls
        self._metrics = metrics
        self._not_ready = not_ready
        self._producers = producers
        self._has_started = False
        self._runner: web.AppRunner | None = None
        self.address = ""
        """HOST:PORT of the server, once it is started."""

    @property
    def metrics_url(self) -> str:
        return f"{'https' if self._tls is not None else 'http'}://{self.address}/metrics"

    async def start(self) -> None:
        """Raises AddressInUseError."""
        app = web.Application(middlewares=[] if self._tls is None else [self._tls.only_for_known])
        app.router.add_get("/metrics", self._serve_metrics)
        app.router.add_get("/healthz", self._serve_health)
        app.router.add_get("/readyz", self._serve_ready)
        app.router.add_get("/startupz", self._serve_startup)
        if self._producers is not None:
            app.router.add_get(PRODUCERS_PATH, self._serve_producers)
        # One second: a scraper that holds a connection open must not delay the end of the process.
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            context = self._tls.context if self._tls is not None else None
            await web.TCPSite(runner, self._host, self._port, ssl_context=context).start()
        except OSError as error:
            await runner.cleanup()
            raise AddressInUseError("metrics.listen", format_address(self._host, self._port), error) from error
        self._runner = runner
        self.address = format_address(self._host, int(runner.addresses[0][1]))
        if self._tls is not None:
            self._tls.start()

    async def stop(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        if self._tls is not None:
            await self._tls.close()

    async def _serve_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def _serve_health(self, _: web.Request) -> web.Response:
        return _answer({"alive": True})

    async def _serve_ready(self, _: web.Request) -> web.Response:
        reasons = list(self._not_ready())
        self._has_started = self._has_started or not reasons
        return _answer({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)

    async def _serve_startup(self, _: web.Request) -> web.Response:
        reasons = [] if self._has_started else list(self._not_ready())
        self._has_started = not reasons
        return _answer({"started": not reasons, "reasons": reasons}, status=503 if reasons else 200)

    async def _serve_producers(self, _: web.Request) -> web.Response:
        assert self._producers is not None
        return _answer(self._producers())


def _answer(body: Mapping[str, object], *, status: int = 200) -> web.Response:
    """JSON with a newline at its end, so that the prompt of a shell begins on its own line."""
    return web.json_response(text=f"{json.dumps(body)}\n", status=status)
