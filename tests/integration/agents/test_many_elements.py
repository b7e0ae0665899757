"""The largest requests that there are: for each API, each array of its request in turn with as many elements as a
request may have. None of them keeps the event loop from others for long, from its first byte to its answer."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from functools import partial

import pytest

from metadata.contract.l0_commit import CommitL0, Committed
from metadata.memory.agents import MemoryAgents
from siltstone.processes.garbage import SELDOM
from tests.fixtures.agents import Dial, StartAgent
from tests.fixtures.loop_stalls import assert_holds_up_nobody, stalls_of_frame
from tests.fixtures.many_elements import Case, arrays_of, made_long
from wire.api import APIS, encode_request
from wire.schema import Message

from .acls.test_every_api import with_id
from .test_every_version import REQUESTS

PRODUCE, CREATE_TOPICS, CREATE_PARTITIONS = 0, 19, 37
IN_THE_STORE = (CREATE_TOPICS, CREATE_PARTITIONS)
"""What these cost is the creation of what they ask for, one by one, in the store: see test_partitions_in_sum.py."""
QUICK = [
    Case(PRODUCE, 13, ("topic_data",), distinct=True),
    Case(3, 13, ("topics",), distinct=True),
    Case(8, 9, ("topics",), distinct=True),
    Case(13, 5, ("members",), distinct=True),
    Case(31, 3, ("filters",), distinct=False),
]
"""Those that once kept the loop for longest, in what follows the decoding."""


def cases() -> Iterator[Case]:
    for key, api in APIS.items():
        if key in IN_THE_STORE:
            continue
        for version in dict.fromkeys(api.accepted):
            for path in arrays_of(REQUESTS[key](version), version):
                # Numbers of resource types have a byte.
                for distinct in (False, True) if path[-1] != "resource_types" else (False,):
                    yield Case(key, version, path, distinct)


@pytest.fixture(autouse=True)
def as_in_an_agent() -> Iterator[None]:
    """The collector of garbage looks through the elements as often as in an agent's process."""
    before = gc.get_threshold()
    gc.set_threshold(*SELDOM)
    yield
    gc.set_threshold(*before)


@pytest.fixture(autouse=True)
def store_answers_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit waits, as it does for Postgres: what comes before it and behind it are no turn of the loop together."""
    commit_l0 = MemoryAgents.commit_l0

    async def waited_for(agents: MemoryAgents, request: CommitL0) -> Committed:
        await asyncio.sleep(0)
        committed = await commit_l0(agents, request)
        await asyncio.sleep(0)
        return committed

    monkeypatch.setattr(MemoryAgents, "commit_l0", waited_for)


@pytest.mark.parametrize("case", QUICK, ids=str)
async def test_a_request_of_very_many_elements_holds_up_nobody(start_agent: StartAgent, dial: Dial, case: Case) -> None:
    await check(start_agent, dial, [case])


@pytest.mark.soak
@pytest.mark.parametrize("key", [key for key in APIS if key not in IN_THE_STORE])
async def test_the_largest_requests_of_each_api_hold_up_nobody(start_agent: StartAgent, dial: Dial, key: int) -> None:
    await check(start_agent, dial, [case for case in cases() if case.api_key == key])


def test_every_api_with_an_array_has_a_case() -> None:
    keys = {case.api_key for case in cases()}
    assert len(keys) > 30
    assert {case.api_key for case in QUICK} <= keys


async def check(start_agent: StartAgent, dial: Dial, checked: list[Case]) -> None:
    running = await start_agent()
    client = await dial.kafka(running.address)
    await client.create_topic("t", partitions=1_000)
    topic_id = (await client.topic("t")).topic_id
    for case in checked:
        request = with_id(REQUESTS[case.api_key](case.version), topic_id)
        frame = frame_of(made_long(request, case), case)
        print(case)  # for a failure
        await assert_holds_up_nobody(partial(stalls_of_frame, running.address, frame))


def frame_of(request: Message, case: Case) -> bytes:
    return b"".join(bytes(part) for part in encode_request(case.api_key, case.version, 1, "c", request))
