"""The upgrade to transactions with the program of the release before them, out of this repository's history.

Agents of that release work under ordinary writers and readers. The schema is migrated below them, then each agent is
replaced by the present program. As long as one older program is at work, transactional clients are refused in words
that they understand; when the last one has gone, they work. The other clients notice nothing of all this.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from metadata.migrations.migrate import plan_migration, schema_state
from metadata.migrations.schema_versions import SchemaState
from metadata.postgres.tables import SCHEMA_REVISION
from metadata.postgres.transactions.using import OLDEST_PROGRAM
from siltstone.kafka.client import connected
from tests.fixtures.compactors import CompactorProcess
from tests.fixtures.faults import AgentProcess, Processes, create_topic, in_thread
from tests.fixtures.idempotent_load import Load, check_fsck, fresh_seed
from tests.fixtures.older_program import PRESENT, OlderProgram, migrate_by, program_before
from tests.fixtures.postgres import AGENT_ROLE, COMPACTOR_ROLE, as_role
from tests.fixtures.releases import ours
from tests.fixtures.steady_readers import AiokafkaReader, LibrdkafkaReader
from tests.fixtures.waiting import wait_until
from tests.integration.faults.test_rolling_upgrade import WRITERS, check_readers
from wire.error_codes import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

MIGRATION = "0009_transactions.py"
OLDER = 8
PARTITIONS = 6
GRACE_MS = 30_000
TRANSACTION = 1
"""The type of a coordinator."""
SAID = "transactions are not supported yet: "
UNSUPPORTED = int(ErrorCode.UNSUPPORTED_VERSION)
ROUNDS = 3


@dataclass(frozen=True)
class Answers:
    """Of an agent to a transactional client."""

    coordinator: int
    producer_id: int
    features: Sequence[tuple[str, int]]


REFUSED = Answers(UNSUPPORTED, UNSUPPORTED, [])


def asked(address: str) -> Answers:
    async def ask() -> Answers:
        async with connected(address) as client:
            find = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=["nobody"])
            init = InitProducerIdRequest(transactional_id="nobody", transaction_timeout_ms=1_000)
            versions = ApiVersionsRequest(client_software_name="test", client_software_version="1")
            found = await client.call(find, FindCoordinatorResponse)
            made = await client.call(init, InitProducerIdResponse)
            told = await client.call(versions, ApiVersionsResponse)
            features = [(each.name, each.max_version_level) for each in told.finalized_features]
            return Answers(found.coordinators[0].error_code, made.error_code, features)

    return in_thread(ask())


def refusal_of_librdkafka(bootstrap: str) -> str:
    """What its user reads."""
    from confluent_kafka import KafkaException, Producer

    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "early", "log_level": 0})
    with pytest.raises(KafkaException) as refused:
        producer.init_transactions(30)
    return str(refused.value)


def use_transactions(bootstrap: str, topic: str, name: str) -> None:
    """Commit, abort, commit; a reader of committed records then has the first and the third."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(60)
    commit, abort = producer.commit_transaction, producer.abort_transaction
    for number, ends in enumerate((commit, abort, commit)):
        producer.begin_transaction()
        for record in range(10):
            producer.produce(topic, value=f"{number} {record}".encode(), partition=0)
        ends(60)
    wanted = [f"{number} {record}".encode() for number in (0, 2) for record in range(10)]
    reader = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "isolation.level": "read_committed", "log_level": 0}
    )
    found: list[bytes | None] = []
    try:
        reader.assign([TopicPartition(topic, 0, 0)])
        while len(found) < len(wanted):
            message = reader.poll(60)
            assert message is not None and message.error() is None, (message and message.error(), found)
            found.append(message.value())
    finally:
        reader.close()
    assert found == wanted


def programs_at_work(url: str) -> list[int]:
    return sorted(each.program for each in in_thread(plan_migration(url)).running)


@contextmanager
def older_agents(count: int, url: str, folder: Path, older: OlderProgram, **settings: object) -> Iterator[Processes]:
    urls = SimpleNamespace(url=url, agent_url=as_role(url, AGENT_ROLE))
    processes = Processes(urls, folder)  # type: ignore[arg-type]
    try:
        for _ in range(count):
            agent = processes.add(**settings)
            agent.become(*older.arguments())
            agent.begin_start()
        for agent in processes.agents:
            agent.await_ready()
        processes.until_all_know_all()
        for topic in ("t", "tx"):
            create_topic(processes.agents[0].address, topic, partitions=PARTITIONS)
        yield processes
    finally:
        processes.stop()


@contextmanager
def older_compactor(processes: Processes, url: str, folder: Path, older: OlderProgram) -> Iterator[CompactorProcess]:
    compactor = CompactorProcess(
        metadata_url=as_role(url, COMPACTOR_ROLE),
        store_url=processes.store_url,
        log=folder / "compactor.log",
        gc_grace_ms=GRACE_MS,
        orphan_age_ms=GRACE_MS,
    )
    module, numbers = compactor.program
    compactor.become(*older.arguments(module), numbers)
    compactor.start()
    try:
        yield compactor
    finally:
        compactor.stop()


def replace(processes: Processes, agent: AgentProcess, program: Sequence[str], *, is_killed: bool = False) -> float:
    """Returns the seconds without it."""
    began = time.monotonic()
    if is_killed:
        agent.kill()
    else:
        assert agent.stop() == 0, agent.log
    agent.become(*program)
    agent.start()
    processes.until_all_know_all()
    return time.monotonic() - began


