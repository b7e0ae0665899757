"""The PROXY protocol, version 2: a load balancer says first from where a connection really comes. Pure.

Whoever is believed here can name any host as a client's, and ACLs know hosts. So a header is read only from addresses
that the operator trusts, and there it is required: without one the connection is refused, not taken for the balancer's
own. Version 1, a line of text, is refused. What a header says beyond the source (TLVs) is skipped.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from runtime.errors import SiltstoneError
from security.acls.checks import canonical_host

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
HEADER_BYTES_MAX: Final = 4_096
"""With TLVs. The protocol allows 64 KiB; balancers send some hundred bytes."""
_START: Final = struct.Struct(">BBH")
_START_BYTES: Final = len(SIGNATURE) + _START.size
_VERSION: Final = 2
_LOCAL, _PROXY = 0, 1
_UNSPECIFIED: Final = 0x00
_TCP_4, _TCP_6 = 0x11, 0x21
_ADDRESS_BYTES: Final = {_TCP_4: 4, _TCP_6: 16}

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


class ProxyProtocolError(SiltstoneError):
    """A trusted proxy sent no header that we can read. Close the connection."""


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """The networks whose word about a client's address is taken."""

    networks: Sequence[IpNetwork] = ()

    def trust(self, host: str) -> bool:
        if not self.networks:
            return False
        try:
            address = ipaddress.ip_address(canonical_host(host.partition("%")[0]))
        except ValueError:
            return False
        return any(address in network for network in self.networks)


@dataclass(frozen=True, slots=True)
class ProxyHeader:
    host: str | None
    """Where the client is; None if the proxy speaks for itself (a health check) or does not know."""
    port: int
    rest: bytes
    """The bytes after the header: the connection's own."""


class ProxyHeaderReader:
    """The first bytes of one connection from a trusted proxy."""

    __slots__ = ("_arrived",)

    def __init__(self) -> None:
        self._arrived = b""

    def feed(self, data: bytes | memoryview) -> ProxyHeader | None:
        """None: more bytes are needed. Raises ProxyProtocolError. At most HEADER_BYTES_MAX are kept meanwhile."""
        arrived = self._arrived = self._arrived + bytes(data)
        signature = arrived[: len(SIGNATURE)]
        if not SIGNATURE.startswith(signature):
            raise _no_header(signature)
        if len(arrived) < _START_BYTES:
            return None
        version_and_command, family, size = _START.unpack_from(arrived, len(SIGNATURE))
        version, command = version_and_command >> 4, version_and_command & 0x0F
        if version != _VERSION or command not in (_LOCAL, _PROXY):
            raise ProxyProtocolError(f"a PROXY header of version {version} with command {command}")
        if _START_BYTES + size > HEADER_BYTES_MAX:
            raise ProxyProtocolError(f"a PROXY header of {_START_BYTES + size} bytes, above {HEADER_BYTES_MAX}")
        end = _START_BYTES + size
        if len(arrived) < end:
            return None
        self._arrived = b""
        rest = arrived[end:]
        if command == _LOCAL or family == _UNSPECIFIED:
            return ProxyHeader(None, 0, rest)
        address_bytes = _ADDRESS_BYTES.get(family)
        if address_bytes is None:
            raise ProxyProtocolError(f"a PROXY header of a family that is not TCP over IP: 0x{family:02x}")
        # source, destination, their ports
        if size < 2 * address_bytes + 4:
            raise ProxyProtocolError(f"a PROXY header of {size} bytes has no room for its addresses")
        source = arrived[_START_BYTES : _START_BYTES + address_bytes]
        (port,) = struct.unpack_from(">H", arrived, _START_BYTES + 2 * address_bytes)
        return ProxyHeader(canonical_host(str(ipaddress.ip_address(source))), port, rest)


def _no_header(start: bytes) -> ProxyProtocolError:
    if start.startswith(b"PROXY"[: len(start)]):
        return ProxyProtocolError(
            "a PROXY header of version 1, a line of text", remedy="let the load balancer send version 2"
        )
    return ProxyProtocolError(
        f"no PROXY header from an address that must send one; it begins with {start!r}",
        remedy="turn the PROXY protocol (version 2) on at the load balancer, or take its address out of the setting",
    )
