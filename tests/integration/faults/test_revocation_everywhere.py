"""Rights that are taken away while agents are cut off from Postgres, stopped, or slow: three processes, each with a
proxy of its own before Postgres. Readers sit at every agent throughout and note when they asked for what they got."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from agents.request_context import ANONYMOUS
from metadata.contract.leases import LEASE_MS
from metadata.urls import open_metadata
from runtime.errors import UnavailableError
from security.acls.values import AclFilter, Operation
from security.scram import Mechanism, salted_password
from siltstone.kafka.access.acls import create_acls, delete_acls
from siltstone.kafka.access.users import alter_users
from siltstone.kafka.client import connected
from siltstone.kafka.security.values import ClientSecurity
from tests.fixtures.acls import allow, everything_to
from tests.fixtures.faults import AgentProcess, Processes
from tests.fixtures.s3 import free_port
from tests.fixtures.unsteady_proxy import UnsteadyProxy
from tests.fixtures.waiting import until
from tests.fixtures.watching_readers import Reader, batch_of_now, now_s
from wire.messages.scram_credentials import ScramCredentialUpsertion

TOPIC = "orders"
ROUNDS = 4
FAULTS = ("steady", "cut off", "frozen", "stopped")
SLOW_MS = (100.0, 450.0)
"""For each piece that an agent sends to Postgres; most statements are two or three."""
AFTER_S = 3.0
"""So long after the answer the faults go on, and again when they are over."""
ANSWER_S_MAX = LEASE_MS / 1000 + 5
"""The lease, and slack for a busy machine."""
SLOW_S_MAX = 15
"""On top, while Postgres is slow: a change is some ten statements, and two admins take turns."""
SHA_256 = Mechanism.SCRAM_SHA_256


def as_user(name: str) -> ClientSecurity:
    return ClientSecurity(
        protocol="SASL_PLAINTEXT",
        mechanism=SHA_256.sasl_name,
        username=name,
        password=f"{name}-secret",
        source="client.properties",
    )


@dataclass
class Place:
    """An agent, the way it has to Postgres, and its listener for those who log in."""

    agent: AgentProcess
    proxy: UnsteadyProxy
    address: str

    def strike(self, fault: str) -> None:
        if fault == "cut off":
            self.proxy.leave()
        elif fault == "frozen":
            self.proxy.is_frozen = True
        elif fault == "stopped":
            self.agent.freeze()

    def heal(self) -> None:
        self.proxy.steady()
        self.agent.thaw()


@dataclass
class Revoked:
    """A user who may read the topic, until a change takes that away."""

    name: str
    by_deletion: bool
    """The user is deleted, not the ACL."""
    readers: Sequence[Reader]
    asked_s: float = float("inf")
    answered_s: float = float("inf")

    async def revoke(self, address: str) -> None:
        async with connected(address) as client:
            self.asked_s = now_s()
            if self.by_deletion:
                await alter_users(client, deletions=[(self.name, SHA_256)])
            else:
                await delete_acls(client, [AclFilter(principal=f"User:{self.name}")])
            self.answered_s = now_s()

    def check(self) -> None:
        for reader in self.readers:
            about = (self.name, reader.address, "from start" if reader.from_start else "session")
            assert not any(at_s < self.asked_s for at_s in reader.refused_s), ("refused before", *about)
            assert not any(told.asked_s > self.answered_s for told in reader.told), ("answered after", *about)
            late = [made_s - self.answered_s for told in reader.told for made_s in told.made_s]
            assert max(late) <= 0, ("saw a record that was made after", *about, max(late))


@dataclass
class Fleet:
    processes: Processes
    places: Sequence[Place]
    witnesses: list[Reader] = field(default_factory=list[Reader])
    produced: int = 0

    @property
    def steady(self) -> Place:
        return self.places[0]

    def readers_of(self, name: str) -> list[Reader]:
        return [
            Reader(place.address, as_user(name), TOPIC, from_start=from_start)
            for place in self.places
            for from_start in (False, True)
        ]

    async def let_in(self, name: str) -> list[Reader]:
        """A new user who may read, with readers at every agent that have read."""
        salt = b"salt of " + name.encode()
        upsertion = ScramCredentialUpsertion(
            name=name,
            mechanism=SHA_256,
            iterations=4_096,
            salt=salt,
            salted_password=salted_password(SHA_256, f"{name}-secret", salt, 4_096),
        )
        async with connected(self.steady.agent.address) as client:
            await alter_users(client, upsertions=[upsertion])
            await create_acls(client, [allow(Operation.READ, TOPIC, to=f"User:{name}")])
        readers = self.readers_of(name)
        for reader in readers:
            reader.start()
        await until(lambda: all(reader.told for reader in readers))
        return readers

    async def produce_for_ever(self) -> None:
        while True:
            with suppress(UnavailableError):
                async with connected(self.steady.agent.address, timeout_ms=20_000) as client:
                    while True:
                        await client.produce(TOPIC, 0, batch_of_now())
                        self.produced += 1
                        await asyncio.sleep(0.05)

    def behind(self) -> int:
        """Agents with a running lease that have not taken in the last change."""
        return self.processes.postgres.value(
            "SELECT count(*) FROM agents"
            " WHERE lease_until_ms > clock_ms() AND seen_change < (SELECT max(change_id) FROM changes)"
        )

    async def until_news_reach(self, readers: Sequence[Reader]) -> None:
        since_s = now_s()
        await until(lambda: all(reader.newest_s > since_s for reader in readers if not reader.from_start))


@asynccontextmanager
async def fleet_of_three(processes: Processes) -> AsyncIterator[Fleet]:
    metadata = open_metadata(processes.postgres.url)
    await metadata.open()
    # admins and the producer come by the listener that asks nobody who it is
    await metadata.security.create_acls(list(everything_to(ANONYMOUS)))
    await metadata.close()
    places: list[Place] = []
    proxies = [UnsteadyProxy(*processes.postgres.address, seed=number) for number in range(3)]
    with proxies[0], proxies[1], proxies[2]:
        for proxy in proxies:
            address = f"127.0.0.1:{free_port()}"
            settings = {
                "acl.mode": "on",
                "listener.people.address": address,
                "listener.people.protocol": "SASL_PLAINTEXT",
            }
            url = processes.postgres.agent_url.replace(f":{processes.postgres.address[1]}/", f":{proxy.port}/")
            places.append(Place(processes.add(metadata_url=url, **settings), proxy, address))
        for place in places:
            place.agent.begin_start()
        for place in places:
            await asyncio.to_thread(place.agent.await_ready)
        fleet = Fleet(processes, places)
        async with connected(fleet.steady.agent.address) as client:
            await client.create_topic(TOPIC, partitions=1)
        producing = asyncio.create_task(fleet.produce_for_ever())
        try:
            fleet.witnesses = await fleet.let_in("witness")
            yield fleet
        finally:
            for place in places:
                place.heal()
            producing.cancel()
            await asyncio.gather(producing, return_exceptions=True)
            await asyncio.gather(*(reader.stop() for reader in fleet.witnesses))
            await asyncio.to_thread(processes.stop)


async def one_round(fleet: Fleet, number: int, chance: random.Random) -> None:
    revoked = [
        Revoked(name, chance.random() < 0.5, await fleet.let_in(name)) for name in (f"ann{number}", f"bob{number}")
    ]
    await fleet.until_news_reach(fleet.witnesses)
    faults = [chance.choice(FAULTS), chance.choice(FAULTS)]
    is_slow = chance.random() < 0.5
    print(f"round {number}: {faults}{' slow' if is_slow else ''}", end="", flush=True)
    for place, fault in zip(fleet.places[1:], faults, strict=True):
        place.strike(fault)
    if is_slow:
        for place in fleet.places:
            place.proxy.delay_ms = SLOW_MS
    await asyncio.sleep(chance.uniform(0, LEASE_MS / 1000 + 2))  # within the lease, or after it
    # two admins at a time
    await asyncio.gather(*(each.revoke(fleet.steady.agent.address) for each in revoked))
    assert await asyncio.to_thread(fleet.behind) == 0
    produced = fleet.produced
    await asyncio.sleep(AFTER_S)
    for place in chance.sample(fleet.places[1:], 2):
        place.heal()
        await asyncio.sleep(chance.choice((0, 1)))
    fleet.steady.heal()
    await fleet.until_news_reach(fleet.witnesses)
    await asyncio.sleep(AFTER_S)
    assert fleet.produced > produced
    for each in revoked:
        each.check()
        assert all(reader.refused_s or not each.by_deletion for reader in each.readers)
        await asyncio.gather(*(reader.stop() for reader in each.readers))
    assert not any(reader.refused_s for reader in fleet.witnesses)
    took = [f"{each.answered_s - each.asked_s:.1f} s{' (user)' if each.by_deletion else ''}" for each in revoked]
    answer_s_max = ANSWER_S_MAX + SLOW_S_MAX * is_slow
    assert all(each.answered_s - each.asked_s <= answer_s_max for each in revoked), (faults, is_slow, took)
    print(f": answered after {', '.join(took)}; {fleet.produced} records", flush=True)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_nothing_passes_at_any_agent_once_the_change_is_answered(processes: Processes) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    chance = random.Random(seed)
    async with fleet_of_three(processes) as fleet:
        for number in range(ROUNDS):
            await one_round(fleet, number, chance)
