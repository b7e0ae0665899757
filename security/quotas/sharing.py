"""How the agents of a cluster share one limit by demand. Pure.

Each agent counts what clients ask of it, and tells the others with each beat. Demands are parts of the limit, from 0
to 1, so agents need not agree on the limit itself. Not use is reported but demand: a client that had to wait wants more
than it got, as much as there is.

From all demands each agent finds its own part of the limit. If there is enough for all, each has its demand and what is
left in proportion: a client that is on one agent alone has the whole limit. If there is not, small demands are met
and the large ones share the rest evenly (max-min fairness). Plain proportion would oscillate: a modest demand that is
cut becomes a client that waits, which looks like a large one, gets more than it needs, and is modest again.

No part is smaller than 1/(2 n) for n agents: a client that comes to an agent is served there until the next beat. Parts
that nobody uses are the price: what clients may take in all is the limit, what the parts allow is half a limit more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from heapq import nlargest
from operator import itemgetter
from typing import Final

from security.quotas.precedence import Share
from security.quotas.values import QuotaKey

PER_AGENT: Final = frozenset({QuotaKey.REQUEST_PERCENTAGE})
"""A part of the loop of one agent: it grows with the agents by itself, and protects each of them."""
HEADROOM: Final = 1.25
"""A demand that is met may grow by so much within a beat before its client waits."""
REMEMBERED: Final = 0.5
"""The weight of what was seen before. An agent that clients have left gives half of its part back with each beat."""
DEMAND_MIN: Final = 1e-6
"""A smaller demand is none. After the last request a part stays for 20 beats where the client was, so a client that
comes back finds it: demands that fade together keep their proportion."""
REPORTED_MAX: Final = 1_000
"""Clients choose their ids, so an agent reports its largest demands alone. Shares beyond are as if no other agent had
them."""


def demand_after(before: float, used: float, *, is_short: bool) -> float:
    """The demand after a beat in which clients took `used`, in parts of what the whole limit brought meanwhile.
    `is_short`: one of them had to wait, or owes something."""
    if is_short:
        return 1.0
    demand = min(1.0, REMEMBERED * before + (1 - REMEMBERED) * used)
    return demand if demand >= DEMAND_MIN else 0.0


def part_of(own: float, others: Sequence[float], agents: int) -> float:
    """This agent's part of the limit, above 0 and up to 1, by its own demand and those of the others that have any.
    `agents` counts all that share, this one too."""
    total = own + sum(others)
    if total <= 0:
        return 1 / agents
    level = 1.0 if total <= 1 else _level(sorted((own, *others)))
    fair = own / total if total <= 1 else min(own, level)
    return max(fair, min(own * HEADROOM, level), 1 / (2 * agents))


def _level(demands: Sequence[float]) -> float:
    """The part of each large demand when the smaller ones are met; the smallest comes first, and together
    they are above 1."""
    left = 1.0
    for number, demand in enumerate(demands):
        level = left / (len(demands) - number)
        if demand > level:
            return level
        left -= demand
    return 1.0


def busiest(demands: Mapping[int, float]) -> Mapping[int, float]:
    """Those to report."""
    if len(demands) <= REPORTED_MAX:
        return demands
    return dict(nlargest(REPORTED_MAX, demands.items(), key=itemgetter(1)))


def number_of(key: QuotaKey, share: Share, secret: bytes) -> int:
    """The number of a share in reports, 64 bits with a sign. Names of clients leave no agent. The secret is the
    cluster's: nobody can choose an id that has the number of another one."""
    said = hashlib.blake2b(key=secret, digest_size=8)
    for text in (key.value, share.user, share.client_id, share.ip):
        octets = text.encode("utf-8", "surrogatepass")
        said.update(len(octets).to_bytes(8, "big") + octets)
    return int.from_bytes(said.digest(), "big", signed=True)
