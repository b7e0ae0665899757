"""Whom an address belongs to, as far as shares and turns go. Pure."""

from __future__ import annotations

from ipaddress import IPv6Address

_NETWORK_BITS = 64
"""Of an IPv6 address: whoever has one address has all of its network."""


def neighbourhood(host: str) -> str:
    """The address itself, or its IPv6 network."""
    try:
        address = IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> _NETWORK_BITS << _NETWORK_BITS))
