"""The cache of object bytes: whatever happens in any order, its sums are right and its bound holds."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agents.read.cache import BlockCache, Body
from tests.fixtures.chance import examples


class CacheRules(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cache = BlockCache(100)
        self.bodies: list[Body] = []
        self.pins: list[Body] = []

    @rule(first=st.integers(0, 5), blocks=st.integers(1, 3), size=st.integers(1, 60), known_ms=st.integers(0, 10))
    def put(self, first: int, blocks: int, size: int, known_ms: int) -> None:
        self.bodies.append(self.cache.put_blocks("a", range(first, first + blocks), bytes(size), known_ms))

    @rule(block=st.integers(0, 7))
    def expect(self, block: int) -> None:
        self.cache.expect("a", block)

    @rule(block=st.integers(0, 7), first_to_go=st.booleans())
    def release(self, block: int, first_to_go: bool) -> None:
        self.cache.release("a", block, first_to_go=first_to_go)

    @rule(number=st.integers(0, 20))
    def pin(self, number: int) -> None:
        if self.bodies and self.cache.pin(body := self.bodies[number % len(self.bodies)]):
            self.pins.append(body)

    @rule(number=st.integers(0, 20))
    def unpin(self, number: int) -> None:
        if self.pins:
            self.cache.unpin(self.pins.pop(number % len(self.pins)))

    @rule(known_ms=st.integers(0, 10))
    def forget_old(self, known_ms: int) -> None:
        self.cache.drop_known_before(known_ms)
        found = (self.cache.block("a", block) for block in range(8))
        assert all(body is None or body.known_ms >= known_ms for body in found)

    @rule()
    def forget_file(self) -> None:
        self.cache.drop_files({"a"})
        assert not any(self.cache.holds("a", range(block, block + 1)) for block in range(8))
        assert self.cache.bytes == self.cache.pinned_bytes

    @invariant()
    def the_sums_are_right(self) -> None:
        here = [body for body in self.bodies if body.cache is self.cache]
        assert self.cache.bytes == sum(body.data.held_bytes for body in here) <= 100
        assert self.cache.pinned_bytes == sum(body.data.held_bytes for body in set(self.pins)) <= 75
        assert set(self.pins) <= set(here)
        found = {block: self.cache.block("a", block) for block in range(8)}
        assert all(body is None or body in here for body in found.values())
        alone = [body for body in set(self.pins) if not body.expected]
        assert self.cache.only_pinned_bytes == sum(body.data.held_bytes for body in alone)


TestCacheRules = CacheRules.TestCase
TestCacheRules.settings = settings(max_examples=examples(200), deadline=None)