@contextmanager
def clients(processes: Processes) -> Iterator[tuple[Load, Sequence[Any]]]:
    """Idempotent writers, and readers at the tail."""
    to: dict[str, Any] = {"topic": "t", "partitions": PARTITIONS}
    with ExitStack() as stack:
        load = stack.enter_context(Load(processes.bootstrap, writers=WRITERS, **to))
        readers = [stack.enter_context(each(processes.bootstrap, **to)) for each in (LibrdkafkaReader, AiokafkaReader)]
        load.until_more(50)
        yield load, readers


def finish(processes: Processes, load: Load, readers: Sequence[Any], url: str) -> int:
    """Nothing is lost or doubled, and nobody has logged an error. Returns the number of records."""
    acknowledged = load.finish_and_check(processes.agents[0].address)
    check_readers(readers, acknowledged)
    for agent in processes.agents:
        assert "Traceback" not in agent.log, agent.log
    check_fsck(metadata_url=url, store_url=processes.store_url)
    return len(acknowledged)


def older_is_refused(older: OlderProgram, url: str, store_url: str) -> None:
    words = ("fsck", "--quick", "--metadata", url, "--object-store", store_url)
    done = subprocess.run([sys.executable, *older.arguments(), *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "this program is too old" in done.stderr, done.stdout + done.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.soak)])
def test_agents_without_transactions_are_replaced_under_load_and_transactions_begin_behind_the_last(
    bare_postgres_url: str, tmp_path: Path, count: int
) -> None:
    url = bare_postgres_url
    older = program_before(MIGRATION, tmp_path / "older")
    assert "0008 (created)" in migrate_by(older.arguments(), url)
    with older_agents(count, url, tmp_path, older) as processes, clients(processes) as (load, readers):
        assert programs_at_work(url) == [OLDER] * count
        # when the schema is migrated below them, then they go on
        assert "0009 (" in migrate_by(PRESENT, url)
        load.until_more(50)
        assert programs_at_work(url) == [OLDER] * count
        assert in_thread(schema_state(url)) == SchemaState(SCHEMA_REVISION, 1)
        # and as long as one of them is at work, no agent lets anybody use transactions
        away_s: list[float] = []
        for number, agent in enumerate(processes.agents):
            assert programs_at_work(url) == [OLDER] * (count - number) + [ours()] * number
            assert [asked(each.address) for each in processes.agents] == [REFUSED] * count
            away_s.append(replace(processes, agent, PRESENT))
            load.until_more(30)
        # then all agents tell that transactions may be used, and they work beside the load
        told = [("transaction.version", 2)]
        wait_until(lambda: all(asked(each.address).features == told for each in processes.agents))
        use_transactions(processes.bootstrap, "tx", "tx")
        load.until_more(30)
        records = finish(processes, load, readers, url)
        print(f"{records} records, agents away for", *(f"{each:.1f} s" for each in away_s))
        assert in_thread(schema_state(url)) == SchemaState(SCHEMA_REVISION, OLDEST_PROGRAM)
        older_is_refused(older, url, processes.store_url)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_upgrades_that_take_detours_end_in_transactions_too(bare_postgres_url: str, tmp_path: Path) -> None:
    """Agents come back as the older program or the present one, stopped or killed, beside an older compactor. That one
    stays until the end: were it away while all agents are new, transactions would begin, and no older program would
    start again."""
    url = bare_postgres_url
    chance = random.Random(fresh_seed())
    older = program_before(MIGRATION, tmp_path / "older")
    migrate_by(older.arguments(), url)
    with (
        older_agents(3, url, tmp_path, older, gc_grace_ms=GRACE_MS) as processes,
        older_compactor(processes, url, tmp_path, older) as compactor,
        clients(processes) as (load, readers),
    ):
        migrate_by(PRESENT, url)
        assert "nothing to do" in migrate_by(older.arguments(), url, roles=False)
        assert in_thread(schema_state(url)) == SchemaState(SCHEMA_REVISION, 1)
        for number in range(ROUNDS):
            for agent in chance.sample(processes.agents, 3):
                program = chance.choice([PRESENT, older.arguments()]) if number < ROUNDS - 1 else PRESENT
                replace(processes, agent, program, is_killed=chance.random() < 0.3)
                load.until_more(50)
            assert OLDER in programs_at_work(url)
            assert [asked(each.address) for each in processes.agents] == [REFUSED] * 3
            refusal = refusal_of_librdkafka(processes.bootstrap)
            assert SAID in refusal, refusal
        # then the older compactor merges what agents of the present program commit, until it is the last to go
        assert programs_at_work(url) == [OLDER, *[ours()] * 3]
        merged = compactor.metric("merges_total")
        wait_until(lambda: compactor.metric("merges_total") > merged)
        assert compactor.stop() == 0
        compactor.become("-m", *compactor.program)
        compactor.start()
        told = [("transaction.version", 2)]
        wait_until(lambda: all(asked(each.address).features == told for each in processes.agents))
        use_transactions(processes.bootstrap, "tx", "tx")
        load.until_more(30)
        wait_until(lambda: compactor.metric("merges_total") > 0)
        assert compactor.stop() == 0 and "Traceback" not in compactor.log, compactor.log
        records = finish(processes, load, readers, url)
        print(f"{records} records")
        older_is_refused(older, url, processes.store_url)
