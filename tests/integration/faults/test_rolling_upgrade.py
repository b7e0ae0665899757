"""A rolling upgrade of three agents under load: the schema moves on, then each agent is replaced, one after another.

The migration is the test's own, through the product's machinery: it adds a column to every table that agents use.
The agents' next program is this one, told that it was made for that schema; while they are replaced, programs of both
releases work on the new schema side by side. Writers and readers are ordinary clients, and whatever they show to their
application, but that a connection was lost, is a finding.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from metadata.migrations.migrate import migrate_async, plan_migration, schema_state
from metadata.migrations.schema_versions import SchemaState, revision_of
from metadata.postgres.connection import connect
from tests.fixtures.faults import AgentProcess, Processes, create_topic, in_thread
from tests.fixtures.idempotent_load import AiokafkaWriter, Load, Place
from tests.fixtures.releases import ADDED, HOT_TABLES, command_of, next_release, ours, program_of
from tests.fixtures.steady_readers import AiokafkaReader, LibrdkafkaReader
from tests.fixtures.waiting import wait_until
from tests.integration.agents.test_draining import LibrdkafkaWriterThatListens, named

PARTITIONS = 6
SOAK_ROUNDS = 5


@contextmanager
def three_agents(postgres_url: str, folder: Path, **settings: object) -> Iterator[Processes]:
    processes = Processes(SimpleNamespace(url=postgres_url, agent_url=postgres_url), folder)  # type: ignore[arg-type]
    try:
        processes.start(3, **settings)
        create_topic(processes.agents[0].address, "t", partitions=PARTITIONS)
        wait_until(lambda: all_know_all(processes))
        yield processes
    finally:
        processes.stop()


def all_know_all(processes: Processes) -> bool:
    ports = {agent.port for agent in processes.agents}
    return all(named(agent.address) == ports for agent in processes.agents)


def replace(processes: Processes, agent: AgentProcess, version: int) -> float:
    """Stop the agent by SIGTERM and start it as the program for schema `version`. Returns the seconds without it."""
    began = time.monotonic()
    assert agent.stop() == 0, agent.log
    agent.become(*program_of(version))
    agent.start()
    wait_until(lambda: all_know_all(processes))
    return time.monotonic() - began


def programs_at_work(url: str) -> Sequence[int]:
    return [each.program for each in in_thread(plan_migration(url)).running]


def added_columns(url: str) -> int:
    async def ask() -> int:
        line = await connect(url)
        try:
            return await line.fetchval(
                "SELECT count(*) FROM information_schema.columns WHERE starts_with(column_name, $1)", ADDED
            )
        finally:
            await line.close()

    return in_thread(ask())


class Librdkafka(LibrdkafkaWriterThatListens):
    """Few records, so that the clients leave processor time to the agents."""

    PAUSE_S = 0.1


class Aiokafka(AiokafkaWriter):
    """The same."""

    PAUSE_S = 0.1


WRITERS = (Librdkafka, Aiokafka)


def check_readers(readers: Sequence[Any], acknowledged: dict[Place, bytes]) -> None:
    for reader in readers:
        reader.until(len(acknowledged))
        assert reader.found == acknowledged


def test_three_agents_are_replaced_one_by_one_after_a_migration_and_no_client_notices(
    postgres_url: str, tmp_path: Path
) -> None:
    to: dict[str, Any] = {"topic": "t", "partitions": PARTITIONS}
    following = ours() + 1
    with three_agents(postgres_url, tmp_path) as processes, ExitStack() as stack:
        bootstrap = processes.bootstrap
        load = stack.enter_context(Load(bootstrap, writers=WRITERS, **to))
        readers = [stack.enter_context(each(bootstrap, **to)) for each in (LibrdkafkaReader, AiokafkaReader)]
        load.until_more(100)
        # when the schema is upgraded below running agents
        in_thread(migrate_async(postgres_url, versions=next_release(tmp_path / "next")))
        assert in_thread(schema_state(postgres_url)) == SchemaState(revision_of(following), ours())
        assert added_columns(postgres_url) == len(HOT_TABLES)
        load.until_more(100)
        assert programs_at_work(postgres_url) == [ours()] * 3
        # and each agent is replaced in turn; the second comes back with the old release, as after a crash during an
        # upgrade
        away_s = []
        for agent, version in zip(processes.agents, (following, ours(), following), strict=True):
            away_s.append(replace(processes, agent, version))
            load.until_more(50)
        # then every acknowledged record is there once, and readers saw all records in order
        assert sorted(programs_at_work(postgres_url)) == [ours(), following, following]
        acknowledged = load.finish_and_check(processes.agents[0].address)
        check_readers(readers, acknowledged)
        print(f"{len(acknowledged)} records, agents away for", *(f"{each:.1f} s" for each in away_s))
        for agent in processes.agents:
            assert "not drained in time" not in agent.log
            assert "Traceback" not in agent.log, agent.log


class GroupMember:
    """A consumer of a group in its own process, which records what it did."""

    def __init__(self, kind: str, bootstrap: str, folder: Path) -> None:
        self._account = folder / f"{kind}.txt"
        command = [sys.executable, "-m", "tests.fixtures.group_member_process", kind, bootstrap, "g", "t"]
        with self._account.open("w") as out, (folder / f"{kind}.log").open("w") as log:
            self._process = subprocess.Popen(command, stdout=out, stderr=log)

    @property
    def is_ready(self) -> bool:
        return "ready" in self._account.read_text()

    def lines(self, kind: str) -> list[list[str]]:
        """The complete lines that begin with this text, split at blanks."""
        written = self._account.read_text().rpartition("\n")[0].splitlines()
        return [line.split(" ") for line in written if line.startswith(f"{kind} ")]

    def places(self, kind: str) -> list[Place]:
        return [(int(partition), int(offset)) for _, partition, offset in self.lines(kind)]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_round_after_round_with_a_consumer_group_nothing_is_lost_and_nothing_is_skipped(
    postgres_url: str, tmp_path: Path
) -> None:
    to: dict[str, Any] = {"topic": "t", "partitions": PARTITIONS}
    agents = {"group_min_session_timeout_ms": 3_000, "group_initial_rebalance_delay_ms": 50}
    with three_agents(postgres_url, tmp_path, **agents) as processes, ExitStack() as stack:
        bootstrap = processes.bootstrap
        load = stack.enter_context(Load(bootstrap, writers=WRITERS, **to))
        readers = [stack.enter_context(each(bootstrap, **to)) for each in (LibrdkafkaReader, AiokafkaReader)]
        members = [GroupMember(kind, bootstrap, tmp_path) for kind in ("confluent", "aiokafka")]
        for member in members:
            stack.callback(member.stop)
        wait_until(lambda: all(member.is_ready and member.places("c") for member in members), 60)
        for version in range(ours() + 1, ours() + 1 + SOAK_ROUNDS):
            # each schema accepts programs of the release before it, and none older
            versions = next_release(tmp_path / "next", version=version, oldest_program=version - 1)
            in_thread(migrate_async(postgres_url, versions=versions))
            load.until_more(100)
            for agent in processes.agents:
                away_s = replace(processes, agent, version)
                load.until_more(100)
                print(f"schema {version}: an agent was away for {away_s:.1f} s")
            assert programs_at_work(postgres_url) == [version] * 3
        acknowledged = load.finish_and_check(processes.agents[0].address)
        check_readers(readers, acknowledged)
        # the group processed every record and is at the end
        wait_until(lambda: {each for member in members for each in member.places("r")} >= acknowledged.keys(), 60)
        processed = Counter(place for member in members for place in member.places("r"))
        assert processed.keys() == acknowledged.keys()
        ends = {partition: 1 + max(offset for p, offset in acknowledged if p == partition) for partition in range(6)}
        wait_until(lambda: {place for member in members for place in member.places("c")} >= set(ends.items()), 60)
        refused = [line for member in members for line in member.lines("e")]
        twice = sum(1 for times in processed.values() if times > 1)
        print(
            f"{len(processed)} records, {twice} of them processed twice, {len(refused)} commits refused: {refused[:3]}"
        )
        for agent in processes.agents:
            assert "not drained in time" not in agent.log
            assert "Traceback" not in agent.log, agent.log
    # by a program of the last release: before it is accepted, none older than that
    words = ("fsck", "--metadata", postgres_url, "--object-store", processes.store_url)
    done = subprocess.run(command_of(ours() + SOAK_ROUNDS, *words), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.rstrip().endswith("clean"), done.stdout + done.stderr
