"""The list of agents: the list that stays in use while the store is away, and the agents that learn of a departure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from agents.membership import CLOCK_APART_MS, NOTICE_MS, Membership
from metadata.contract.errors import (
    MetadataUnavailableError,
    RightsMissingError,
    SchemaMismatchError,
    WentBackError,
)
from metadata.contract.leases import ALIVE_MS, BEAT_MS, LEASE_MS, AgentAddress, AgentInfo, WriterLease
from metadata.memory.store import MemoryDatabase, MemoryMetadata
from runtime.clock import ManualClock
from runtime.errors import BugError
from runtime.metrics import Metrics
from runtime.runtime import Runtime
from tests.fixtures.metadata_parts import Part

DAY_MS = 86_400_000


class TestClock(ManualClock):
    """`sleep_ms` ends when the test has moved the clock that far."""

    __test__ = False

    async def sleep_ms(self, duration_ms: float) -> None:
        until_ms = self.monotonic_ms() + duration_ms
        while self.monotonic_ms() < until_ms:
            await asyncio.sleep(0)

    async def pass_ms(self, duration_ms: float) -> None:
        """Moves the clock in steps, so that all heartbeats come in their order."""
        for _ in range(round(duration_ms / 50)):
            self.advance_ms(50)
            for _ in range(10):
                await asyncio.sleep(0)


class Away(Part):
    away = False
    loses_every: int | None = None
    """Fails this many heartbeats; the answer to the last one is lost."""
    beats = 0
    lists_nobody = False
    takes_us = True
    refuses: Exception | None = None
    """The error of every registration."""
    halts: Exception | None = None
    """The error of every new connection."""

    async def register_agent(self, address: AgentAddress, *, instead_of: WriterLease | None = None) -> WriterLease:
        if not self.takes_us:
            raise SchemaMismatchError("too old")
        if self.refuses:
            raise self.refuses
        if self.halts:
            raise self.halts
        return await self.inner.register_agent(address, instead_of=instead_of)

    async def heartbeat(self, lease: WriterLease, *, draining: bool = False) -> int:
        self.beats += 1
        if self.halts:
            raise self.halts
        if Away.away or (self.loses_every is not None and self.beats % self.loses_every == 0):
            raise MetadataUnavailableError("away")
        return await self.inner.heartbeat(lease, draining=draining)

    async def live_agents(self) -> Sequence[AgentInfo]:
        if self.halts:
            raise self.halts
        if Away.away or self.lists_nobody:
            raise MetadataUnavailableError("away")
        return await self.inner.live_agents()


async def joined(count: int, clock: TestClock) -> list[Membership]:
    """Agents that know each other, whose heartbeats do not coincide."""
    Away.away = False
    database = MemoryDatabase(cluster_id="c")
    members: list[Membership] = []
    for port in range(count):
        metadata = Away(MemoryMetadata(runtime=Runtime(clock=clock), database=database).agents)
        member = Membership(metadata=metadata, address=AgentAddress(host="h", port=port), runtime=Runtime(clock=clock))
        await member.join()
        await clock.pass_ms(700)
        members.append(member)
    await clock.pass_ms(2 * BEAT_MS)
    assert all(len(member.agents) == count for member in members)
    return members


async def leave(members: Sequence[Membership]) -> None:
    for member in members:
        await member.leave()


async def test_one_that_is_fenced_and_may_not_register_any_more_says_so_and_beats_no_more() -> None:
    clock = TestClock()
    [member] = await joined(1, clock)
    told: list[Exception] = []
    member.on_fatal = told.append
    # when another agent has its lease, and the schema has become too new for it
    await service_of(member).register_agent(member._address, instead_of=member.current)
    service_of(member).takes_us = False
    await clock.pass_ms(2 * BEAT_MS)
    # then
    assert [str(error) for error in told] == ["too old"]
    beats = service_of(member).beats
    await clock.pass_ms(4 * BEAT_MS)
    assert service_of(member).beats == beats
    await member.leave()


@pytest.mark.parametrize("reason", [RightsMissingError("permission denied"), BugError("refused")])
async def test_one_that_is_fenced_and_may_not_register_just_now_goes_on_beating_and_registers_later(
    reason: Exception,
) -> None:
    clock = TestClock()
    [member] = await joined(1, clock)
    told: list[Exception] = []
    member.on_fatal = told.append
    # when another agent has its lease, and the store refuses a new one for some beats
    fenced_by = await service_of(member).register_agent(member._address, instead_of=member.current)
    service_of(member).refuses = reason
    await clock.pass_ms(3 * BEAT_MS)
    assert member.current.epoch < fenced_by.epoch
    service_of(member).refuses = None
    await clock.pass_ms(BEAT_MS + 100)
    # then
    assert member.current.epoch > fenced_by.epoch
    assert (told, member.lease_runs) == ([], True)
    await member.leave()


@pytest.mark.parametrize("reason", [SchemaMismatchError("too old"), WentBackError("restored")])
@pytest.mark.parametrize("hears_it", ["beating", "looking at the list", "renewing"])
async def test_one_that_hears_that_it_may_not_go_on_says_so_wherever_it_hears_it(
    hears_it: str, reason: Exception
) -> None:
    """The follower's old connection may last long after the heartbeats' connection was opened again and refused."""
    clock = TestClock()
    [member] = await joined(1, clock)
    told: list[Exception] = []
    member.on_fatal = told.append
    service = service_of(member)
    service.listen()  # only from then on it hears announcements
    await clock.pass_ms(100)
    # when
    service.halts = reason
    if hears_it == "renewing":
        with pytest.raises(type(reason)):
            await member.renew(member.current)
    elif hears_it == "looking at the list":
        await service.announce_agents()
        await clock.pass_ms(200)
    else:
        await clock.pass_ms(BEAT_MS + 100)
    # then
    assert told == [reason]
    await clock.pass_ms(2 * BEAT_MS)
    beats = service.beats
    await clock.pass_ms(2 * BEAT_MS)
    assert service.beats == beats
    service.halts = None
    await member.leave()


async def test_after_an_outage_longer_than_the_lease_nobody_takes_himself_for_the_only_one() -> None:
    clock = TestClock()
    members = await joined(3, clock)
    versions = [member.version for member in members]
    Away.away = True
    await clock.pass_ms(LEASE_MS + 5_000)
    Away.away = False
    for _ in range(20):
        await clock.pass_ms(BEAT_MS / 4)
        assert [len(member.agents) for member in members] == [3, 3, 3]
    assert [member.version for member in members] == versions, "no partition was named for another agent"
    # and one that does not come back is missed in the end
    await members[0].leave()
    await clock.pass_ms(2 * BEAT_MS)
    assert [len(member.agents) for member in members[1:]] == [2, 2]
    await leave(members[1:])


def service_of(member: Membership) -> Away:
    assert isinstance(member._metadata, Away)
    return member._metadata


@pytest.mark.parametrize("loses_every", [2, 3])
async def test_one_whose_beats_fail_now_and_then_hears_who_came_and_went(loses_every: int) -> None:
    clock = TestClock()
    one, other = await joined(2, clock)
    service_of(one).loses_every = loses_every
    await clock.pass_ms(3 * BEAT_MS)
    lapses: list[int] = []
    one.on_lapse = lambda: lapses.append(1)
    # when
    await other.leave()
    newcomer = Membership(
        metadata=Away(MemoryMetadata(runtime=Runtime(clock=clock), database=service_of(one).database).agents),
        address=AgentAddress(host="h", port=9),
        runtime=Runtime(clock=clock),
    )
    await newcomer.join()
    await clock.pass_ms(2 * BEAT_MS + 100)
    # then
    assert [each.address.port for each in one.agents] == [0, 9]
    assert (lapses, one.lease_runs) == ([], True)
    await leave([one, newcomer])


async def test_one_that_beats_so_seldom_that_its_lease_always_ran_out_still_hears_who_is_alive() -> None:
    clock = TestClock()
    one, other = await joined(2, clock)
    service_of(one).loses_every = 1
    await other.leave()
    for _ in range(3):
        await clock.pass_ms(LEASE_MS + BEAT_MS)
        service_of(one).loses_every = None
        await clock.pass_ms(BEAT_MS)
        service_of(one).loses_every = 1
    assert [each.address.port for each in one.agents] == [0]
    await leave([one])


async def test_who_cannot_read_the_list_for_as_long_as_a_lease_knows_no_more_than_one_that_was_away() -> None:
    clock = TestClock()
    one, other = await joined(2, clock)
    lapses: list[int] = []
    one.on_lapse = lambda: lapses.append(1)
    service_of(one).lists_nobody = True
    await clock.pass_ms(LEASE_MS - BEAT_MS - 100)
    assert one.lease_runs
    await clock.pass_ms(2 * BEAT_MS)
    assert not one.lease_runs, "although its beats succeed"
    await other.leave()
    # when
    assert not lapses
    service_of(one).lists_nobody = False
    await clock.pass_ms(BEAT_MS + 100)
    # then: its groups are given up, and the list is believed at once, because leases ran all the time
    assert (lapses, one.lease_runs, len(one.agents)) == ([1], True, 1)
    await leave([one])


async def test_one_that_drains_is_gone_from_every_answer_before_it_stops_serving() -> None:
    clock = TestClock()
    members = await joined(3, clock)
    draining = asyncio.create_task(members[0].drain(60_000))
    await clock.pass_ms(50)
    assert len(members[0].agents) == 2, "from its own answers first"
    waited_ms = 50
    while not draining.done():
        await clock.pass_ms(50)
        waited_ms += 50
    assert [len(member.agents) for member in members] == [2, 2, 2]
    assert BEAT_MS <= waited_ms <= NOTICE_MS + 200
    await leave(members)


async def test_the_last_ones_do_not_wait_for_each_other_and_keep_a_list_to_tell() -> None:
    clock = TestClock()
    members = await joined(2, clock)
    draining = [asyncio.create_task(member.drain(60_000)) for member in members]
    await clock.pass_ms(200)
    assert all(each.done() for each in draining)
    assert all(len(member.agents) > 0 for member in members)
    await leave(members)


@pytest.mark.parametrize(("count", "waits_ms"), [(1, 0), (2, LEASE_MS)])
async def test_draining_without_a_store_waits_for_it_as_long_as_a_lease_unless_alone(count: int, waits_ms: int) -> None:
    clock = TestClock()
    members = await joined(count, clock)
    Away.away = True
    draining = asyncio.create_task(members[0].drain(60_000))
    await clock.pass_ms(max(0, waits_ms - 500))
    assert not draining.done()
    await clock.pass_ms(1_000)
    assert draining.done() and not await draining
    Away.away = False
    await leave(members)


async def test_a_store_that_comes_back_meanwhile_is_told_and_the_others_hear_of_it() -> None:
    clock = TestClock()
    members = await joined(2, clock)
    Away.away = True
    draining = asyncio.create_task(members[0].drain(60_000))
    await clock.pass_ms(4_000)
    Away.away = False
    await clock.pass_ms(NOTICE_MS + 200)
    assert draining.done() and await draining
    assert [len(member.agents) for member in members] == [1, 1]
    await leave(members)


async def test_after_an_outage_longer_than_a_lease_one_that_drains_does_not_take_itself_for_the_last() -> None:
    clock = TestClock()
    members = await joined(2, clock)
    Away.away = True
    await clock.pass_ms(LEASE_MS + 2_500)
    Away.away = False
    draining = asyncio.create_task(members[0].drain(60_000))
    await clock.pass_ms(NOTICE_MS + BEAT_MS)
    assert draining.done() and await draining and not members[0].is_last
    await leave(members)


@pytest.mark.parametrize("beats_lost", [0, 2])
async def test_a_registration_that_a_killed_predecessor_left_on_its_way_does_not_end_the_start(beats_lost: int) -> None:
    clock, database = TestClock(), MemoryDatabase(cluster_id="c")
    address = AgentAddress(host="h", port=1)

    class Overtaken(Part):
        registrations = 0
        beats_lost = 0

        async def register_agent(self, address: AgentAddress, *, instead_of: WriterLease | None = None) -> WriterLease:
            lease = await self.inner.register_agent(address, instead_of=instead_of)
            self.registrations += 1
            if self.registrations == 1:
                await self.inner.register_agent(address, instead_of=lease)
            return lease

        async def heartbeat(self, lease: WriterLease, *, draining: bool = False) -> int:
            if self.registrations > 1 and self.beats_lost < beats_lost:
                self.beats_lost += 1
                raise MetadataUnavailableError("lost")
            return await self.inner.heartbeat(lease, draining=draining)

    member = Membership(
        metadata=Overtaken(MemoryMetadata(runtime=Runtime(clock=clock), database=database).agents),
        address=address,
        runtime=Runtime(clock=clock),
    )
    joining = asyncio.create_task(member.join())
    await clock.pass_ms(ALIVE_MS + BEAT_MS)
    await joining
    assert member.current.epoch == 2 + beats_lost
    assert [agent.epoch for agent in member.agents] == [member.current.epoch]
    assert member.now_ms() == clock.wall_ms(), "nothing is dated before the store's time is known"
    await member.leave()


async def test_one_that_was_away_for_longer_than_its_lease_is_told_at_the_first_beat_that_succeeds() -> None:
    clock = TestClock()
    members = await joined(2, clock)
    member, lapses = members[0], [0, 0]
    for number, each in enumerate(members):
        each.on_lapse = lambda number=number: lapses.__setitem__(number, lapses[number] + 1)
    lease, agents = member.current, member.agents
    # a store that is away for less time harms no agent
    Away.away = True
    await clock.pass_ms(LEASE_MS - BEAT_MS - 500)
    assert member.lease_runs
    Away.away = False
    await clock.pass_ms(BEAT_MS + 100)
    assert lapses == [0, 0]
    # when
    Away.away = True
    await clock.pass_ms(LEASE_MS + 100)
    assert not member.lease_runs, "and nothing may be answered from memory"
    Away.away = False
    await clock.pass_ms(BEAT_MS + 100)
    # then: although neither the epoch nor the list of agents has changed
    assert lapses == [1, 1]
    assert member.lease_runs
    assert (member.current, member.agents) == (lease, agents)
    await leave(members)


async def test_a_new_lease_after_being_fenced_is_told_as_one_that_ran_out() -> None:
    clock = TestClock()
    [member] = await joined(1, clock)
    lapses: list[int] = []
    member.on_lapse = lambda: lapses.append(member.current.epoch)
    fenced_by = await member._metadata.register_agent(AgentAddress(host="h", port=0), instead_of=member.current)
    await clock.pass_ms(ALIVE_MS + 100)
    assert lapses == [member.current.epoch]
    assert member.current.epoch > fenced_by.epoch
    await leave([member])


class AsleepClock(TestClock):
    """The clock of a machine that slept: its monotonic clock stood still, and the store's clock went on."""

    def __init__(self, store: TestClock) -> None:
        super().__init__()
        self._store = store
        self.asleep_ms = 0.0

    def monotonic_ms(self) -> float:
        return self._store.monotonic_ms() - self.asleep_ms


