"""Processes that want one address: who waits, who gives up, and that no two fence each other for ever."""

from __future__ import annotations

import asyncio

import pytest

from agents.membership import Membership
from agents.registration import MORE_MS, DuplicateAgentError
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.leases import ALIVE_MS, BEAT_MS, AgentAddress, WriterLease
from metadata.memory.store import MemoryDatabase, MemoryMetadata
from runtime.runtime import Runtime
from tests.fixtures.log_lines import LogLines
from tests.fixtures.metadata_parts import Part
from tests.unit.agents.test_membership import TestClock

HERE = AgentAddress(host="h", port=9092)
MESSAGE = "another process runs and advertises h:9092 too: node id 1, epoch {epoch}; {done}"
REMEDY = "stop the other process, or give this one another address: the port of listen, or advertised.host"


class Line(Part):
    """A process's way to the store. `loses`: the answers to this many registrations are lost."""

    registrations = loses = 0
    asleep: asyncio.Event | None = None
    """While it is set and not done, no heartbeat goes out."""

    async def register_agent(self, address: AgentAddress, *, instead_of: WriterLease | None = None) -> WriterLease:
        self.registrations += 1
        lease = await self.inner.register_agent(address, instead_of=instead_of)
        if self.loses:
            self.loses -= 1
            raise MetadataUnavailableError("the answer was lost")
        return lease

    async def heartbeat(self, lease: WriterLease, *, draining: bool = False) -> int:
        if self.asleep is not None:
            await self.asleep.wait()
        return await self.inner.heartbeat(lease, draining=draining)


class Processes:
    """Processes that advertise one address."""

    def __init__(self) -> None:
        self.clock = TestClock()
        self.database = MemoryDatabase(cluster_id="c")
        self.halted: dict[Membership, Exception] = {}

    def new(self) -> tuple[Membership, Line]:
        runtime = Runtime(clock=self.clock)
        line = Line(MemoryMetadata(runtime=runtime, database=self.database).agents)
        member = Membership(metadata=line, address=HERE, runtime=runtime)
        member.on_fatal = lambda error: self.halted.setdefault(member, error)
        return member, line

    async def running(self) -> tuple[Membership, Line]:
        member, line = self.new()
        joining = asyncio.create_task(member.join())
        await self.clock.pass_ms(ALIVE_MS + 200)
        await joining
        return member, line

    async def killed(self) -> Membership:
        """It ran, and gave nothing back."""
        member, _ = await self.running()
        stop(member)
        return member

    @property
    def epoch(self) -> int:
        return self.database.writers[1].epoch


def stop(member: Membership) -> None:
    assert member._beats is not None
    member._beats.cancel()


async def test_who_comes_after_a_killed_process_waits_until_that_would_have_beaten_again(
    log_lines: LogLines,
) -> None:
    processes = Processes()
    await processes.killed()
    heir, line = processes.new()
    joining = asyncio.create_task(heir.join())
    await processes.clock.pass_ms(ALIVE_MS - BEAT_MS - 300)  # its last beat was up to BEAT_MS ago
    assert (joining.done(), line.registrations) == (False, 1)
    await processes.clock.pass_ms(BEAT_MS + 400)
    await joining
    assert (heir.current, line.registrations) == (WriterLease(writer_id=1, epoch=1), 2)
    [said] = log_lines.named("waits: the last process at this address may still run")
    assert (said["address"], said["node_id"], said["epoch"]) == ("h:9092", 1, 0)
    assert 1_000 < said["ms"] <= ALIVE_MS + MORE_MS
    await heir.leave()


async def test_who_comes_after_a_process_that_gave_its_lease_back_does_not_wait() -> None:
    processes = Processes()
    before, _ = await processes.running()
    await before.leave()
    heir, line = processes.new()
    await heir.join()
    assert (heir.current.epoch, line.registrations) == (1, 1)
    await heir.leave()


async def test_beside_a_living_process_another_one_gives_up_and_the_living_one_notices_nothing() -> None:
    processes = Processes()
    living, line = await processes.running()
    second, _ = processes.new()
    joining = asyncio.create_task(second.join())
    await processes.clock.pass_ms(ALIVE_MS + 200)
    # then
    with pytest.raises(DuplicateAgentError) as refused:
        await joining
    assert refused.value.message == MESSAGE.format(epoch=0, done="this one wrote nothing")
    assert refused.value.remedy == REMEDY
    await second.leave()  # as a start that failed does
    await processes.clock.pass_ms(2 * BEAT_MS)
    assert (living.current.epoch, line.registrations, processes.halted) == (0, 1, {})
    assert [agent.epoch for agent in living.agents] == [0]
    await living.leave()


async def test_two_that_start_at_one_moment_do_not_both_run() -> None:
    processes = Processes()
    members = [processes.new()[0] for _ in range(2)]
    joining = [asyncio.create_task(member.join()) for member in members]
    await processes.clock.pass_ms(ALIVE_MS + 200)
    answers = await asyncio.gather(*joining, return_exceptions=True)
    assert [type(answer) for answer in answers] == [type(None), DuplicateAgentError]
    assert processes.epoch == 0
    await members[0].leave()


async def test_of_two_that_wait_for_a_killed_one_one_runs_and_one_gives_up() -> None:
    processes = Processes()
    await processes.killed()
    members = [processes.new()[0] for _ in range(2)]
    starting = [asyncio.create_task(member.join()) for member in members]
    await processes.clock.pass_ms(4 * ALIVE_MS)
    assert all(each.done() for each in starting)
    assert {type(each.exception()) for each in starting} == {type(None), DuplicateAgentError}
    assert processes.epoch == 1
    await asyncio.gather(*(member.leave() for member in members))


async def test_one_whose_address_was_taken_while_it_slept_halts_and_the_other_goes_on() -> None:
    processes = Processes()
    sleeper, line = await processes.running()
    line.asleep = asyncio.Event()
    await processes.clock.pass_ms(2 * ALIVE_MS)
    heir, _ = await processes.running()
    assert heir.current.epoch == 1
    # when
    line.asleep.set()
    await processes.clock.pass_ms(2 * ALIVE_MS)
    # then
    [(halted, error)] = processes.halted.items()
    assert halted is sleeper
    assert isinstance(error, DuplicateAgentError)
    done = "it took the lease of this one, which wrote nothing since"
    assert error.message == MESSAGE.format(epoch=1, done=done)
    # and the sleeper tries no more
    await processes.clock.pass_ms(4 * ALIVE_MS)
    assert (heir.current.epoch, processes.epoch) == (1, 1)
    await sleeper.leave()
    assert [agent.epoch for agent in await heir._metadata.live_agents()] == [1]
    await heir.leave()


async def test_a_late_registration_of_a_dead_process_ends_neither_a_start_nor_a_running_agent() -> None:
    processes = Processes()
    await processes.killed()
    heir, line = processes.new()
    joining = asyncio.create_task(heir.join())
    await processes.clock.pass_ms(100)
    # when: the call of one more dead process takes the address while the heir waits for the first
    late = await line.inner.register_agent(HERE, instead_of=WriterLease(writer_id=1, epoch=0))
    await processes.clock.pass_ms(ALIVE_MS - 300)
    assert not joining.done()
    await processes.clock.pass_ms(ALIVE_MS)
    await joining
    assert heir.current.epoch == late.epoch + 1
    # and: one that comes later still fences the heir, stands still, and is fenced in turn
    late = await line.inner.register_agent(HERE, instead_of=heir.current)
    await processes.clock.pass_ms(ALIVE_MS + BEAT_MS)
    assert (heir.current.epoch, processes.halted) == (late.epoch + 1, {})
    await heir.leave()


async def test_a_registration_of_ours_whose_answer_was_lost_is_taken_over_when_it_stood_still() -> None:
    processes = Processes()
    member, line = await processes.running()
    line.loses = 2
    await line.inner.unregister_agent(member.current)
    await processes.clock.pass_ms(BEAT_MS + 2 * (ALIVE_MS + BEAT_MS))
    assert (line.loses, member.current.epoch, processes.halted) == (0, 3, {})
    await member.leave()
