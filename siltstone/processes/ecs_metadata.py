"""Address and zone of a process on Amazon ECS, for the value `ecs` of `advertised.host` and `agent.zone`.

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
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import aiohttp

from runtime.clock import Clock
from runtime.errors import BadInputError, UnavailableError
from runtime.settings.table import Settings

ECS = "ecs"
VARIABLE = "ECS_CONTAINER_METADATA_URI_V4"
REQUEST_TIMEOUT_S = 2.0
PATIENCE_MS = 10_000
PAUSE_MS = 250
_NOT_ECS = "set advertised.host and agent.zone to the address and the zone themselves"


class EcsMetadataError(BadInputError):
    """ECS does not give the value that a setting needs. Nothing was started."""


class EcsUnavailableError(UnavailableError):
    """The endpoint does not answer. Nothing was started."""


async def settings_on_ecs(settings: Settings, environ: Mapping[str, str], clock: Clock) -> Settings:
    """Settings with the value `ecs` replaced by the answer of ECS. Without that value ECS is not asked.

    Raises EcsMetadataError, EcsUnavailableError.
    """
    told = {each.name for each in settings.listeners if each.advertised.startswith(f"{ECS}:")}
    wanted = {name for name in ("advertised_host", "agent_zone") if getattr(settings, name) == ECS}
    if not wanted and not told:
        return settings
    names = " and ".join(
        sorted([*(name.replace("_", ".") for name in wanted), *(f"listener.{name}.advertised" for name in told)])
    )
    base = environ.get(VARIABLE, "").rstrip("/")
    if not base:
        raise EcsMetadataError(
            f"{names} is set to `ecs`, but {VARIABLE} is not set: this is not a task of ECS; nothing was started",
            remedy=_NOT_ECS,
        )
    found: dict[str, Any] = {}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)) as session:
        if told or "advertised_host" in wanted:
            address = address_of(await _asked(session, base, clock))
            found["listeners"] = tuple(
                replace(each, advertised=address + each.advertised.removeprefix(ECS)) if each.name in told else each
                for each in settings.listeners
            )
            if "advertised_host" in wanted:
                found["advertised_host"] = address
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
