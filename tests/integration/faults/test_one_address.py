"""Two agent processes that advertise one address, and a process that comes back at the address of a killed one."""

from __future__ import annotations

import time

from metadata.contract.leases import ALIVE_MS
from tests.fixtures.faults import Processes, create_topic
from tests.fixtures.idempotent_load import LibrdkafkaWriter, Load, check_fsck
from tests.fixtures.s3 import free_port

WRITERS = (LibrdkafkaWriter, LibrdkafkaWriter)
START_AND_STOP_S = 12.0
"""For an interpreter, its imports, and the connections, on a machine with other work."""


def epoch_at(processes: Processes, port: int) -> int:
    return processes.postgres.value("SELECT epoch FROM writers WHERE port = $1", port)


def test_beside_a_running_agent_a_second_one_of_its_address_ends_and_clients_notice_nothing(
    processes: Processes,
) -> None:
    # given two configurations that differ only in the interface on which they listen
    port = free_port()
    first = processes.add(listen=f"127.0.0.1:{port}")
    second = processes.add(listen=f"127.0.0.2:{port}", advertised_host="127.0.0.1")
    first.start()
    create_topic(first.address, "t", partitions=2)
    with Load(first.address, topic="t", partitions=2, writers=WRITERS) as load:
        load.until_more(50)
        # when
        second.begin_start()
        assert second.await_end() == 1
        # then
        other = f"another process runs and advertises {first.address} too: node id 1, epoch 0"
        assert f"error: {other}; this one wrote nothing" in second.log
        assert "remedy: stop the other process, or give this one another address" in second.log
        assert "waits: the last process at this address may still run" in second.log
        load.until_more(50)
        load.finish_and_check(first.address)
    assert (first.is_running, epoch_at(processes, port), first.metric("lease_errors_total")) == (True, 0, 0)
    check_fsck(metadata_url=processes.postgres.url, store_url=processes.store_url)


def test_after_a_kill_an_agent_is_back_at_its_address_within_seconds(processes: Processes) -> None:
    [agent] = processes.start(1)
    create_topic(agent.address, "t", partitions=2)
    agent.kill()
    # when
    began = time.monotonic()
    agent.start()
    took_s = time.monotonic() - began
    print(f"back after {took_s:.1f} s")
    # then
    assert took_s < ALIVE_MS / 1000 + START_AND_STOP_S
    assert epoch_at(processes, agent.port) == 1
    with Load(agent.address, topic="t", partitions=2, writers=WRITERS) as load:
        load.until_more(50)
        load.finish_and_check(agent.address)
    # and after an orderly stop it need not wait
    assert agent.stop() == 0
    waits = agent.log.count("waits: the last process")
    agent.start()
    assert (agent.log.count("waits: the last process"), epoch_at(processes, agent.port)) == (waits, 2)
