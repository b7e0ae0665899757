"""The settings and ports of the children of `siltstone dev`."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace

from runtime.clock import SystemClock
from runtime.errors import BadInputError
from runtime.settings.addresses import AddressInUseError, format_address, parse_address
from runtime.settings.listeners import DEFAULT_LISTENER, listeners_of
from runtime.settings.table import Settings

PORT_POLL_MS = 50
METRICS_PORT_ABOVE = 1_000
"""The metrics port of an agent, above its own port: 9092 gives 10092. So a scraper finds it again after a restart."""
COMPACTOR_METRICS_PORT_ABOVE = 2_000
"""The metrics port of the first compactor, above the port of the first agent: 9092 gives 11092."""


def agent_settings(settings: Settings, agents: int, zones: Sequence[str] = ()) -> Sequence[Settings]:
    """The settings of each agent: ports count up from the given ones, port 0 stays 0, zones are assigned in turn."""
    taken: dict[str, str] = {}
    for name, address in _addresses(settings):
        host, first = parse_address(address, name=name)
        if first and first + agents - 1 > 65535:
            raise BadInputError(
                f"{name}: {agents} agents need the ports from {first} up, and ports end at 65535; nothing was started",
                remedy="choose a lower port",
            )
        for port in range(first, first + agents if first else first):
            other = taken.setdefault(format_address(host, port), name)
            if other != name:
                raise BadInputError(
                    f"{other} and {name}: {agents} agents need {agents} ports each, and both need {port}; nothing was"
                    " started",
                    remedy=f"choose ports that are {agents} apart at least",
                )
    return [
        replace(
            _with_ports_above(settings, number),
            agent_zone=zones[number % len(zones)] if zones else settings.agent_zone,
        )
        for number in range(agents)
    ]


def _addresses(settings: Settings) -> Sequence[tuple[str, str]]:
    """(setting, address) of every place where an agent listens for clients and scrapers."""
    listeners = listeners_of(settings)
    names = ["listen" if each.name == DEFAULT_LISTENER else each.setting_name("address") for each in listeners]
    return [
        *zip(names, (each.address for each in listeners), strict=True),
        ("metrics.listen", settings.metrics_listen or "127.0.0.1:0"),
    ]


def _with_ports_above(settings: Settings, count: int) -> Settings:
    default = next((each for each in listeners_of(settings) if each.name == DEFAULT_LISTENER), None)
    return replace(
        settings,
        listen=_above(default.address, count) if default is not None else "",
        listeners=tuple(
            replace(
                each,
                address="" if each.name == DEFAULT_LISTENER else _above(each.address, count),
                advertised=_above(each.advertised, count),
            )
            for each in settings.listeners
        ),
        metrics_listen=_above(settings.metrics_listen, count),
    )


def _above(address: str, count: int) -> str:
    """The address `count` ports higher; port 0, any free one, stays, and so does no address."""
    if not address:
        return ""
    host, port = parse_address(address)
    return format_address(host, port and port + count)


def child_settings(settings: Settings, agents: int, compactors: int, zones: Sequence[str] = ()) -> Sequence[Settings]:
    """The settings of the agents, then of the compactors. The metrics ports of compactors follow those of the agents.

    Compactors listen on no other port; settings that they do not use stay as they are.
    """
    each = agent_settings(settings, agents, zones)
    host, port = parse_address(settings.metrics_listen or "127.0.0.1:0", name="metrics.listen")
    if port and port + agents + compactors - 1 > 65535:
        raise BadInputError(
            f"metrics.listen: {agents + compactors} agents and compactors need the ports from {port} up, and ports end"
            " at 65535; nothing was started",
            remedy="choose a lower port",
        )
    more = [
        replace(
            settings,
            listen="127.0.0.1:0",
            advertised_host="",
            listeners=(),
            metrics_listen=settings.metrics_listen and format_address(host, port and port + agents + number),
        )
        for number in range(compactors)
    ]
    return [*each, *more]


def with_metrics_ports(
    each: Sequence[Settings], agents: int, *, is_free: Callable[[str, int], bool]
) -> Sequence[Settings]:
    """The settings of the children, with a metrics port that stays the same from run to run where `metrics.listen`
    names none and `listen` has a fixed port. A port that is taken stays 0, any free one."""
    first = parse_address(listeners_of(each[0])[0].address)[1]
    if first == 0:
        return each
    found: list[Settings] = []
    for number, settings in enumerate(each):
        host, port = parse_address(settings.metrics_listen or "127.0.0.1:1", name="metrics.listen")
        is_agent = number < agents
        wanted = first + (METRICS_PORT_ABOVE + number if is_agent else COMPACTOR_METRICS_PORT_ABOVE + number - agents)
        if port == 0 and wanted <= 65535 and is_free(host, wanted):
            settings = replace(settings, metrics_listen=format_address(host, wanted))
        found.append(settings)
    return found


async def await_ports(each: Sequence[Settings], stopping: asyncio.Event, *, wait_ms: float) -> None:
    """Check that all ports are free, before anything is started. An agent would notice only at the end of its start.

    If the predecessor was killed, its agents may still be draining, with its Postgres: wait up to `wait_ms` for them.
    """
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + wait_ms
    while not stopping.is_set():
        try:
            _check_ports_free(each)
        except AddressInUseError:
            if clock.monotonic_ms() >= deadline_ms:
                raise
        else:
            return
        await clock.sleep_ms(PORT_POLL_MS)


def _check_ports_free(each: Sequence[Settings]) -> None:
    for settings in each:
        for name, address in _addresses(settings):
            host, port = parse_address(address, name=name)
            if port == 0:
                continue
            try:
                _try_port(host, port)
            except OSError as error:
                raise AddressInUseError(name, address, error) from error


def is_free(host: str, port: int) -> bool:
    try:
        _try_port(host, port)
    except OSError:
        return False
    return True


def _try_port(host: str, port: int) -> None:
    """Raises OSError when nobody could listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    socket.create_server((host, port), family=family).close()
