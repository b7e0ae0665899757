"""`siltstone transactions` at an agent: who may abort, what changes between look and abort, which ids are read."""

from __future__ import annotations

import asyncio
import re

import pytest
from click.testing import CliRunner, Result

from agents.request_context import ANONYMOUS
from metadata.transactions.contract import TransactionState
from runtime.clock import SystemClock
from security.acls.values import CLUSTER_NAME, Operation, ResourceType
from siltstone.cli import main
from siltstone.cli.transactions import reading
from siltstone.kafka.client import KafkaError
from siltstone.kafka.transactions import abort, look
from tests.fixtures.agents import Dial, RunningAgent, StartAgent
from tests.fixtures.log_lines import LogLines
from tests.fixtures.transaction_clients import TransactionalClient
from tests.integration.agents.transactions.test_transaction_requests import Served, allow, serve
from wire.error_codes import ErrorCode


async def run(served: Served, *words: str, code: int) -> Result:
    words = ("transactions", "abort", *words, "--bootstrap", served.running.address)
    ran = await asyncio.to_thread(CliRunner(env={"SILTSTONE_DATA": None}).invoke, main, words)
    assert ran.exit_code == code, ran.output
    return ran


async def test_a_user_needs_to_see_the_id_its_topics_and_to_alter_the_cluster(
    start_agent: StartAgent, dial: Dial
) -> None:
    served = await serve(await start_agent(acl_mode="on"), dial)
    change = served.running.agent.authorizer.change
    see = allow(ResourceType.TRANSACTIONAL_ID, "tx", Operation.WRITE)
    change(added=[see])
    client = served.client()
    assert (await client.init()).error_code == 0
    await served.records.write(client, served.partition_ids[0])

    change(removed=[see])
    unseen = await run(served, "tx", "--yes", code=1)
    change(added=[allow(ResourceType.TRANSACTIONAL_ID, "tx", Operation.DESCRIBE)])
    without_topics = await run(served, "tx", "--yes", code=1)
    change(added=[allow(ResourceType.TOPIC, "t", Operation.DESCRIBE)])
    refused = await run(served, "tx", "--yes", code=1)
    state_before = await served.state()
    change(added=[allow(ResourceType.CLUSTER, CLUSTER_NAME, Operation.ALTER)])
    done = await run(served, "tx", "--yes", code=0)

    assert "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in unseen.stderr
    assert "--operation Describe --transactional-id ID" in unseen.stderr
    assert "is on no partition. It may hold back groups" in without_topics.stderr
    assert "Topics that you may not describe are not counted" in without_topics.stderr
    assert "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in without_topics.stderr
    assert "--operation Write --transactional-id ID" in without_topics.stderr
    assert "CLUSTER_AUTHORIZATION_FAILED" in refused.stderr and "--operation Alter --cluster" in refused.stderr
    assert state_before is TransactionState.ONGOING
    assert "aborted the transaction of 'tx' on 1 partition" in done.stdout
    assert (await served.state(), await served.stable()) == (TransactionState.COMPLETE_ABORT, (2, 2))


async def test_a_transaction_that_another_one_replaced_is_not_aborted(agent: RunningAgent, dial: Dial) -> None:
    served = await serve(agent, dial)
    client = served.client()
    await client.init()
    await served.records.write(client, served.partition_ids[0])
    seen = await look(agent.address, "tx", SystemClock())
    await client.init()
    await served.records.write(client, served.partition_ids[0])

    with pytest.raises(KafkaError, match="INVALID_PRODUCER_EPOCH") as refused:
        await abort(seen)

    assert "its producer began anew meanwhile" in refused.value.remedy
    assert await served.state() is TransactionState.ONGOING


async def test_a_transaction_that_ended_meanwhile_is_told(agent: RunningAgent, dial: Dial) -> None:
    served = await serve(agent, dial)
    client = served.client()
    await client.init()
    await served.records.write(client, served.partition_ids[0])
    seen = await look(agent.address, "tx", SystemClock())
    assert await client.end(version=1) == 0

    with pytest.raises(KafkaError, match="INVALID_TXN_STATE") as refused:
        await abort(seen)

    assert refused.value.remedy == "it ended meanwhile: there is nothing to abort"
    assert await served.state() is TransactionState.COMPLETE_COMMIT


async def of_offsets(served: Served, name: str = "tx") -> TransactionalClient:
    client = served.client(name)
    await client.init()
    assert await client.join("g") == 0
    return client


