"""The network that an address counts for, in shares and turns. Pure."""

from __future__ import annotations

from ipaddress import IPv6Address

_NETWORK_BITS = 64
"""The prefix of an IPv6 network: the owner of one address has the whole network."""


def neighbourhood(host: str) -> str:
    """The address itself, or its IPv6 network."""
    try:
        address = IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> _NETWORK_BITS << _NETWORK_BITS))