async def test_a_machine_that_slept_hears_from_the_store_that_its_lease_ran_out() -> None:
    store = TestClock()
    clock = AsleepClock(store)
    member = Membership(
        metadata=MemoryMetadata(runtime=Runtime(clock=store)).agents,
        address=AgentAddress(host="h", port=1),
        runtime=Runtime(clock=clock),
    )
    await member.join()
    lapses: list[int] = []
    member.on_lapse = lambda: lapses.append(1)
    await store.pass_ms(BEAT_MS + 100)
    assert not lapses
    clock.asleep_ms += LEASE_MS
    store.advance_ms(LEASE_MS)
    await store.pass_ms(BEAT_MS + 100)
    assert lapses == [1]
    await member.leave()


class WrongClock(TestClock):
    """A machine whose clock is `ahead_ms` ahead of the store's."""

    def __init__(self, store: TestClock) -> None:
        super().__init__()
        self._store = store
        self.ahead_ms = 0

    def wall_ms(self) -> int:
        return self._store.wall_ms() + self.ahead_ms

    def monotonic_ms(self) -> float:
        return self._store.monotonic_ms()


async def test_the_stores_time_is_known_between_beats_whatever_our_clock_says_and_a_wrong_clock_is_told_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = TestClock()
    metadata, clock, metrics = MemoryMetadata(runtime=Runtime(clock=store)).agents, WrongClock(store), Metrics()
    member = Membership(
        metadata=metadata, address=AgentAddress(host="h", port=1), runtime=Runtime(clock=clock, metrics=metrics)
    )
    said: list[int] = []
    for ahead_ms in (DAY_MS, -DAY_MS, 0, CLOCK_APART_MS + 1):
        clock.ahead_ms = ahead_ms
        if not said:
            await member.join()
        else:
            await store.pass_ms(BEAT_MS + 100)
        assert metrics.registry.get_sample_value("siltstone_clock_ahead_seconds") == ahead_ms / 1000
        said.append(capsys.readouterr().err.count("clock is wrong"))
        clock.ahead_ms += DAY_MS
        store.advance_ms(200)
        assert abs(member.now_ms() - store.wall_ms()) <= 1
    assert said == [1, 0, 0, 1]
    await member.leave()


