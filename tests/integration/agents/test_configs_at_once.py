"""Alterations of configs through two agents at once: each builds on the other, or is refused by what the other set."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest

from tests.fixtures.agents import Dial, RawConnection, StartAgent
from tests.fixtures.fleet import Counted, fleet
from tests.fixtures.waiting import until
from tests.integration.agents.test_admin_apis import (
    ALL_BROKERS,
    APPEND,
    BROKER,
    LEAST_LAG,
    MOST_LAG,
    SET,
    TOPIC,
    alter,
    overrides,
    replace,
    rows,
)
from wire.error_codes import ErrorCode


class InStep(Counted):
    """An alteration reaches the store when there are two, so that each was asked for before the other was made."""

    steps: ClassVar[asyncio.Barrier]

    async def alter_configs(self, *arguments: Any) -> Any:
        await self.steps.wait()
        return await self.inner.agents.alter_configs(*arguments)

    async def alter_broker_configs(self, *arguments: Any) -> Any:
        await self.steps.wait()
        return await self.inner.agents.alter_broker_configs(*arguments)


@pytest.fixture
async def two_agents(
    start_agent: StartAgent, dial: Dial, agent_metadata_url: str
) -> AsyncIterator[list[RawConnection]]:
    """Connections to two agents whose alterations reach the store in twos. There is a topic "t"."""
    InStep.steps = asyncio.Barrier(2)
    async with fleet(start_agent, 2, metadata_url=agent_metadata_url, wrap=InStep) as agents:
        await (await dial.kafka(agents[0].address)).create_topic("t", partitions=1)
        await agents.know_topic("t")
        yield [await dial.raw(each.address) for each in agents.agents]


async def test_of_two_lags_that_contradict_each_other_set_at_once_one_is_refused(
    two_agents: list[RawConnection],
) -> None:
    one, other = two_agents
    told = await asyncio.gather(alter(one, (LEAST_LAG, SET, "50000")), alter(other, (MOST_LAG, SET, "1000")))
    assert sorted(told) == [0, ErrorCode.INVALID_REQUEST]
    assert len(await rows(one, BROKER, ALL_BROKERS)) + len(await rows(other, BROKER, ALL_BROKERS)) >= 1


async def test_of_two_who_append_at_once_neither_is_lost(two_agents: list[RawConnection]) -> None:
    throttled = "leader.replication.throttled.replicas"
    told = await asyncio.gather(
        *(
            alter(raw, (throttled, APPEND, f"{number}:{number}"), name="t", resource=TOPIC)
            for number, raw in enumerate(two_agents)
        )
    )
    assert told == [0, 0]

    async def both() -> bool:
        return sorted(((await overrides(two_agents[0])).get(throttled) or "").split(",")) == ["0:0", "1:1"]

    await until(both)


async def test_of_two_who_replace_at_once_one_has_its_way_whole(two_agents: list[RawConnection]) -> None:
    wanted = [{"retention.ms": "1000", "cleanup.policy": "delete"}, {"retention.ms": "-1", "segment.bytes": "1048576"}]
    told = await asyncio.gather(*(replace(raw, each) for raw, each in zip(two_agents, wanted, strict=True)))
    assert told == [0, 0]

    async def agreed() -> bool:
        one, other = [await overrides(raw) for raw in two_agents]
        return one == other

    await until(agreed)
    assert await overrides(two_agents[0]) in wanted
