"""Addresses of agents, as people write them, and why nobody answers at one."""

from __future__ import annotations

import os
import re

from runtime.errors import BadInputError
from runtime.passwords import UNREADABLE, place_in

DEFAULT_PORT = 9092
_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[^\]]+)\]|(?P<host>[^\s:\[\]@/]+))(?::(?P<port>\d{1,5}))?")


def parse_bootstrap(text: str) -> list[tuple[str, int]]:
    """Read "host[:port][,host[:port]...]"; an IPv6 host is in brackets. Without a port it is Kafka's, 9092.

    Raises BadInputError.
    """
    addresses: list[tuple[str, int]] = []
    for part in map(str.strip, text.split(",")):
        scheme, slashes, place = part.partition("://")
        if slashes:
            # A URL may carry a password: the message quotes only the scheme, and a host where nothing else can be.
            place = "" if "?" in place or place_in(part) == UNREADABLE else place_in(part).partition("/")[0]
            raise BadInputError(
                f"a bootstrap address is HOST:PORT, not a URL ({scheme}://...)",
                remedy=f"give the address without {scheme}://: {place or 'HOST:9092'}. It is the port for Kafka"
                " clients, 9092 by default, not the one for metrics",
            )
        found = _ADDRESS.fullmatch(part)
        port = int(found["port"] or DEFAULT_PORT) if found else 0
        if found is None or not 0 < port < 65_536:
            raise BadInputError(
                # Text around an "@", or that of a driver's "password=...", may hold a password.
                f"bootstrap address {'' if any(each in text for each in '@=') else f'{part!r} '}is not HOST:PORT",
                remedy="give, for example, 127.0.0.1:9092 or [::1]:9092",
            )
        addresses.append((found["ipv6"] or found["host"], port))
    return addresses


def reason_of(error: OSError | TimeoutError, limit_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {round(limit_s, 1):g} s"
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    # A name that does not resolve has a number of its own, below zero.
    return error.strerror or str(error) or "the connection was closed"
