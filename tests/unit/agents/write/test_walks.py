"""Walks on threads: verdicts in order, memory within its formula, requests in turn."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from agents.write import walks
from agents.write.validation import Refusal, Unwalked, check_produced
from agents.write.walking import WalkBudget
from agents.write.walks import JOB_BATCHES, THREADS, ProduceLine, RecordWalks, judge_some
from tests.fixtures.loop_stalls import LoopStalls, assert_holds_up_nobody, loop_stalls
from tests.fixtures.produced import bomb, of_many
from tests.fixtures.record_batches import NOW_MS, as_sent, one_batch
from tests.unit.agents.write.test_walking import COMPACTED
from wire.batch import BatchHeader
from wire.codecs import Codec

MIB = 1 << 20


def unwalked(batch: bytes) -> Unwalked:
    found = check_produced(as_sent([batch]), rules=COMPACTED, api_version=9, now_ms=NOW_MS)
    assert isinstance(found, Unwalked)
    return found


@pytest.fixture
async def record_walks() -> AsyncIterator[RecordWalks]:
    record_walks = RecordWalks()
    yield record_walks
    await record_walks.idle()
    record_walks.close()


async def test_the_verdicts_come_in_the_order_of_the_batches(record_walks: RecordWalks) -> None:
    good, bad = unwalked(one_batch(2)), replace(unwalked(one_batch(2)), records=as_sent([bomb(1000)]))
    wrong = {1, JOB_BATCHES, 3 * JOB_BATCHES}
    batches = [bad if n in wrong else good for n in range(3 * JOB_BATCHES + 1)]
    walk = record_walks.begin(batches, 1)
    assert walk is not None
    assert {n for n, each in enumerate(await walk) if not isinstance(each, BatchHeader)} == wrong


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
async def test_memory_is_bounded_by_the_threads_and_not_by_the_requests(
    record_walks: RecordWalks, codec: Codec
) -> None:
    """The formula: each thread holds one unfolded batch, and up to twice as much that it is joined from."""
    one = unwalked(bomb(16 * MIB, codec))

    async def walk_through() -> LoopStalls:
        with loop_stalls() as stalls:
            begun = [record_walks.begin([one] * 2, 1) for _ in range(8)]
            for walk in begun:
                assert walk is not None
                assert all(isinstance(each, Refusal) for each in await walk)
        return stalls

    tracemalloc.start()
    try:
        await assert_holds_up_nobody(walk_through)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < THREADS * 3 * 16 * MIB


async def test_a_request_gives_way_after_some_work(record_walks: RecordWalks, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of many large batches does not keep a thread from others until its end."""
    go, batch = threading.Event(), unwalked(of_many(20_000))
    monkeypatch.setattr(walks, "_pause", go.wait)
    # given requests that keep all threads, and a short one behind them
    long = [record_walks.begin([batch] * 4, 1) for _ in range(THREADS)]
    short = record_walks.begin([unwalked(one_batch())], 1)
    assert short is not None
    await asyncio.sleep(0)
    go.set()
    # then it is done before any of them
    await short
    assert not any(walk is None or walk.done() for walk in long)
    for walk in long:
        assert walk is not None
        assert len(await walk) == 4


def test_a_thread_turns_to_others_after_a_batch_that_is_much_work() -> None:
    budget = WalkBudget.of_request()
    assert len(judge_some([unwalked(of_many(10_000))] * 3, budget, lambda: None)) == 1
    assert len(judge_some([unwalked(bomb(4 * MIB))] * 3, budget, lambda: None)) == 1
    assert len(judge_some([unwalked(one_batch())] * 3, budget, lambda: None)) == 3


async def test_a_line_tells_when_it_is_empty() -> None:
    line, empty = ProduceLine(), list[bool]()
    line.on_empty = lambda: empty.append(line.is_empty)
    before_first, first = line.join()
    before_second, second = line.join()
    assert before_first is None and before_second is first and not line.is_empty
    line.leave(first)
    assert empty == []
    line.leave(second)
    assert empty == [True]
