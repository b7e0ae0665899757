"""The value `ecs` of two settings, against a server that answers like the task metadata endpoint (version 4)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from runtime.clock import ManualClock
from runtime.settings.listeners import ListenerSettings
from runtime.settings.table import Settings
from siltstone.processes.ecs_metadata import VARIABLE, EcsMetadataError, EcsUnavailableError, settings_on_ecs
from tests.fixtures.s3 import free_port

# Shortened from the examples of version 4 on Fargate in the Amazon ECS Developer Guide.
CONTAINER: dict[str, Any] = {
    "DockerId": "ea32192c8553fbff06c9340478a2ff089b2bb5646fb718b4ee206641c9086d66",
    "Name": "agent",
    "DesiredStatus": "RUNNING",
    "KnownStatus": "RUNNING",
    "Limits": {"CPU": 1024, "Memory": 4096},
    "Type": "NORMAL",
    "Networks": [
        {
            "NetworkMode": "awsvpc",
            "IPv4Addresses": ["10.0.2.100"],
            "AttachmentIndex": 0,
            "MACAddress": "0e:9e:32:c7:48:85",
            "IPv4SubnetCIDRBlock": "10.0.2.0/24",
            "PrivateDNSName": "ip-10-0-2-100.us-west-2.compute.internal",
            "SubnetGatewayIpv4Address": "10.0.2.1/24",
        }
    ],
}
TASK: dict[str, Any] = {
    "Cluster": "arn:aws:ecs:us-west-2:111122223333:cluster/default",
    "TaskARN": "arn:aws:ecs:us-west-2:111122223333:task/default/158d1c8083dd49d6b527399fd6414f5c",
    "Family": "siltstone-agent",
    "Revision": "5",
    "DesiredStatus": "RUNNING",
    "KnownStatus": "RUNNING",
    "Limits": {"CPU": 1, "Memory": 4096},
    "AvailabilityZone": "us-west-2d",
    "LaunchType": "FARGATE",
    "Containers": [CONTAINER],
}
ON_ECS = Settings(listen="0.0.0.0:9092", insecure=True, advertised_host="ecs", agent_zone="ecs")


class Endpoint:
    """`http://127.0.0.1:PORT/v4/ID`."""

    def __init__(self) -> None:
        self.container: object = CONTAINER
        self.task: object = TASK
        self.failures = 0
        self.asked: list[str] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if self.failures:
            self.failures -= 1
            return web.Response(status=500, text="not yet")
        body = self.task if request.path.endswith("/task") else self.container
        # ECS answers with application/json, but the code must not depend on it
        return web.Response(text=body if isinstance(body, str) else json.dumps(body), content_type="text/plain")


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    made = Endpoint()
    app = web.Application()
    app.router.add_get("/v4/id-1", made.answer)
    app.router.add_get("/v4/id-1/task", made.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v4/id-1"
    yield made
    await runner.cleanup()


async def found(endpoint: Endpoint, settings: Settings = ON_ECS, clock: ManualClock | None = None) -> Settings:
    return await settings_on_ecs(settings, {VARIABLE: endpoint.url}, clock or ManualClock())


async def test_address_and_zone_are_those_of_the_task(endpoint: Endpoint) -> None:
    settings = await found(endpoint)
    assert (settings.advertised_host, settings.agent_zone) == ("10.0.2.100", "us-west-2d")
    assert settings.listen == ON_ECS.listen


async def test_a_listener_may_be_advertised_at_the_address_of_the_task(endpoint: Endpoint) -> None:
    told = ListenerSettings(name="a", address="127.0.0.1:9093", advertised="ecs:9093")
    other = ListenerSettings(name="b", address="127.0.0.1:9094", advertised="ecs.example:9094")
    settings = await found(endpoint, Settings(listeners=(told, other)))
    assert [each.advertised for each in settings.listeners] == ["10.0.2.100:9093", "ecs.example:9094"]
    assert endpoint.asked == ["/v4/id-1"]
    with pytest.raises(EcsMetadataError, match=r"listener\.a\.advertised is to come from ECS"):
        await settings_on_ecs(Settings(listeners=(told,)), {}, ManualClock())


async def test_a_listener_is_advertised_by_the_address_or_the_name_of_the_task(endpoint: Endpoint) -> None:
    listeners = tuple(
        ListenerSettings(name=name, address="127.0.0.1:0", advertised=advertised)
        for name, advertised in (("a", "ecs:9092"), ("b", "ecs-name:9093"), ("c", "ecs-other:1"))
    )
    settings = await found(endpoint, Settings(listeners=listeners))
    advertised = [each.advertised for each in settings.listeners]
    assert advertised == ["10.0.2.100:9092", "ip-10-0-2-100.us-west-2.compute.internal:9093", "ecs-other:1"]


@pytest.mark.parametrize("name", [None, "", "evil", "10.0.2.100:1", "a.b\r\nX: y"])
async def test_a_task_without_a_name_of_its_own_is_refused(endpoint: Endpoint, name: str | None) -> None:
    endpoint.container = {"Networks": [{"NetworkMode": "awsvpc", "PrivateDNSName": name}]}
    listener = ListenerSettings(name="a", address="127.0.0.1:9092", advertised="ecs-name:9092")
    with pytest.raises(EcsMetadataError, match="no name of its own"):
        await found(endpoint, Settings(listeners=(listener,)))


async def test_only_what_is_wanted_is_asked(endpoint: Endpoint) -> None:
    settings = await found(endpoint, Settings(agent_zone="ecs"))
    assert (settings.advertised_host, settings.agent_zone) == ("", "us-west-2d")
    assert endpoint.asked == ["/v4/id-1/task"]
    plain = Settings(agent_zone="a")
    assert await settings_on_ecs(plain, {VARIABLE: "http://127.0.0.1:1"}, ManualClock()) is plain


async def test_outside_ecs_the_variable_that_is_missing_is_named() -> None:
    with pytest.raises(EcsMetadataError, match=f"advertised.host and agent.zone .* {VARIABLE} is not set") as refused:
        await settings_on_ecs(ON_ECS, {}, ManualClock())
    assert "set advertised.host and agent.zone" in refused.value.remedy


async def test_a_task_that_has_just_begun_is_asked_again(endpoint: Endpoint) -> None:
    endpoint.failures = 3
    assert (await found(endpoint)).advertised_host == "10.0.2.100"


async def test_an_endpoint_that_never_answers_ends_the_start_after_ten_seconds(endpoint: Endpoint) -> None:
    clock = ManualClock()
    endpoint.failures = 1_000
    with pytest.raises(EcsUnavailableError, match="does not answer: status 500"):
        await found(endpoint, clock=clock)
    assert 10_000 <= clock.monotonic_ms() < 11_000
    with pytest.raises(EcsUnavailableError, match="does not answer: Client"):
        await settings_on_ecs(ON_ECS, {VARIABLE: f"http://127.0.0.1:{free_port()}/v4"}, ManualClock())


@pytest.mark.parametrize(
    ("container", "said"),
    [
        ({**CONTAINER, "Networks": [{"NetworkMode": "bridge", "IPv4Addresses": ["172.17.0.2"]}]}, "networks: bridge"),
        ({**CONTAINER, "Networks": [{"NetworkMode": "host"}]}, "networks: host"),
        ({**CONTAINER, "Networks": [{"NetworkMode": "awsvpc", "IPv4Addresses": []}]}, "networks: awsvpc"),
        ({**CONTAINER, "Networks": [{"NetworkMode": "awsvpc", "IPv4Addresses": ["evil:9092"]}]}, "networks: awsvpc"),
        ({"Networks": None}, "networks: none"),
        ([], "networks: none"),
        ("<html>", "is not JSON"),
    ],
)
async def test_a_container_without_an_address_of_its_own_is_refused(
    endpoint: Endpoint, container: object, said: str
) -> None:
    endpoint.container = container
    with pytest.raises(EcsMetadataError, match=said):
        await found(endpoint)


async def test_a_task_that_does_not_know_its_zone_is_refused(endpoint: Endpoint) -> None:
    endpoint.task = {name: value for name, value in TASK.items() if name != "AvailabilityZone"}
    with pytest.raises(EcsMetadataError, match="does not name the availability zone"):
        await found(endpoint)
