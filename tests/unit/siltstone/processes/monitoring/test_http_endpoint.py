"""Metrics, health and readiness over HTTP, on loopback."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from runtime.metrics import Metrics
from runtime.settings.addresses import AddressInUseError
from runtime.settings.values import SettingsError
from siltstone.processes.monitoring.http_endpoint import HttpEndpoint


class Running:
    def __init__(self) -> None:
        self.metrics = Metrics()
        self.reasons: list[str] = []
        self.endpoint = HttpEndpoint(listen="127.0.0.1:0", metrics=self.metrics, not_ready=lambda: self.reasons)

    async def get(self, path: str) -> tuple[int, str, str]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{self.endpoint.address}{path}") as answer,
        ):
            return answer.status, await answer.text(), answer.headers["Content-Type"]


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    running = Running()
    await running.endpoint.start()
    yield running
    await running.endpoint.stop()


async def test_metrics_are_served_in_the_prometheus_text_format(running: Running) -> None:
    running.metrics.tail_gaps.set(4)
    status, text, content_type = await running.get("/metrics")
    assert (status, content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert "siltstone_tail_gaps 4.0\n" in text
    assert running.endpoint.metrics_url == f"http://{running.endpoint.address}/metrics"


async def test_readiness_follows_the_reasons_and_health_does_not(running: Running) -> None:
    assert (await running.get("/readyz"))[:2] == (200, '{"ready": true, "reasons": []}\n')
    running.reasons = ["stopping"]
    status, text, _ = await running.get("/readyz")
    assert (status, json.loads(text)) == (503, {"ready": False, "reasons": ["stopping"]})
    assert (await running.get("/healthz"))[:2] == (200, '{"alive": true}\n')


async def test_a_process_that_was_ready_once_has_started(running: Running) -> None:
    running.reasons = ["waiting for the schema"]
    status, text, _ = await running.get("/startupz")
    assert (status, json.loads(text)) == (503, {"started": False, "reasons": ["waiting for the schema"]})
    running.reasons = []
    assert (await running.get("/startupz"))[:2] == (200, '{"started": true, "reasons": []}\n')
    running.reasons = ["Postgres does not answer"]
    assert (await running.get("/startupz"))[0] == 200


async def test_a_taken_port_is_an_error_that_names_it(running: Running) -> None:
    address = running.endpoint.address
    with pytest.raises(AddressInUseError, match=rf"metrics\.listen: the address {address} is taken"):
        await HttpEndpoint(listen=address, metrics=Metrics(), not_ready=list).start()


def test_an_address_beyond_loopback_is_refused_without_insecure() -> None:
    with pytest.raises(SettingsError, match="can be reached from other machines"):
        HttpEndpoint(listen="0.0.0.0:0", metrics=Metrics(), not_ready=list)
    HttpEndpoint(listen="0.0.0.0:0", metrics=Metrics(), not_ready=list, insecure=True)
