"""An agent's knowledge of users, ACLs and quotas, fed by a follower of a memory store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from agents.security.known import KnownSecurity
from agents.tail.follower import Follower, FollowerCallbacks
from agents.tail.log_index import LogIndex
from agents.tail.waiters import ParkedReaders
from agents.topics.topic_cache import TopicCache
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.leases import AgentAddress, WriterLease
from metadata.contract.tail import Change, ChangeKind
from metadata.memory.store import MemoryMetadata
from metadata.security import details
from metadata.security.contract import SecurityState
from runtime.clock import ManualClock
from runtime.errors import BugError
from runtime.runtime import Runtime
from security.acls.values import Acl, AclFilter
from security.quotas.values import QuotaEntity
from security.scram import Mechanism, ScramCredential
from tests.contract.test_security import SHA_256, SHA_512, acl, credential, removes, sets
from tests.fixtures.metadata_parts import Part
from tests.unit.agents.tail.following import Gated

ANN, BOB = QuotaEntity(user="ann"), QuotaEntity(user="bob")


class StandingClock(ManualClock):
    """Moves by `advance_ms` alone, so that nobody polls and no lease ends by itself."""

    def __init__(self) -> None:
        super().__init__()
        self._sleepers: list[tuple[float, asyncio.Event]] = []

    def advance_ms(self, duration_ms: float) -> None:
        super().advance_ms(duration_ms)
        for until_ms, wakes in self._sleepers:
            if until_ms <= self.monotonic_ms():
                wakes.set()

    async def sleep_ms(self, duration_ms: float) -> None:
        sleeper = (self.monotonic_ms() + duration_ms, asyncio.Event())
        self._sleepers.append(sleeper)
        try:
            await sleeper[1].wait()
        finally:
            self._sleepers.remove(sleeper)


class Watched(Part):
    """Counts the reads, and fails or holds them up when a test asks for it."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.reads: list[str] = []
        self.away = self.reports_fail = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def _passes(self, name: str) -> None:
        self.reads.append(name)
        await self.gate.wait()
        if self.away or (name == "report_seen" and self.reports_fail):
            raise MetadataUnavailableError("away")

    async def security(self) -> SecurityState:
        await self._passes("security")
        return await self.inner.security()

    async def users(self, names: Sequence[str]) -> Mapping[str, Mapping[Mechanism, ScramCredential]]:
        await self._passes("users")
        return await self.inner.users(names)

    async def report_seen(self, lease: WriterLease, change_id: int) -> None:
        await self._passes("report_seen")
        await self.inner.report_seen(lease, change_id)


class Agent:
    """A follower without its loop, and what it feeds."""

    def __init__(self, metadata: MemoryMetadata, clock: ManualClock) -> None:
        self.metadata, self.clock = metadata, clock
        self.tails, self.store = Gated(metadata.agents), Watched(metadata.security)
        self.lease = WriterLease(writer_id=0, epoch=0)
        runtime = Runtime(clock=clock)
        self.known = KnownSecurity(metadata=self.store, lease=lambda: self.lease, runtime=runtime)
        self.follower = Follower(
            metadata=self.tails,
            topic_cache=TopicCache(),
            index=LogIndex(),
            parked_readers=ParkedReaders(),
            poll_ms=3_600_000,
            callbacks=FollowerCallbacks(on_fatal=_fail, security=self.known),
            runtime=runtime,
        )
        self.told: list[Any] = []
        self.known.on_users.append(lambda names: self.told.append(("users", set(names))))
        self.known.on_acls.append(self.tell_acls)
        self.known.on_quotas.append(lambda: self.told.append("quotas"))

    async def tell_acls(self, came: Collection[Acl], went: Collection[Acl]) -> None:
        assert set(came) <= self.known.acls and self.known.acls.isdisjoint(went)
        self.told.append(("acls", set(came), set(went)))

    async def start(self) -> None:
        self.lease = await self.metadata.agents.register_agent(AgentAddress(host="h", port=1))
        await self.follower.start()

    async def catch_up(self) -> list[Any]:
        """Returns what was told."""
        self.told.clear()
        await self.follower.catch_up()
        return list(self.told)

    async def behind(self, change_id: int) -> list[int]:
        return [agent.writer_id for agent in await self.metadata.security.agents_behind(change_id)]

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0)

    async def check(self) -> None:
        """Nothing differs from what the store holds."""
        state = await self.metadata.security.security()
        assert (self.known.users, self.known.acls, self.known.quotas) == (state.users, set(state.acls), state.quotas)
        assert self.known.cluster_secret == state.cluster_secret


