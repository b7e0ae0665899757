"""The sockets of an agent's listeners, and the addresses that clients are told."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from agents.listeners.listener_tls import TlsOfListeners
from agents.listeners.listening import Listening
from agents.server import AddressError
from metadata.contract.leases import AgentAddress, Endpoint
from runtime.settings.addresses import parse_address
from runtime.settings.listeners import ListenerSettings, endpoint_of, listeners_of
from runtime.settings.table import Settings

Bind = Callable[[str], socket.socket]


def bind_named(bind: Bind, name: str, address: str) -> socket.socket:
    """Raises AddressError, which names the setting."""
    try:
        return bind(address)
    except AddressError as error:
        raise AddressError(f"{name}: {error.message}", remedy=f"choose another port for {name} (0 = any)") from error


def bind_listeners(
    settings: Settings, bind: Bind, stack: ExitStack, tls: TlsOfListeners
) -> Sequence[tuple[ListenerSettings, Listening]]:
    """The first one first. `stack` closes them. Raises AddressError."""
    found: list[tuple[ListenerSettings, Listening]] = []
    for listener in listeners_of(settings):
        alone = listener.address == settings.listen or not settings.listeners
        name = listener.setting_name("address")
        bound = bind(listener.address) if alone else bind_named(bind, name, listener.address)
        stack.callback(bound.close)
        found.append(
            (
                listener,
                Listening(name=listener.name, socket=bound, proxies=listener.proxies, tls=tls.of(listener.name)),
            )
        )
    return found


def told_endpoint(listener: ListenerSettings, listening: Listening) -> Endpoint:
    host, port = endpoint_of(listener, listening.socket.getsockname()[:2])
    return Endpoint(listener=listener.name, host=host, port=port)


def bootstrap_of(settings: Settings) -> AgentAddress | None:
    if not settings.advertised_bootstrap:
        return None
    host, port = parse_address(settings.advertised_bootstrap, name="advertised.bootstrap")
    return AgentAddress(host=host, port=port)
