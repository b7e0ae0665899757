"""The turns of clients that send long messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from agents.connections.long_messages import LongMessages
from agents.quotas.meter import Meter
from agents.request_context import ClientConnection, RequestContext
from runtime.clock import SystemClock
from wire.api import RequestHeader
from wire.compiler.compile import Steps, encode
from wire.compiler.source_text import STEP_ELEMENTS
from wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse


class Lane:
    """Long messages of three steps each, named, and the order in which they ended."""

    def __init__(self) -> None:
        self.messages = LongMessages()
        self.ended: list[str] = []
        self.under_way = ""

    def begin(self, name: str, host: str, principal: str = "User:ann") -> asyncio.Task[None]:
        client = ClientConnection(0, f"{host}:1")
        client.principal = principal
        return asyncio.create_task(self._finish(name, client))

    async def _finish(self, name: str, client: ClientConnection) -> None:
        try:
            await self.messages.finish(self._steps(name), client)
        finally:
            if self.under_way == name:
                self.under_way = ""

    def _steps(self, name: str) -> Steps[None]:
        assert not self.under_way, "no two at a time"
        self.under_way = name
        yield
        yield
        self.ended.append(name)


async def ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    async with asyncio.timeout(20):
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_client_with_many_connections_holds_up_another_by_one_message() -> None:
    lane = Lane()
    tasks = [lane.begin(f"many {n}", "10.0.0.1") for n in range(5)]
    tasks += [lane.begin(f"few {n}", "10.0.0.2") for n in range(2)]
    await ended(tasks)
    assert lane.ended == ["many 0", "many 1", "few 0", "many 2", "few 1", "many 3", "many 4"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("10.0.0.1", "User:ann"), ("10.0.0.1", "User:bob")),
        (("10.0.0.1", "User:ann"), ("10.0.0.2", "User:ann")),
        (("2001:db8:1::1", "User:ann"), ("2001:db8:2::1", "User:ann")),
    ],
)
async def test_a_client_is_a_principal_at_an_address(one: tuple[str, str], other: tuple[str, str]) -> None:
    lane = Lane()
    tasks = [lane.begin(f"one {n}", *one) for n in range(3)]
    await ended([*tasks, lane.begin("other", *other)])
    assert lane.ended == ["one 0", "one 1", "other", "one 2"]


async def test_the_addresses_of_one_network_are_one_client() -> None:
    lane = Lane()
    await ended([lane.begin(f"{n}", f"2001:db8::{n}") for n in range(3)])
    assert lane.ended == ["0", "1", "2"]


async def test_who_leaves_while_it_waits_costs_its_client_no_turn() -> None:
    lane = Lane()
    first, leaves = lane.begin("first", "10.0.0.1"), lane.begin("gone", "10.0.0.2")
    tasks = [lane.begin("stays", "10.0.0.2"), lane.begin("last", "10.0.0.3")]
    await asyncio.sleep(0)
    leaves.cancel()
    await ended([first, leaves, *tasks])
    assert lane.ended == ["first", "stays", "last"]


async def test_who_leaves_at_any_moment_leaves_the_turn_to_the_next() -> None:
    for turns in range(12):
        lane = Lane()
        tasks = [lane.begin(f"{n}", f"10.0.0.{n}") for n in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0)
        tasks[1].cancel()
        await ended(tasks)
        assert {"0", "2"} <= set(lane.ended)
        await ended([lane.begin("new", "10.0.0.4")])
        assert lane.ended[-1] == "new"


async def test_the_time_that_it_takes_to_write_a_long_answer_counts_for_its_client() -> None:
    header = RequestHeader(10, 5, 1, "c")
    context = RequestContext(header, ClientConnection(0, "10.0.0.1:1"), 100)
    context.meter = Meter(SystemClock())
    answer = FindCoordinatorResponse(coordinators=[Coordinator(key="g", host="h")] * 5 * STEP_ELEMENTS)

    def tells(*_: object) -> bool:
        return False

    throttle: Any = SimpleNamespace(on=True, tells=tells)
    parts = await LongMessages().encode(throttle, context, answer)
    assert b"".join(parts).endswith(b"".join(encode(answer, 5)))
    assert context.meter.spent_ms > 0
