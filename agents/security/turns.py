"""Work that waits, in turns by who asks for it. Pure.

Whoever asks for a thousand things has one of them done, then all others who wait have one of theirs. So a newcomer
waits for no more than one piece of work of each other one, however much they have asked for.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from ipaddress import IPv6Address
from typing import Generic, TypeVar

Work = TypeVar("Work")
_NETWORK_BITS = 64
"""Of an IPv6 address: whoever has one address has all of its network."""


class Turns(Generic[Work]):
    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[Work]] = OrderedDict()
        """By who asks, in the order of their turns; nobody without work."""

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, who: str, work: Work) -> None:
        self._waiting.setdefault(who, deque()).append(work)

    def take(self) -> Work | None:
        """The next piece of work; None if there is none."""
        if not self._waiting:
            return None
        who, line = next(iter(self._waiting.items()))
        work = line.popleft()
        if line:
            self._waiting.move_to_end(who)
        else:
            del self._waiting[who]
        return work

    def drop(self, who: str, work: Work) -> None:
        """Whoever asked does not wait any more."""
        line = self._waiting.get(who)
        if line is not None and work in line:
            line.remove(work)
            if not line:
                del self._waiting[who]


def neighbourhood(host: str) -> str:
    """Whose turn an address takes: its own, or that of its IPv6 network."""
    try:
        address = IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> _NETWORK_BITS << _NETWORK_BITS))
