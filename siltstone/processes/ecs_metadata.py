"""Address, name and zone of a process on Amazon ECS, for the value `ecs` of `advertised.host` and `agent.zone`, and for
the hosts `ecs` and `ecs-name` of `listener.NAME.advertised`.

ECS gives each container the address of its task metadata endpoint, version 4, in `ECS_CONTAINER_METADATA_URI_V4`. That
address answers with the container (`Networks`), and `/task` below it with the task (`AvailabilityZone`). In the network
mode `awsvpc` a task has its own address that clients can reach. In any other mode it has no address to advertise, and
the start is refused. The endpoint may be slow just after the start of a task, so it is tried for 10 s. Nothing is
written.

Source: Amazon ECS Developer Guide, "Task metadata endpoint version 4".
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import aiohttp

from runtime.clock import Clock
from runtime.errors import BadInputError, UnavailableError
from runtime.settings.table import Settings

ECS = "ecs"
ECS_NAME = "ecs-name"
VARIABLE = "ECS_CONTAINER_METADATA_URI_V4"
REQUEST_TIMEOUT_S = 2.0
PATIENCE_MS = 10_000
PAUSE_MS = 250
_NAME = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+")
_NOT_ECS = "set advertised.host and agent.zone to the address and the zone themselves"


class EcsMetadataError(BadInputError):
    """ECS does not give the value that a setting needs. Nothing was started."""


class EcsUnavailableError(UnavailableError):
    """The endpoint does not answer. Nothing was started."""


async def settings_on_ecs(settings: Settings, environ: Mapping[str, str], clock: Clock) -> Settings:
    """Settings with the values `ecs` and `ecs-name` replaced by the answers of ECS. Without them ECS is not asked.

    Raises EcsMetadataError, EcsUnavailableError.
    """
    told = {each.name for each in settings.listeners if each.advertised.startswith((f"{ECS}:", f"{ECS_NAME}:"))}
    wanted = {name for name in ("advertised_host", "agent_zone") if getattr(settings, name) == ECS}
    if not wanted and not told:
        return settings
    names = " and ".join(
        sorted([*(name.replace("_", ".") for name in wanted), *(f"listener.{name}.advertised" for name in told)])
    )
    base = environ.get(VARIABLE, "").rstrip("/")
    if not base:
        raise EcsMetadataError(
            f"{names} is to come from ECS, but {VARIABLE} is not set: this is not a task of ECS; nothing was started",
            remedy=_NOT_ECS,
        )
    found: dict[str, Any] = {}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)) as session:
        if told or "advertised_host" in wanted:
            container = await _asked(session, base, clock)
            found["listeners"] = tuple(
                replace(each, advertised=_advertised(each.advertised, container)) if each.name in told else each
                for each in settings.listeners
            )
            if "advertised_host" in wanted:
                found["advertised_host"] = address_of(container)
        if "agent_zone" in wanted:
            found["agent_zone"] = zone_of(await _asked(session, f"{base}/task", clock))
    return replace(settings, **found)


def address_of(container: object) -> str:
    """The container's own address. Raises EcsMetadataError."""
    networks = _list(_mapping(container).get("Networks"))
    modes = [str(_mapping(each).get("NetworkMode")) for each in networks]
    for network in networks:
        if _mapping(network).get("NetworkMode") != "awsvpc":
            continue
        for address in _list(_mapping(network).get("IPv4Addresses")):
            if isinstance(address, str) and _is_address(address):
                return address
    raise EcsMetadataError(
        f"ECS gives this task no address of its own (its networks: {', '.join(modes) or 'none'}); nothing was started",
        remedy="set the network mode awsvpc in the task definition, or set advertised.host to an address",
    )


def name_of(container: object) -> str:
    """The container's private name in DNS, which a certificate can cover by a wildcard. Raises EcsMetadataError."""
    for network in _list(_mapping(container).get("Networks")):
        name = _mapping(network).get("PrivateDNSName")
        if _mapping(network).get("NetworkMode") == "awsvpc" and isinstance(name, str) and _NAME.fullmatch(name):
            return name
    raise EcsMetadataError(
        "ECS gives this task no name of its own; nothing was started",
        remedy="set the network mode awsvpc in the task definition and enable DNS host names in the VPC, or set"
        " listener.NAME.advertised to a name",
    )


def _advertised(text: str, container: object) -> str:
    host, _, port = text.rpartition(":")
    return f"{name_of(container) if host == ECS_NAME else address_of(container)}:{port}"


def zone_of(task: object) -> str:
    """The availability zone. Raises EcsMetadataError."""
    zone = _mapping(task).get("AvailabilityZone")
    if not isinstance(zone, str) or not zone:
        raise EcsMetadataError(
            "ECS does not name the availability zone of this task; nothing was started",
            remedy="use platform version 1.4.0 or later on Fargate, or set agent.zone",
        )
    return zone


async def _asked(session: aiohttp.ClientSession, url: str, clock: Clock) -> object:
    """The JSON at `url`. Raises EcsUnavailableError, EcsMetadataError for what is not JSON."""
    deadline_ms = clock.monotonic_ms() + PATIENCE_MS
    while True:
        why = ""
        try:
            async with session.get(url) as answer:
                text = await answer.text()
                if answer.status == 200:
                    return _json(url, text)
                why = f"status {answer.status}"
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            why = f"{type(error).__name__}: {error}".rstrip(": ")
        if clock.monotonic_ms() >= deadline_ms:
            raise EcsUnavailableError(
                f"the ECS task metadata endpoint {url} does not answer: {why}; nothing was started",
                remedy=f"try again, or {_NOT_ECS}",
            )
        await clock.sleep_ms(PAUSE_MS)


def _json(url: str, text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise EcsMetadataError(
            f"the answer of the ECS task metadata endpoint {url} is not JSON; nothing was started", remedy=_NOT_ECS
        ) from error


def _is_address(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def _mapping(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []
