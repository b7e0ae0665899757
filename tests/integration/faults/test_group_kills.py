"""kill -9 of the agents that coordinate a group and of its members: generations continue, every record is processed,
commits never go back, and rebalances end."""

from __future__ import annotations

import asyncio
import itertools
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from siltstone.kafka.client import KafkaClient, connected
from tests.fixtures.faults import AgentProcess, Processes, create_topic, in_thread
from tests.fixtures.groups import GroupMember
from tests.fixtures.idempotent_load import LibrdkafkaWriter, Load, check_fsck, fresh_seed
from tests.fixtures.waiting import wait_until
from wire.error_codes import ErrorCode
from wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

PARTITIONS = 8
KINDS = ("aiokafka", "aiokafka", "aiokafka", "confluent", "confluent", "confluent")
SETTINGS = {"group_initial_rebalance_delay_ms": 200, "group_min_session_timeout_ms": 1_000}
CALM_S_MAX = 60
"""Time until a group is complete again: the lease of a dead owner, the session of a dead member, a rebalance."""


async def address_of_owner(client: KafkaClient, group_id: str) -> str:
    answer = await client.call(FindCoordinatorRequest(coordinator_keys=[group_id]), FindCoordinatorResponse)
    found = answer.coordinators[0]
    return f"{found.host}:{found.port}"


def owner_of(processes: Processes, group_id: str) -> AgentProcess:
    async def find() -> str:
        async with connected(",".join(agent.address for agent in processes.agents if agent.is_running)) as client:
            return await address_of_owner(client, group_id)

    address = in_thread(find())
    return next(agent for agent in processes.agents if agent.address == address)


# ---- the owner dies ------------------------------------------------------------------------------------------------


async def answered(member: GroupMember, addresses: Sequence[str]) -> ErrorCode:
    """A heartbeat as clients send it: find the coordinator, send, and repeat while the answer is NOT_COORDINATOR."""
    async with asyncio.timeout(30):
        for address in itertools.cycle(addresses):
            try:
                async with connected(address) as client:
                    owner = await address_of_owner(client, member.group_id)
                async with connected(owner) as member.client:
                    error = await member.heartbeat()
            except Exception:  # the agent is dead; the others will learn of it
                error = ErrorCode.NOT_COORDINATOR
            if not error.retriable:
                return error
            await asyncio.sleep(0.1)
    raise AssertionError("unreachable")


def test_members_go_on_in_their_generation_when_the_owner_is_killed(processes: Processes) -> None:
    processes.start(2, **SETTINGS)
    create_topic(processes.bootstrap, "t", partitions=4)
    victim = owner_of(processes, "g")
    [survivor] = [agent for agent in processes.agents if agent is not victim]

    async def form() -> list[GroupMember]:
        async with connected(victim.address) as one, connected(victim.address) as two:
            members = [GroupMember(client, session_timeout_ms=30_000) for client in (one, two)]
            assert set(await asyncio.gather(*(member.join() for member in members))) == {ErrorCode.NONE}
            await asyncio.gather(*(member.sync() for member in members))
            assert await members[0].commit({0: 5}) == {0: ErrorCode.NONE}
            return members

    async def go_on(members: list[GroupMember]) -> None:
        assert [await answered(member, [survivor.address]) for member in members] == [ErrorCode.NONE] * 2
        async with connected(survivor.address) as client:
            for number, member in enumerate(members):
                member.client = client
                assert (await member.sync()).assignment == member.member_id.encode()
                assert await member.commit({number: 6}) == {number: ErrorCode.NONE}

    members = in_thread(form())
    victim.kill()
    processes.postgres.end_lease(victim.port)
    in_thread(go_on(members))
    victim.start()
    assert survivor.metric("group_rebalances_total") == 0
    check_fsck(metadata_url=processes.postgres.url, store_url=processes.store_url)


# ---- members and agents die under load -----------------------------------------------------------------------------


class MemberProcess:
    def __init__(self, kind: str, processes: Processes, log: Path) -> None:
        self.kind, self._log = kind, log
        command = [sys.executable, "-m", "tests.fixtures.group_member_process"]
        with log.open("w") as out, log.with_suffix(".err").open("w") as err:
            self._process = subprocess.Popen(
                [*command, kind, processes.bootstrap, "g", "t"], stdout=out, stderr=err, text=True
            )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()

    def lines(self, kind: str) -> Iterator[tuple[int, int]]:
        """Pairs of partition and offset. A kill may have cut the last line."""
        for line in self._log.read_text().splitlines(keepends=True):
            words = line.split()
            if line.endswith("\n") and words[0] == kind:
                yield int(words[1]), int(words[2])

    @property
    def state(self) -> str:
        said = [line for line in self._log.read_text().splitlines() if line[:1] not in "rc" or line == "ready"]
        complained = self._log.with_suffix(".err").read_text()[-2000:]
        return f"{self.kind}, exit code {self._process.poll()}, said {said[-5:]}, {complained}"


class Crowd:
    """The present members of the group, and all former ones."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self._processes, self._folder = processes, folder
        self._numbers = itertools.count()
        self.all: list[MemberProcess] = []
        self.alive: list[MemberProcess] = []
        for kind in KINDS:
            self.add(kind)

    def add(self, kind: str) -> None:
        member = MemberProcess(kind, self._processes, self._folder / f"member-{next(self._numbers)}.log")
        self.all.append(member)
        self.alive.append(member)

    def kill_one(self, chance: random.Random) -> str:
        """A new member replaces it, under its own name."""
        victim = self.alive.pop(chance.randrange(len(self.alive)))
        victim.kill()
        self.add(victim.kind)
        return f"member ({victim.kind})"

    def done(self, kind: str) -> set[tuple[int, int]]:
        return {line for member in self.all for line in member.lines(kind)}

    def end(self) -> None:
        for member in self.alive:
            member.end()


def kill_an_agent(processes: Processes, chance: random.Random) -> str:
    """In half of the runs the others learn of its death before it is back. In half of the runs it owns the group."""
    victim = owner_of(processes, "g") if chance.random() < 0.5 else chance.choice(processes.agents)
    victim.kill()
    if chance.random() < 0.5:
        processes.postgres.end_lease(victim.port)
    time.sleep(chance.random() * 3)
    victim.start()
    return f"agent {victim.address}"


def committed(processes: Processes) -> dict[int, int]:
    rows = processes.postgres.query("SELECT partition, committed_offset FROM group_offsets")
    return {row["partition"]: row["committed_offset"] for row in rows}


class Watch:
    """Commits seen to go back."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._last: dict[int, int] = {}
        self.backwards: list[tuple[int, int, int]] = []

    def look(self) -> dict[int, int]:
        found = committed(self._processes)
        for partition, offset in found.items():
            before = self._last.get(partition, -1)
            if offset < before:
                self.backwards.append((partition, before, offset))
        self._last = found
        return found


def described(processes: Processes) -> Any:
    async def describe() -> Any:
        async with connected(owner_of(processes, "g").address) as client:
            answer = await client.call(DescribeGroupsRequest(groups=["g"]), DescribeGroupsResponse)
            return answer.groups[0]

    return in_thread(describe())


def group_is_whole(processes: Processes) -> bool:
    group = described(processes)
    return group.group_state == "Stable" and len(group.members) == len(KINDS)


def stays_whole(processes: Processes) -> bool:
    """No rebalance comes for 2 s."""
    rebalances = sum(agent.metric("group_rebalances_total") for agent in processes.agents)
    time.sleep(2)
    same = sum(agent.metric("group_rebalances_total") for agent in processes.agents) == rebalances
    return same and group_is_whole(processes)


def state(processes: Processes, crowd: Crowd) -> str:
    """The facts to print if the group does not become complete."""
    group = described(processes)
    lines = [f"{group.error_code} {group.group_state}, members: {sorted(each.member_id for each in group.members)}"]
    lines += [f"agent {agent.address}: {agent.log[-2000:]}" for agent in processes.agents]
    lines += [each.state for each in crowd.alive]
    return "\n".join(lines)


def kill_and_check(
    processes: Processes, folder: Path, *, kills: Sequence[int], seed: int, calm_s_max: float = 5
) -> None:
    chance = random.Random(seed)
    processes.start(2, **SETTINGS)
    processes.until_all_know_all()
    create_topic(processes.bootstrap, "t", partitions=PARTITIONS)
    crowd, watch = Crowd(processes, folder), Watch(processes)
    try:
        with Load(processes.bootstrap, topic="t", partitions=PARTITIONS, writers=[LibrdkafkaWriter]) as load:
            wait_until(lambda: group_is_whole(processes), CALM_S_MAX, lambda: state(processes, crowd))
            for what in kills:
                print(f"killed: {kill_an_agent(processes, chance) if what else crowd.kill_one(chance)}")
                ends = time.monotonic() + chance.random() * calm_s_max
                while time.monotonic() < ends:
                    watch.look()
                    time.sleep(0.05)
                load.until_more(20)
            acknowledged = load.finish_and_check(processes.bootstrap)
        ends_at: dict[int, int] = {}
        for partition, offset in acknowledged:
            ends_at[partition] = max(ends_at.get(partition, 0), offset + 1)
        # then: rebalances end, and the group reaches the end of every partition
        started = time.monotonic()
        wait_until(lambda: group_is_whole(processes), CALM_S_MAX, lambda: state(processes, crowd))
        wait_until(lambda: watch.look() == ends_at, CALM_S_MAX, lambda: state(processes, crowd))
        calm_s = time.monotonic() - started
        # A member that was killed may be noticed only now: nothing was written to its partitions after its last commit.
        wait_until(lambda: stays_whole(processes), CALM_S_MAX, lambda: state(processes, crowd))
        processed = crowd.done("r")
        assert acknowledged.keys() - processed == set(), "records that nobody processed"
        assert watch.backwards == []
        print(f"{len(acknowledged)} records, whole again and at the end after {calm_s:.1f} s")
    finally:
        crowd.end()
    check_fsck(metadata_url=processes.postgres.url, store_url=processes.store_url)


@pytest.mark.timeout(180)
def test_a_group_loses_nothing_when_its_owner_and_a_member_are_killed(processes: Processes, tmp_path: Path) -> None:
    kill_and_check(processes, tmp_path, kills=(1, 0), seed=fresh_seed(), calm_s_max=2)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_group_loses_nothing_in_ten_kills(processes: Processes, tmp_path: Path) -> None:
    seed = fresh_seed()
    kills = [0] * 5 + [1] * 5
    random.Random(seed).shuffle(kills)
    kill_and_check(processes, tmp_path, kills=kills, seed=seed)