async def test_a_transaction_without_a_partition_ends_as_if_its_producer_began(
    start_agent: StartAgent, dial: Dial, log_lines: LogLines
) -> None:
    served = await serve(await start_agent(acl_mode="on"), dial)
    rights = [
        allow(ResourceType.TRANSACTIONAL_ID, "tx", Operation.WRITE),
        allow(ResourceType.GROUP, "g", Operation.READ),
    ]
    served.running.agent.authorizer.change(added=rights)
    client = await of_offsets(served)

    seen = await look(served.running.address, "tx", SystemClock())
    await abort(seen)

    assert (seen.state, seen.topics) == ("Ongoing", {})
    (info,) = await served.metadata.transactions.transactions(["tx"])
    assert (info.state, info.started_ms) == (TransactionState.EMPTY, None)
    assert info.producer_id == client.producer_id and info.producer_epoch > client.epoch
    assert await client.end() == ErrorCode.PRODUCER_FENCED
    (line,) = log_lines.named("transaction aborted, because a producer of its id began")
    expected = {"transactional_id": "tx", "producer_id": client.producer_id, "principal": ANONYMOUS, "level": "info"}
    assert expected.items() <= line.items()
    with pytest.raises(KafkaError, match="INVALID_TXN_STATE"):
        await abort(seen)


async def test_a_transaction_without_a_partition_that_another_one_replaced_is_not_aborted(
    agent: RunningAgent, dial: Dial
) -> None:
    served = await serve(agent, dial)
    await of_offsets(served)
    seen = await look(agent.address, "tx", SystemClock())
    successor = await of_offsets(served)

    with pytest.raises(KafkaError, match="INVALID_TXN_STATE") as refused:
        await abort(seen)

    assert "nothing was done: look again" in refused.value.remedy
    assert await served.state() is TransactionState.ONGOING
    assert await successor.end(version=1) == 0


async def test_a_transaction_with_a_deleted_topic_alone_is_on_no_partition_and_is_aborted(
    agent: RunningAgent, dial: Dial
) -> None:
    served = await serve(agent, dial)
    client = served.client()
    await client.init()
    gone = await served.metadata.agents.create_topic("gone", partitions=1, configs={})
    assert await client.add(gone=[0]) == {("gone", 0): 0}
    await served.metadata.agents.delete_topic(gone.topic_id)

    done = await run(served, "tx", "--yes", code=0)

    assert "is on no partition" in done.stderr and "that you may see" not in done.stderr
    assert re.fullmatch(r"aborted the transaction of 'tx'; producer \d+, epoch 0, is fenced\n", done.stdout)
    assert await served.state() is TransactionState.EMPTY


async def test_an_abort_by_an_operator_is_logged_with_who_asked(
    agent: RunningAgent, dial: Dial, log_lines: LogLines
) -> None:
    served = await serve(agent, dial)
    client = served.client()
    await client.init()
    await served.records.write(client, served.partition_ids[0])
    seen = await look(agent.address, "tx", SystemClock())
    assert not log_lines.named("transaction aborted by an operator")

    await abort(seen)
    with pytest.raises(KafkaError):
        await abort(seen)

    (line,) = log_lines.named("transaction aborted by an operator")
    expected = {"transactional_id": "tx", "producer_id": client.producer_id, "principal": ANONYMOUS, "level": "warning"}
    assert expected.items() <= line.items()


async def test_ids_are_read_page_by_page_and_a_missing_one_is_told(
    agent: RunningAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = await serve(agent, dial)
    names = ["a", "b", "payments-1"]
    for name in names:
        await served.client(name).init()
    monkeypatch.setattr(reading, "PAGE_IDS", 2)

    everything = await reading.all_ids(served.metadata)
    _, two = await reading.named_ids(served.metadata, ["payments-1", "a"], places="")
    with pytest.raises(reading.UnknownTransactionalIdError, match="'payment-1'") as near:
        await reading.named_ids(served.metadata, ["a", "payment-1"], places="")
    with pytest.raises(reading.UnknownTransactionalIdError) as far:
        await reading.named_ids(served.metadata, ["zzz"], places=" --data d")

    assert [each.transactional_id for each in everything] == names
    assert [each.transactional_id for each in two] == ["payments-1", "a"]
    assert near.value.remedy == "did you mean 'payments-1'?"
    assert far.value.remedy == "`siltstone transactions list --data d` shows the ids"
