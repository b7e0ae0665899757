"""An agent that is frozen (SIGSTOP) under load for longer than its lease. It wakes up with old requests, files and
commits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from time import sleep
from typing import Any

import pytest
from click.testing import CliRunner

from metadata.contract.leases import LEASE_MS
from siltstone.cli import main
from siltstone.kafka.client import connected
from tests.fixtures.faults import AgentProcess, Processes, create_topic, in_thread
from tests.fixtures.faulty_proxies import CommitProxy, Forwarder
from tests.fixtures.idempotent_load import LibrdkafkaWriter, Load, MakeWriter, check_fsck
from tests.fixtures.s3 import free_port
from tests.fixtures.waiting import wait_until

PARTITIONS = 24
"""Enough partitions that each of two agents is named for some. The id of the topic decides which, so it is chance."""
REQUEST_MS = 2_000
"""A client waits this long for an agent that does not answer."""


def patient_writer(name: str, **to: Any) -> LibrdkafkaWriter:
    options = {
        "request.timeout.ms": REQUEST_MS,
        "socket.timeout.ms": REQUEST_MS,
        "topic.metadata.refresh.interval.ms": 500,
    }
    return LibrdkafkaWriter(name, options=options, **to)


WRITERS: Sequence[MakeWriter] = (patient_writer, patient_writer)


def agents_named_by(agent: AgentProcess) -> set[int]:
    """The ports of the agents that Metadata names."""

    async def ask() -> set[int]:
        async with connected(agent.address) as client:
            return {broker.port for broker in (await client.metadata()).brokers}

    return in_thread(ask())


def files_committed(processes: Processes) -> Mapping[tuple[int, int], int]:
    """The number of committed files by writer and epoch."""
    rows = processes.postgres.query("SELECT writer_id, epoch, count(*) AS files FROM files GROUP BY 1, 2")
    return {(row["writer_id"], row["epoch"]): row["files"] for row in rows}


def until_both_commit(processes: Processes) -> None:
    """Wait until clients can know every agent: they write only to agents that Metadata names."""
    before = files_committed(processes)
    wait_until(lambda: sum(now > before.get(key, 0) for key, now in files_committed(processes).items()) >= 2)


def lease_lost(processes: Processes, *, really: bool) -> None:
    """The lease of a frozen agent expires and others serve its partitions. It wakes and continues under its lease,
    which nobody took. Everything it still holds is a retry for the metadata, or was stored in the meantime."""
    frozen, other = processes.start(2)
    create_topic(other.address, "t", partitions=PARTITIONS)
    with Load(processes.bootstrap, topic="t", partitions=PARTITIONS, writers=WRITERS) as load:
        load.until_more(50)
        until_both_commit(processes)
        frozen.freeze()
        if really:
            sleep(LEASE_MS / 1000 + 1)
        else:
            processes.postgres.end_lease(frozen.port)
        # then: Metadata names the other agent for every partition, and that agent is enough
        wait_until(lambda: agents_named_by(other) == {other.port})
        load.until_more(200)
        ended = processes.postgres.lease_until_ms(frozen.port)
        frozen.thaw()
        wait_until(lambda: processes.postgres.lease_until_ms(frozen.port) > ended)
        wait_until(lambda: agents_named_by(other) == {frozen.port, other.port})
        load.until_more(200)
        load.finish_and_check(frozen.address)
    assert set(files_committed(processes)) == {(writer, 0) for writer in (1, 2)}, "nobody had to be fenced"
    check_fsck(metadata_url=processes.postgres.url, store_url=processes.store_url)


def test_a_frozen_agent_wakes_when_its_lease_is_over(processes: Processes) -> None:
    lease_lost(processes, really=False)


@pytest.mark.soak
def test_a_frozen_agent_wakes_long_after_its_lease(processes: Processes) -> None:
    lease_lost(processes, really=True)


def test_topics_are_listed_beside_a_frozen_agent(processes: Processes) -> None:
    frozen, other = processes.start(2)
    create_topic(other.address, "t", partitions=64)  # each agent leads some
    wait_until(lambda: agents_named_by(other) == {frozen.port, other.port})
    frozen.freeze()
    listed = CliRunner().invoke(main, ["topics", "list", "--json", "--bootstrap", other.address])
    frozen.thaw()
    assert listed.exit_code == 0, listed.output
    [row] = json.loads(listed.stdout)
    assert (row["name"], row["partitions"], row["records"], row["size_bytes"]) == ("t", 64, 0, None)
    assert f"some sizes are not known: no agent answers at {frozen.address}" in listed.stderr


def replaced(processes: Processes, *, frozen_s: float) -> None:
    """A new process replaces a frozen one behind the same address. One commit of the frozen process is on its way and
    arrives later; more requests are in its sockets and were sent again elsewhere."""
    port = free_port()
    service = f"127.0.0.1:{port}"
    with (
        CommitProxy(*processes.postgres.address) as line,
        Forwarder(service, ("127.0.0.2", port)) as address,
    ):
        other = processes.add()
        slow_line = processes.postgres.url_through(line.port)
        frozen = processes.add(listen=f"127.0.0.2:{port}", advertised_host="127.0.0.1", metadata_url=slow_line)
        heir = processes.add(listen=f"127.0.0.3:{port}", advertised_host="127.0.0.1")
        for agent in (other, frozen):
            agent.begin_start()
        for agent in (other, frozen):
            agent.await_ready()
        create_topic(other.address, "t", partitions=PARTITIONS)
        bootstrap = f"{other.address},{service}"
        with Load(bootstrap, topic="t", partitions=PARTITIONS, writers=WRITERS) as load:
            load.until_more(50)
            until_both_commit(processes)
            line.holding = True
            wait_until(lambda: line.held > 0)
            frozen.freeze()
            [row] = processes.postgres.query("SELECT writer_id, epoch FROM writers WHERE port = $1", port)
            old = (row["writer_id"], row["epoch"])
            sleep(frozen_s)
            heir.start()
            address.to = ("127.0.0.3", port)
            address.cut_all()
            committed = files_committed(processes)[old]
            # when: the commit arrives, and its sender wakes some time later
            line.holding = False
            load.until_more(200)
            frozen.thaw()
            wait_until(lambda: "file given up error=NOT_LEADER_OR_FOLLOWER" in frozen.log)
            # and then it ends, because its heir runs, and the heir goes on
            assert frozen.await_end() == 1
            assert f"error: another process runs and advertises {service} too: node id {old[0]}, epoch 1" in frozen.log
            load.until_more(200)
            load.finish_and_check(bootstrap)
        assert processes.postgres.value("SELECT epoch FROM writers WHERE port = $1", port) == 1, "one of them goes on"
        assert files_committed(processes)[old] == committed, "committed under an epoch that was over"
        check_fsck(metadata_url=processes.postgres.url, store_url=processes.store_url)
        processes.stop()


def test_a_frozen_agent_whose_place_was_taken_commits_nothing_of_its_old_epoch(processes: Processes) -> None:
    replaced(processes, frozen_s=0)


@pytest.mark.soak
def test_an_agent_frozen_beyond_its_lease_whose_place_was_taken_commits_nothing(processes: Processes) -> None:
    replaced(processes, frozen_s=LEASE_MS / 1000 + 1)
