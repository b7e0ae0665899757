"""Ids and chance as arguments: one source per process, a seeded one in tests.

UUIDs of version 7 (RFC 9562 section 5.7) start with the time, so keys made together lie together.
"""

from __future__ import annotations

import random
import uuid
from typing import Protocol


class IdSource(Protocol):
    def uuid7(self, now_ms: int) -> uuid.UUID: ...

    def uuid4(self) -> uuid.UUID: ...

    def jitter(self) -> float:
        """A number in [0, 1), for backing off."""
        ...


class SystemIds:
    """Ids from the system's entropy, or from `seed` when a test wants them repeatable."""

    def __init__(self, seed: int | None = None) -> None:
        # The system's entropy: ids of processes that start at the same moment must differ.
        self._random: random.Random = random.SystemRandom() if seed is None else random.Random(seed)  # noqa: S311

    def uuid7(self, now_ms: int) -> uuid.UUID:
        # 48 bits of time, version 7, 12 random bits, variant, 62 random bits.
        rand_a, rand_b = self._random.getrandbits(12), self._random.getrandbits(62)
        return uuid.UUID(int=(now_ms & (1 << 48) - 1) << 80 | 0x7 << 76 | rand_a << 64 | 0b10 << 62 | rand_b)

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def jitter(self) -> float:
        return self._random.random()