def _fail(error: Exception) -> None:
    raise AssertionError(error)


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    clock = StandingClock()
    made = Agent(MemoryMetadata(runtime=Runtime(clock=clock)), clock)
    yield made
    await made.follower.stop()
    await made.known.stop()


async def test_all_is_there_once_the_follower_has_started(agent: Agent) -> None:
    security = agent.metadata.security
    await security.alter_users([sets("ann"), sets("ann", SHA_512)])
    await security.create_acls([acl("a"), acl("b")])
    await security.alter_quotas({ANN: {"producer_byte_rate": 5.0}})
    assert agent.known.stale_ms == float("inf")
    with pytest.raises(BugError, match="not loaded yet"):
        _ = agent.known.cluster_secret

    await agent.start()

    await agent.check()
    assert agent.known.users["ann"] == {SHA_256: credential(), SHA_512: credential(SHA_512)}
    assert agent.told == [("users", {"ann"}), "quotas", ("acls", {acl("a"), acl("b")}, set())]


async def test_changes_are_here_when_catching_up_returns_and_only_users_are_read_for_them(agent: Agent) -> None:
    security = agent.metadata.security
    await agent.start()
    await security.create_acls([acl("a"), acl("b")])
    before, agent.store.reads = agent.known.generation, []
    assert await agent.catch_up() == [("acls", {acl("a"), acl("b")}, set())]
    await security.delete_acls([AclFilter(resource_name="a")])
    assert await agent.catch_up() == [("acls", set(), {acl("a")})]
    assert agent.known.generation == before + 2
    await security.alter_quotas({ANN: {"x": 5.0, "y": 1.0}, BOB: {"x": 1.0}})
    await security.alter_quotas({ANN: {"x": None}, BOB: {"x": None}})
    assert await agent.catch_up() == ["quotas"]
    assert agent.known.quotas == {ANN: {"y": 1.0}}
    assert "users" not in agent.store.reads and "security" not in agent.store.reads
    await security.alter_users([sets("ann"), sets("bob")])
    assert await agent.catch_up() == [("users", {"ann", "bob"})]
    await security.alter_users([removes("ann"), sets("bob", key=b"new")])
    assert await agent.catch_up() == [("users", {"ann", "bob"})]
    assert agent.known.users == {"bob": {SHA_256: credential(key=b"new")}}
    assert agent.store.reads.count("users") == 2 and "security" not in agent.store.reads
    await agent.metadata.agents.create_topic("t", partitions=1, configs={})
    assert await agent.catch_up() == []
    assert agent.known.generation == before + 2
    await agent.check()


async def test_an_acl_that_came_and_went_between_two_polls_is_told_to_nobody(agent: Agent) -> None:
    security = agent.metadata.security
    await security.create_acls([acl("stays"), acl("goes and comes")])
    await agent.start()
    before = agent.known.generation
    await security.create_acls([acl("short")])
    await security.delete_acls([AclFilter(resource_name="short"), AclFilter(resource_name="goes and comes")])
    await security.create_acls([acl("goes and comes")])
    assert await agent.catch_up() == []
    assert agent.known.generation == before
    await agent.check()


async def test_changes_during_the_load_are_neither_missed_nor_taken_in_twice(agent: Agent) -> None:
    security = agent.metadata.security
    await security.create_acls([acl("before"), acl("goes"), acl("goes and comes")])
    agent.lease = await agent.metadata.agents.register_agent(AgentAddress(host="h", port=1))
    # given: a snapshot that was read, and what it feeds is read later
    agent.store.gate.clear()
    starting = asyncio.create_task(agent.follower.start())
    await agent.until(lambda: agent.store.reads)
    await security.delete_acls([AclFilter(resource_name="goes"), AclFilter(resource_name="goes and comes")])
    await security.create_acls([acl("meanwhile"), acl("goes and comes")])
    await security.alter_users([sets("ann")])
    agent.store.gate.set()
    await starting
    assert agent.known.acls == {acl("before"), acl("meanwhile"), acl("goes and comes")}
    # the tail brings these changes all the same
    await security.delete_acls([AclFilter(resource_name="meanwhile")])
    assert await agent.catch_up() == [("acls", set(), {acl("meanwhile")})]
    await agent.check()


