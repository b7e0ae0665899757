"""The newest record of a key is found in every place of the log, across the borders of the windows that are read."""

from __future__ import annotations

import pytest

from runtime.clock import SystemClock
from siltstone.kafka.admin import delete_records_before
from siltstone.kafka.client import KafkaClient
from siltstone.kafka.key_lookup import committed_logs, newest_record
from siltstone.kafka.retrying import RetryingClient
from tests.fixtures.agents import RunningAgent
from wire.records import NewRecord, build_batch

COUNT = 24


async def test_each_record_of_a_log_is_found_by_its_key_and_the_newest_of_several(
    agent: RunningAgent, client: KafkaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: 24 offsets, which are read as the last 3, the 12 before them, and the first 9
    monkeypatch.setattr("siltstone.kafka.key_lookup.FIRST_WINDOW", 3)
    await client.create_topic("t", partitions=1)
    # batches of two, so that windows begin inside of them
    for base in range(0, COUNT, 2):
        pairs = [(b"k%d" % at, b"%d" % at) for at in (base, base + 1)]
        await client.produce("t", 0, build_batch([NewRecord(1_000, key, value) for key, value in pairs]))
    told: list[str] = []

    async def newest(key: bytes) -> tuple[int, bytes | None] | None:
        logs = await committed_logs(steady, [("t", 0)], told=told.append)
        found = await newest_record(steady, ("t", 0), logs["t", 0], key, told=told.append)
        return None if found is None else (found.offset, found.value)

    async with RetryingClient(agent.address, SystemClock()) as steady:
        # then: every one of them is found
        for at in range(COUNT):
            assert await newest(b"k%d" % at) == (at, b"%d" % at)
        assert await newest(b"none") is None
        # and of two in one batch, in one window and in two, the newer one
        twice = build_batch([NewRecord(1_000, b"k20", value) for value in (b"old", b"new")])
        await client.produce("t", 0, twice)
        await client.produce("t", 0, build_batch([NewRecord(1_000, b"k3", b"again")]))
        assert await newest(b"k20") == (COUNT + 1, b"new")
        assert await newest(b"k3") == (COUNT + 2, b"again")
        # and nothing below the log start is looked for
        await delete_records_before(client, {("t", 0): 5})
        assert await newest(b"k4") is None and await newest(b"k5") == (5, b"5")
    assert told == []
