"""The network that an address counts for, in shares and turns. Pure."""

from __future__ import annotations

from ipaddress import IPv6Address

from security.acls.checks import canonical_host

_NETWORK_BITS = 64
"""The prefix of an IPv6 network: the owner of one address has the whole network."""


def neighbourhood(host: str) -> str:
    """The address itself, or its IPv6 network."""
    known = canonical_host(host.partition("%")[0])
    try:
        address = IPv6Address(known)
    except ValueError:
        return known
    return str(IPv6Address(int(address) >> _NETWORK_BITS << _NETWORK_BITS))