async def test_a_follower_that_fell_behind_reads_everything_anew_and_tells_the_difference(agent: Agent) -> None:
    security = agent.metadata.security
    await security.create_acls([acl("stays"), acl("goes")])
    await security.alter_users([sets("stays"), sets("goes"), sets("changes")])
    await security.alter_quotas({ANN: {"x": 1.0}})
    await agent.start()
    before = agent.known.generation
    await security.delete_acls([AclFilter(resource_name="goes")])
    await security.create_acls([acl("comes")])
    await security.alter_users([removes("goes"), sets("changes", key=b"new"), sets("comes")])
    agent.tails.cold = True  # the changes were forgotten
    told = await agent.catch_up()
    assert told == [("users", {"goes", "changes", "comes"}), ("acls", {acl("comes")}, {acl("goes")})]
    assert agent.known.generation == before + 1
    await agent.check()
    agent.tails.cold = True
    assert await agent.catch_up() == []
    assert agent.known.generation == before + 1


async def test_a_gap_ends_only_when_everything_could_be_read(agent: Agent) -> None:
    await agent.start()
    await agent.metadata.security.create_acls([acl()])
    agent.tails.cold = agent.store.away = True
    with pytest.raises(MetadataUnavailableError):
        await agent.catch_up()
    # the cursor stands: the next tail is cold again, or brings the changes
    agent.store.away = False
    assert await agent.catch_up() == [("acls", {acl()}, set())]
    await agent.check()


async def test_a_change_whose_users_cannot_be_read_comes_again_and_nothing_of_its_answer_counts(agent: Agent) -> None:
    security = agent.metadata.security
    await security.alter_users([sets("ann")])
    await agent.start()
    await agent.until(lambda: "report_seen" in agent.store.reads)
    await security.create_acls([acl()])
    change_id = await security.alter_users([removes("ann")])
    agent.store.away = True
    for _ in range(2):
        with pytest.raises(MetadataUnavailableError):
            await agent.catch_up()
        assert (agent.told, set(agent.known.acls), agent.known.users.keys()) == ([], set(), {"ann"})
        assert await agent.behind(change_id) == [agent.lease.writer_id]
    agent.store.away = False
    assert await agent.catch_up() == [("users", {"ann"}), ("acls", {acl()}, set())]
    await agent.check()


async def test_a_user_that_changes_again_while_he_is_read_ends_as_he_is(agent: Agent) -> None:
    security = agent.metadata.security
    await agent.start()
    await security.alter_users([sets("ann", key=b"1")])
    agent.store.gate.clear()
    polling = asyncio.create_task(agent.catch_up())
    await agent.until(lambda: "users" in agent.store.reads)
    await security.alter_users([sets("ann", key=b"2"), sets("bob")])
    agent.store.gate.set()
    await polling
    assert agent.known.users["ann"][SHA_256].stored_key == b"2", "the newer one, read a little early"
    await agent.catch_up()
    await agent.check()


@pytest.mark.parametrize("seed", range(10))
async def test_after_any_history_it_holds_what_the_store_holds(agent: Agent, seed: int) -> None:
    chance = random.Random(seed)
    print(f"seed {seed}")
    security = agent.metadata.security
    names, acls = ["a", "b", "c"], [acl(name) for name in "abcdef"]
    told: tuple[set[Acl], dict[str, Any]] = (set(), {})

    async def on_acls(came: Collection[Acl], went: Collection[Acl]) -> None:
        assert not told[0] & set(came) and set(went) <= told[0]
        told[0].difference_update(went)
        told[0].update(came)

    agent.known.on_acls.append(on_acls)
    await agent.start()
    for _ in range(200):
        match chance.randrange(7):
            case 0:
                await security.create_acls(chance.sample(acls, 3))
            case 1:
                await security.delete_acls([AclFilter(resource_name=chance.choice("abcdef"))])
            case 2:
                change = chance.choice([sets, removes])
                await security.alter_users([change(chance.choice(names), chance.choice([SHA_256, SHA_512]))])
            case 3:
                values = {chance.choice("xy"): chance.choice([None, 1.0, 2.0])}
                await security.alter_quotas({chance.choice([ANN, BOB]): values})
            case 4:
                agent.tails.cold = chance.random() < 0.3
            case 5:
                agent.store.away = True
                with suppress(MetadataUnavailableError):
                    await agent.catch_up()
                agent.store.away = False
            case _:
                await agent.catch_up()
    agent.tails.cold = False
    await agent.catch_up()
    await agent.check()
    assert told[0] == agent.known.acls


