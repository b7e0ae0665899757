"""Postgres is stopped, stopped in the middle of commits, ends its sessions, or loses what is said between it and the
agents, under load. Nothing acknowledged is lost or doubled, and the agents go on by themselves, under the leases they
have."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage.cluster import check_cluster
from storage.local import LocalStore
from tests.fixtures.agents import StartAgent
from tests.fixtures.faults import Postgres, create_topic
from tests.fixtures.faulty_proxies import CommitProxy
from tests.fixtures.fleet import Fleet, fleet
from tests.fixtures.idempotent_load import LibrdkafkaWriter, Load, check_fsck, fresh_seed
from tests.fixtures.waiting import until

PARTITIONS = 4
WRITERS = (LibrdkafkaWriter, LibrdkafkaWriter)


@dataclass
class System:
    """Two agents, and a load on both."""

    postgres: Postgres
    fleet: Fleet
    load: Load
    objects: Path

    @property
    def bootstrap(self) -> str:
        return ",".join(each.address for each in self.fleet.agents)

    @property
    def commits_in_doubt(self) -> float:
        return sum(each.metric("commits_total", outcome="in_doubt") for each in self.fleet.agents)

    async def goes_on(self) -> None:
        """Wait until writers get answers and every agent renews its lease again."""
        before = await self._leases()
        await asyncio.to_thread(self.load.until_more, 50)

        async def beaten() -> bool:
            return all(until_ms > before[port] for port, until_ms in (await self._leases()).items())

        await until(beaten)

    async def check(self) -> None:
        """Check that everything can be read through the second agent, and that every invariant holds."""
        acknowledged = await asyncio.to_thread(self.load.finish_and_check, self.fleet[1].address)
        await asyncio.to_thread(check_fsck, metadata_url=self.postgres.url, store_url=self.objects.as_uri())
        print(f"{len(acknowledged)} records, {self.commits_in_doubt:.0f} commits in doubt")

    async def _leases(self) -> Mapping[int, int]:
        ports = [int(each.address.rpartition(":")[2]) for each in self.fleet.agents]
        return {port: await asyncio.to_thread(self.postgres.lease_until_ms, port) for port in ports}


@asynccontextmanager
async def system(
    start_agent: StartAgent, postgres: Postgres, tmp_path: Path, *, url: str = ""
) -> AsyncIterator[System]:
    """Files are small and many, so that a commit is in flight most of the time."""
    objects = tmp_path / "objects"
    agents = fleet(start_agent, 2, metadata_url=url or postgres.url, store=LocalStore(objects), produce_linger_ms=5)
    async with agents as running:
        identity = await running.services[0].cluster_identity()
        if await check_cluster(running[0].store, cluster_id=identity.cluster_id, store_bound=identity.store_bound):
            await running.services[0].bind_store()
        addresses = ",".join(each.address for each in running.agents)
        await asyncio.to_thread(create_topic, addresses, "t", partitions=PARTITIONS)
        epochs = [each.agent._membership.current.epoch for each in running.agents]  # type: ignore[union-attr]
        with Load(addresses, topic="t", partitions=PARTITIONS, writers=WRITERS) as load:
            await asyncio.to_thread(load.until_more, 50)
            yield System(postgres, running, load, objects)
        assert sum(each.metric("commits_total", outcome="given_up") for each in running.agents) == 0
        assert all(each.agent.ready and not each.agent.failed.done() for each in running.agents)
        assert epochs == [each.agent._membership.current.epoch for each in running.agents]  # type: ignore[union-attr]


async def stopped_for(start_agent: StartAgent, postgres: Postgres, tmp_path: Path, seconds: float) -> None:
    async with system(start_agent, postgres, tmp_path) as running:
        await asyncio.to_thread(postgres.stop)
        before = running.load.acknowledged
        await asyncio.sleep(seconds)
        in_flight = LibrdkafkaWriter.UNANSWERED_MAX * len(WRITERS)
        assert running.load.acknowledged <= before + in_flight, "acknowledged without a commit"
        await asyncio.to_thread(postgres.start)
        await running.goes_on()
        assert running.commits_in_doubt > 0
        await running.check()


async def test_postgres_may_be_away_for_a_while(start_agent: StartAgent, postgres: Postgres, tmp_path: Path) -> None:
    await stopped_for(start_agent, postgres, tmp_path, 3)


@pytest.mark.soak
@pytest.mark.parametrize("seconds", [10, 15])
async def test_postgres_may_be_away_until_every_lease_is_over(
    start_agent: StartAgent, postgres: Postgres, tmp_path: Path, seconds: float
) -> None:
    await stopped_for(start_agent, postgres, tmp_path, seconds)


async def crashed_often(start_agent: StartAgent, postgres: Postgres, tmp_path: Path, times: int) -> None:
    chance = random.Random(fresh_seed())
    async with system(start_agent, postgres, tmp_path) as running:
        for _ in range(times):
            await asyncio.sleep(chance.random() * 0.3)
            await asyncio.to_thread(postgres.stop_at_once)
            await asyncio.to_thread(postgres.start)
            await asyncio.to_thread(running.load.until_more, 50)
        await running.goes_on()
        assert running.commits_in_doubt > 0
        await running.check()


async def test_postgres_may_crash_in_the_middle_of_commits(
    start_agent: StartAgent, postgres: Postgres, tmp_path: Path
) -> None:
    await crashed_often(start_agent, postgres, tmp_path, 2)


@pytest.mark.soak
async def test_postgres_may_crash_again_and_again(start_agent: StartAgent, postgres: Postgres, tmp_path: Path) -> None:
    await crashed_often(start_agent, postgres, tmp_path, 20)


async def ended_often(start_agent: StartAgent, postgres: Postgres, tmp_path: Path, times: int) -> None:
    chance = random.Random(fresh_seed())
    async with system(start_agent, postgres, tmp_path) as running:
        ended = 0
        for _ in range(times):
            await asyncio.sleep(chance.random() * 0.1)
            ended += await asyncio.to_thread(postgres.end_backends)
        await running.goes_on()
        assert ended > times
        await running.check()


async def test_sessions_may_be_ended_again_and_again(
    start_agent: StartAgent, postgres: Postgres, tmp_path: Path
) -> None:
    await ended_often(start_agent, postgres, tmp_path, 30)


@pytest.mark.soak
async def test_sessions_may_be_ended_hundreds_of_times(
    start_agent: StartAgent, postgres: Postgres, tmp_path: Path
) -> None:
    await ended_often(start_agent, postgres, tmp_path, 500)


async def test_a_commit_whose_request_or_answer_is_lost_is_done_once(
    start_agent: StartAgent, postgres: Postgres, tmp_path: Path
) -> None:
    with CommitProxy(*postgres.address) as proxy:
        url = postgres.url_through(proxy.port)
        async with system(start_agent, postgres, tmp_path, url=url) as running:
            for _ in range(5):
                proxy.lose_requests, proxy.lose_answers = 1, 2
                await until(lambda: proxy.lose_requests == proxy.lose_answers == 0)
                await asyncio.to_thread(running.load.until_more, 10)
            assert (proxy.lost_requests, proxy.lost_answers) == (5, 10)
            # then: each of them is a commit in doubt, and no other commit is
            assert running.commits_in_doubt == 15
            await running.check()
