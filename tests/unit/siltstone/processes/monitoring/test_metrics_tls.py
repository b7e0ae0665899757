"""Metrics, health and readiness over HTTPS: who sees what, and certificates renewed while it serves."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner, Result

from runtime.metrics import Metrics
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from siltstone.cli import main
from siltstone.health import TLS_VARIABLE, VARIABLE, what_is_wrong
from siltstone.processes.monitoring.http_endpoint import HttpEndpoint
from siltstone.processes.monitoring.metrics_tls import metrics_tls_of
from tests.fixtures.certificates import Authority, Certificates, IdentityFiles
from tests.fixtures.metric_values import metric_value
from tests.fixtures.waiting import until


@asynccontextmanager
async def serving(
    server: IdentityFiles, ca: Path | None, metrics: Metrics | None = None
) -> AsyncIterator[HttpEndpoint]:
    settings = Settings(
        metrics_listen="127.0.0.1:0",
        metrics_tls_cert_file=str(server.cert),
        metrics_tls_key_file=str(server.key),
        metrics_tls_ca_file=str(ca or ""),
    )
    tls = metrics_tls_of(settings, Runtime(metrics=metrics or Metrics()))
    endpoint = HttpEndpoint(listen="127.0.0.1:0", metrics=metrics or Metrics(), not_ready=list, producers=dict, tls=tls)
    await endpoint.start()
    yield endpoint
    await endpoint.stop()


async def status(endpoint: HttpEndpoint, path: str, context: ssl.SSLContext) -> int:
    url = endpoint.metrics_url.replace("/metrics", path)
    async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as answer:
        await answer.read()
        return answer.status


async def test_without_authorities_of_clients_everybody_sees_everything_encrypted(certificates: Certificates) -> None:
    async with serving(certificates.server, None) as endpoint:
        assert endpoint.metrics_url == f"https://{endpoint.address}/metrics"
        anybody = certificates.client_context()
        assert [await status(endpoint, path, anybody) for path in ("/metrics", "/healthz")] == [200, 200]
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await status(endpoint, "/metrics", certificates.client_context(ca=certificates.other_ca))
        with pytest.raises(aiohttp.ClientError):
            async with aiohttp.ClientSession() as session:
                await session.get(f"http://{endpoint.address}/metrics")


async def test_with_them_only_health_is_for_everybody(certificates: Certificates) -> None:
    async with serving(certificates.server, certificates.ca) as endpoint:
        anybody, known = certificates.client_context(), certificates.client_context(certificates.client)
        for path in ("/metrics", "/producers"):
            assert (await status(endpoint, path, anybody), await status(endpoint, path, known)) == (403, 200)
        for path in ("/healthz", "/readyz"):
            assert (await status(endpoint, path, anybody), await status(endpoint, path, known)) == (200, 200)
        for bad in (certificates.client_of_other, certificates.client_expired):
            with pytest.raises((aiohttp.ClientError, OSError)):
                await status(endpoint, "/metrics", certificates.client_context(bad))


async def test_the_command_producers_comes_in_by_the_files_of_a_client_config(
    certificates: Certificates, tmp_path: Path
) -> None:
    async def ask(*lines: str) -> Result:
        (tmp_path / "client.properties").write_text("\n".join(lines))
        words = ("producers", "--agent", endpoint.metrics_url, "--seconds", "0", "--json")
        config = ("--client-config", str(tmp_path / "client.properties"))
        return await asyncio.to_thread(CliRunner().invoke, main, [*words, *config])

    ca = f"ssl.ca.location={certificates.ca}"
    files = (f"ssl.certificate.location={certificates.client.cert}", f"ssl.key.location={certificates.client.key}")
    async with serving(certificates.server, certificates.ca) as endpoint:
        good = await ask("security.protocol=SSL", ca, *files)
        assert good.exit_code == 0, good.output
        stranger = await ask("security.protocol=SSL", ca)
        assert stranger.exit_code == 1 and "does not tell which producers wait: Forbidden" in stranger.output
        untrusted = await ask("security.protocol=SSL", f"ssl.ca.location={certificates.other_ca}", *files)
        assert untrusted.exit_code == 1 and "is not trusted" in untrusted.output


async def test_the_health_check_of_a_container_needs_no_certificate(certificates: Certificates) -> None:
    async with serving(certificates.server_elsewhere, certificates.ca) as endpoint:
        environ = {VARIABLE: endpoint.address, TLS_VARIABLE: str(certificates.server.cert)}
        for path in ("/healthz", "/readyz"):
            assert await asyncio.to_thread(what_is_wrong, environ, path) == ""
        assert await asyncio.to_thread(what_is_wrong, {VARIABLE: endpoint.address}, "/healthz") != ""


async def test_new_files_are_used_by_new_connections_authorities_included(tmp_path: Path) -> None:
    old, new = Authority("old"), Authority("new")
    server = old.server().write(tmp_path / "server")
    ca = old.write(tmp_path / "ca.pem")
    metrics = Metrics()

    def client(authority: Authority) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=authority.pem.decode())
        files = authority.client("CN=prometheus").write(tmp_path / "client")
        context.load_cert_chain(files.cert, files.key)
        return context

    async with serving(server, ca, metrics) as endpoint:
        assert await status(endpoint, "/metrics", client(old)) == 200
        new.server().write(tmp_path / "server")
        new.write(ca)
        assert endpoint._tls is not None
        endpoint._tls.reload()
        labels = {"listener": "metrics.listen", "outcome": "used"}
        await until(lambda: metric_value(metrics, "tls_reloads_total", labels) == 1)
        assert await status(endpoint, "/metrics", client(new)) == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await status(endpoint, "/metrics", client(old))
        stolen = ssl.create_default_context(cadata=new.pem.decode())
        files = old.client("CN=prometheus").write(tmp_path / "stolen")
        stolen.load_cert_chain(files.cert, files.key)
        with pytest.raises((aiohttp.ClientError, OSError)):
            await status(endpoint, "/metrics", stolen)


async def test_an_address_beyond_loopback_needs_certificates_of_clients(certificates: Certificates) -> None:
    async with serving(certificates.server, certificates.ca) as endpoint:
        assert endpoint._tls is not None and endpoint._tls.asks_clients
        HttpEndpoint(listen="0.0.0.0:0", metrics=Metrics(), not_ready=list, tls=endpoint._tls)
