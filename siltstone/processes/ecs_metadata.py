"""Where a process runs, as Amazon ECS tells it: what the value `ecs` of `advertised.host` and `agent.zone` means.

ECS gives each container the address of its task metadata endpoint, version 4, in `ECS_CONTAINER_METADATA_URI_V4`. That
address answers with the container (`Networks`), and `/task` below it with the task (`AvailabilityZone`). In the network
mode `awsvpc` a task has an address of its own that clients reach; in any other it has none to advertise, and the start
is refused. The endpoint may be slow just after a task began, so it is asked for 10 s. Nothing is written.

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
    """ECS does not say what a setting asks for. Nothing was started."""


class EcsUnavailableError(UnavailableError):
    """The endpoint does not answer. Nothing was started."""


async def settings_on_ecs(settings: Settings, environ: Mapping[str, str], clock: Clock) -> Settings:
    """Settings with `ecs` replaced by what ECS says; the same settings, and nothing asked, where none has that value.

    Raises EcsMetadataError, EcsUnavailableError.
    """
    wanted = {name for name in ("advertised_host", "agent_zone") if getattr(settings, name) == ECS}
    if not wanted:
        return settings
    names = " and ".join(sorted(name.replace("_", ".") for name in wanted))
    base = environ.get(VARIABLE, "").rstrip("/")
    if not base:
        raise EcsMetadataError(
            f"{names} set to `ecs`, and {VARIABLE} is not set: this is no task of ECS", remedy=_NOT_ECS
        )
    found: dict[str, Any] = {}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)) as session:
        if "advertised_host" in wanted:
            found["advertised_host"] = address_of(await _asked(session, base, clock))
        if "agent_zone" in wanted:
            found["agent_zone"] = zone_of(await _asked(session, f"{base}/task", clock))
    return replace(settings, **found)


def address_of(container: object) -> str:
    """The address of its own that a container has. Raises EcsMetadataError."""
    networks = _list(_mapping(container).get("Networks"))
    modes = [str(_mapping(each).get("NetworkMode")) for each in networks]
    for network in networks:
        if _mapping(network).get("NetworkMode") != "awsvpc":
            continue
        for address in _list(_mapping(network).get("IPv4Addresses")):
            if isinstance(address, str) and _is_address(address):
                return address
    raise EcsMetadataError(
        f"ECS names no address of this task alone (its networks: {', '.join(modes) or 'none'})",
        remedy="give the task definition the network mode awsvpc, or set advertised.host to an address",
    )


def zone_of(task: object) -> str:
    """The availability zone. Raises EcsMetadataError."""
    zone = _mapping(task).get("AvailabilityZone")
    if not isinstance(zone, str) or not zone:
        raise EcsMetadataError(
            "ECS does not name the availability zone of this task",
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
                f"the ECS task metadata endpoint {url} does not answer: {why}", remedy=f"try again, or {_NOT_ECS}"
            )
        await clock.sleep_ms(PAUSE_MS)


def _json(url: str, text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise EcsMetadataError(f"the ECS task metadata endpoint {url} answers no JSON", remedy=_NOT_ECS) from error


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
