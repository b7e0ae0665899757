"""`siltstone erase` of keys with records of committed, aborted and open transactions, beside an agent, a compactor and
Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from metadata.urls import open_metadata
from siltstone.cli.erase import request
from storage.local import LocalStore
from tests.fixtures.agents import Dial, StartAgent
from tests.fixtures.compactors import StartCompactor
from tests.fixtures.transactional_log import Producer, TransactionalWriter, Write
from tests.fixtures.waiting import until
from tests.integration.siltstone.test_erase_cli import COMPACTED, GRACE_MS, NEW_MS, OLD_MS, QUICK, T_MS, World
from wire.records import NewRecord


@pytest.fixture
async def world(postgres_url: str, start_agent: StartAgent, dial: Dial, tmp_path: Path) -> AsyncIterator[World]:
    metadata = open_metadata(postgres_url)
    await metadata.open()
    agent = await start_agent(store=LocalStore(tmp_path / "objects"), metadata=metadata, gc_grace_ms=GRACE_MS)
    yield World(postgres_url, tmp_path / "objects", metadata, agent, await dial.kafka(agent.address))
    await agent.agent.stop()
    await metadata.close()


def record(key: str, value: str | None, at_ms: int = OLD_MS) -> NewRecord:
    return NewRecord(at_ms, key.encode(), None if value is None else value.encode())


async def producers(world: World, topic: str, *names: str) -> tuple[TransactionalWriter, list[Producer]]:
    """A writer and its producers at another agent, which no client is sent to."""
    found = next(each for each in await world.metadata.agents.list_topics() if each.name == topic)
    writer = await TransactionalWriter.start(world.metadata, world.store, found)
    made = [await writer.producer(name) for name in names]
    await writer.leave()
    return writer, made


async def heard(world: World) -> None:
    await world.agent.agent._follower.catch_up()


async def reasons(world: World) -> tuple[str, set[str]]:
    (state,) = (await world.json("status", "1"))["erasures"]
    return state["stage"], {each["reason"] for each in state["waits_on"]}


async def only_the_transaction_is_left(world: World) -> bool:
    return await reasons(world) == ("erasing", {"an open transaction"})


@pytest.mark.parametrize("commits", [True, False])
async def test_an_erasure_waits_on_a_transaction_by_name_and_is_done_after_its_end(
    world: World, start_compactor: StartCompactor, commits: bool
) -> None:
    # given a key with records of no transaction, of an aborted one and of an open one
    await world.create("visits")
    writer, (bad, slow) = await producers(world, "visits", "bad", "slow")
    await writer.write([Write(0, [record("ada", "in plain"), record("bob", "stays")])])
    await writer.write([Write(0, [record("ada", "in an aborted one")], bad)])
    await writer.end([(bad, False)])
    await writer.write([Write(0, [record("ada", "in an open one"), record("bob", "bob's")], slow)])
    await heard(world)
    await start_compactor(store=world.store, metadata=world.metadata, **QUICK)
    # when
    asked = await world.erase("visits", "--key", "ada", "--yes", "--wait", "--timeout", "1", "--deadline", "1h")
    # then it waits, though the bytes go
    assert asked.exit_code == 1 and "erasure 1 is not done" in asked.stderr, asked.output
    await until(lambda: only_the_transaction_is_left(world))
    assert world.holding("in plain", "in an aborted one", "in an open one") == []
    waits = (
        f"waits on: transaction 'slow' of producer {slow.producer_id}, open since offset 4 of partition 0: readers of"
    )
    assert waits in (await world.run("status", "1")).stdout
    # and when the transaction ends, it is done
    await writer.end([(slow, commits)])
    await heard(world)

    async def is_done() -> bool:
        return await reasons(world) == ("done", set())

    await until(is_done)
    assert (await world.run("verify", "1")).exit_code == 0
    assert [value for _, _, value in await world.values("visits") if value in ("stays", "bob's")] == ["stays", "bob's"]


async def test_an_aborted_tombstone_is_no_deletion_and_aborted_values_go_too(
    world: World, start_compactor: StartCompactor
) -> None:
    # given a committed value behind which a tombstone was aborted, and a tombstone behind which a value was
    await world.create("users", COMPACTED)
    await world.write("users", ("ada-77", "ada@old"), ("zoe-78", "zoe@old"), ("zoe-78", None), ("bob", "bob@old"))
    writer, (bad,) = await producers(world, "users", "bad")
    aborted = [record("ada-77", None), record("zoe-78", "zoe@aborted"), record("eve-79", "eve@aborted")]
    await writer.write([Write(0, aborted, bad)])
    await writer.end([(bad, False)])
    await heard(world)
    keys = [word for key in ("ada-77", "zoe-78", "eve-79") for word in ("--key", key)]
    # when
    asked = await world.erase("users", *keys, "--yes", "--json", "--deadline", "3d")
    # then readers hear of the deletion of what they saw
    assert asked.exit_code == 0, asked.output
    assert [each[1:] for each in await world.values("users") if each[0] > 7] == [
        ("ada-77", None),
        ("zoe-78", None),
        ("eve-79", None),
    ]
    # and when it is done, nothing of the keys is left in the bucket
    await start_compactor(store=world.store, metadata=world.metadata, **QUICK)
    waited = await world.erase("users", *keys, "--yes", "--wait", "--timeout", "120")
    assert waited.exit_code == 0, waited.output
    assert world.holding("ada-77", "zoe-78", "eve-79", "@aborted") == []
    # Markers have keys of their own.
    names = {"ada-77", "zoe-78", "eve-79", "bob"}
    assert [each[1:] for each in await world.values("users") if each[1] in names] == [("bob", "bob@old")]


async def test_with_before_the_command_waits_for_open_transactions_before_it_judges(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    tell = request.tell
    monkeypatch.setattr(request, "tell", lambda line: (said.append(line), tell(line)))
    await world.create("users", COMPACTED)
    await world.write("users", ("ada", "old"), ("bob", "old"))
    writer, (slow, bad) = await producers(world, "users", "slow", "bad")
    await writer.write([Write(0, [record("ada", "new", NEW_MS)], slow), Write(0, [record("bob", "new", NEW_MS)], bad)])
    await heard(world)
    keys = ("--key", "ada", "--key", "bob", "--before", str(T_MS))
    asking: asyncio.Task[Any] = asyncio.create_task(world.erase("users", *keys, "--yes", "--json"))
    await until(lambda: asking.done() or any("waiting on" in line for line in said))
    await asyncio.sleep(1)  # it looks twice a second
    assert not asking.done() and await world.metadata.erasures.erasures() == []
    await writer.end([(slow, True), (bad, False)])
    await heard(world)
    asked = await asking
    assert asked.exit_code == 0, asked.output
    waits = f"waiting on transaction 'slow' of producer {slow.producer_id}, open since offset 2 of partition 0"
    assert waits in asked.stderr
    # then the committed newer value stays, and the key whose newer value was aborted is deleted
    assert [each for each in await world.values("users") if each[0] > 5] == [(6, "bob", None)]