async def test_many_acls_at_once_are_taken_in_with_turns_for_others(agent: Agent) -> None:
    await agent.start()
    acls = [acl(f"t{number}") for number in range(20_000)]
    await agent.metadata.security.create_acls(acls)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    await agent.catch_up()
    taken, turns = turns, 0
    agent.tails.cold = True
    await agent.catch_up()
    other.cancel()
    assert agent.known.acls == set(acls)
    assert taken >= 4 and turns >= 4


# ---- staleness and reports


async def test_staleness_counts_from_the_sending_of_the_last_read_that_succeeded(agent: Agent) -> None:
    known, clock = agent.known, agent.clock
    await agent.start()
    clock.advance_ms(1_000)
    assert known.stale_ms == 1_000
    await agent.catch_up()
    assert known.stale_ms == 0
    agent.tails.gate.clear()
    polling = asyncio.create_task(agent.catch_up())
    await agent.until(lambda: agent.tails.tails >= 2)
    clock.advance_ms(300)
    agent.tails.gate.set()
    await polling
    assert known.stale_ms == 300
    await agent.metadata.security.alter_users([sets("ann")])
    agent.store.away = True
    clock.advance_ms(50)
    with pytest.raises(MetadataUnavailableError):
        await agent.catch_up()
    assert known.stale_ms == 350, "the tail was read, and not all of it could be taken in"


async def test_what_is_taken_in_is_reported_under_each_lease(agent: Agent) -> None:
    security = agent.metadata.security
    first = await security.create_acls([acl()])
    await agent.start()
    await agent.until(lambda: agent.store.reads.count("report_seen") == 1)
    assert await agent.behind(first) == []
    second = await security.create_acls([acl("b")])
    assert await agent.behind(second) == [agent.lease.writer_id]
    # a report that fails is made again after the next poll
    agent.store.reports_fail = True
    await agent.catch_up()
    await agent.until(lambda: agent.store.reads.count("report_seen") == 2)
    await asyncio.sleep(0)
    assert await agent.behind(second) == [agent.lease.writer_id]
    agent.store.reports_fail = False
    await agent.catch_up()
    await agent.until(lambda: agent.store.reads.count("report_seen") == 3)
    await asyncio.sleep(0)
    assert await agent.behind(second) == []
    # nothing new, nothing to report
    await agent.catch_up()
    await agent.metadata.agents.create_topic("t", partitions=1, configs={})
    await agent.catch_up()
    assert agent.store.reads.count("report_seen") == 3
    agent.lease = await agent.metadata.agents.register_agent(AgentAddress(host="h", port=1), instead_of=agent.lease)
    assert await agent.behind(second) == [agent.lease.writer_id]
    await agent.catch_up()
    await agent.until(lambda: agent.store.reads.count("report_seen") == 4)
    await asyncio.sleep(0)
    assert await agent.behind(second) == []


async def test_a_change_is_everywhere_when_all_have_reported_it_or_their_leases_have_ended(agent: Agent) -> None:
    await agent.start()
    other = await agent.metadata.agents.register_agent(AgentAddress(host="h", port=2))
    await agent.metadata.agents.register_agent(AgentAddress(host="cut off", port=3))
    change_id = await agent.metadata.security.create_acls([acl()])
    waiting = asyncio.create_task(agent.known.applied_everywhere(change_id, 60_000))
    await agent.catch_up()
    await agent.metadata.security.report_seen(other, change_id)
    for _ in range(20):
        agent.clock.advance_ms(100)
        for _ in range(5):
            await asyncio.sleep(0)
    assert not waiting.done()
    # those who can reach the store keep their leases
    async with asyncio.timeout(30):
        while not waiting.done():
            for lease in (agent.lease, other):
                await agent.metadata.agents.heartbeat(lease)
            agent.clock.advance_ms(1_000)
            for _ in range(5):
                await asyncio.sleep(0)
    assert await waiting


async def test_a_wait_for_everybody_ends(agent: Agent) -> None:
    await agent.start()
    await agent.metadata.agents.register_agent(AgentAddress(host="slow", port=3))
    change_id = await agent.metadata.security.create_acls([acl()])
    assert not await agent.known.applied_everywhere(change_id, 0)


async def test_a_change_of_another_kind_is_none_of_its_business(agent: Agent) -> None:
    await agent.start()
    agent.store.reads.clear()
    await agent.known.take_in([Change(change_id=9, kind=ChangeKind.MERGED, topic_id=None, detail={})])
    assert agent.store.reads == [] and agent.known.change_id == 0
    assert details.KINDS.isdisjoint({ChangeKind.MERGED})
