"""Agents answer clients before transactions may be used, and before they know whether these may."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from metadata.contract.errors import MetadataUnavailableError
from metadata.memory.store import MemoryMetadata
from tests.fixtures.agents import Dial, StartAgent
from tests.fixtures.metadata_parts import Wrapped
from tests.integration.agents.transactions.test_transaction_requests import (
    E,
    Served,
    aborted,
    described,
    listed,
    serve,
    versions,
)
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse


@pytest.fixture
async def unready(start_agent: StartAgent, dial: Dial) -> AsyncIterator[Served]:
    """An older program is at work."""
    inner = MemoryMetadata()
    await inner.open()

    async def not_yet() -> bool:
        return False

    metadata: Any = Wrapped(inner, enable=not_yet)
    yield await serve(await start_agent(metadata=metadata), dial)
    await inner.close()


async def test_until_they_may_be_used_nothing_is_begun(unready: Served) -> None:
    client, no = unready.client(), E.UNSUPPORTED_VERSION
    assert (await client.init()).error_code == no
    assert (await client.init(transactional_id="")).error_code == E.INVALID_REQUEST
    assert await client.add(t=[0]) == {("t", 0): no}
    assert (await client.join("g"), await client.end()) == (no, no)
    assert set(await aborted(unready, client)) == {no}
    for kind, error in ((1, no), (0, E.NONE)):
        asked = FindCoordinatorRequest(key_type=kind, coordinator_keys=["tx"])
        found = await unready.raw.call(asked, FindCoordinatorResponse, 4)
        assert found.coordinators[0].error_code == error
    # librdkafka asks in version 2, and stops at once only on this error
    for version, error in ((1, no), (2, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)):
        found = await unready.raw.call(FindCoordinatorRequest(key="tx", key_type=1), FindCoordinatorResponse, version)
        assert (found.error_code, "not supported yet" in (found.error_message or "")) == (error, True)
    for version in (3, 4):
        features = await versions(unready.raw, version)
        assert (features.supported_features, features.finalized_features, features.finalized_features_epoch) == (
            [],
            [],
            -1,
        )
    assert await unready.metadata.transactions.transactions() == []


async def test_as_long_as_it_is_not_known_whether_they_may_be_used_clients_are_to_come_again(
    start_agent: StartAgent, dial: Dial
) -> None:
    # given an agent whose question to the store was lost
    inner = MemoryMetadata()
    await inner.open()
    answers = asyncio.Event()

    async def lost_at_first() -> bool:
        if not answers.is_set():
            raise MetadataUnavailableError("away")
        return await inner.transactions.enable()

    metadata: Any = Wrapped(inner, enable=lost_at_first)
    served = await serve(await start_agent(metadata=metadata), dial)
    client, again = served.client(), E.COORDINATOR_NOT_AVAILABLE
    assert (await client.init()).error_code == again
    assert await client.add(t=[0]) == {("t", 0): again}
    assert (await client.join("g"), await client.end()) == (again, again)
    assert set(await aborted(served, client)) == {again}
    assert ((await described(served, "tx")).error_code, (await listed(served)).error_code) == (again, again)
    for version in (1, 2):
        found = await served.raw.call(FindCoordinatorRequest(key="tx", key_type=1), FindCoordinatorResponse, version)
        assert found.error_code == again

    # when the store answers
    answers.set()
    async with asyncio.timeout(30):
        while (await client.init()).error_code == again:
            await asyncio.sleep(0.05)

    assert await client.add(t=[0]) == {("t", 0): E.NONE}
    assert await client.end() == E.NONE
    await inner.close()