async def test_all_name_the_same_agents_soon_after_one_came_left_or_was_missed() -> None:
    """ "Soon" means before their next heartbeats, except for the first agent that misses it."""
    clock = TestClock()
    members = await joined(3, clock)
    services = [service_of(member) for member in members]
    services.append(Away(MemoryMetadata(runtime=Runtime(clock=clock), database=services[0].database).agents))
    for service in services:
        service.listen()  # only from then on they hear announcements
    newcomer = Membership(metadata=services[-1], address=AgentAddress(host="h", port=9), runtime=Runtime(clock=clock))
    await newcomer.join()
    await clock.pass_ms(200)
    assert [len(member.agents) for member in [*members, newcomer]] == [4] * 4
    # when it drains
    draining = asyncio.create_task(newcomer.drain(NOTICE_MS))
    await clock.pass_ms(200)
    assert [len(member.agents) for member in members] == [3] * 3
    await clock.pass_ms(NOTICE_MS)
    await draining
    await newcomer.leave()
    # when one dies: the first to beat after the end of its lease tells the others
    members[0]._beats.cancel()  # type: ignore[union-attr]
    sizes: list[list[int]] = []
    for _ in range((LEASE_MS + 2 * BEAT_MS) // 50):
        await clock.pass_ms(50)
        sizes.append([len(member.agents) for member in members[1:]])
    assert sizes[-1] == [2, 2]
    assert sum(one != other for one, other in sizes) <= 5, sizes
    await leave(members)
