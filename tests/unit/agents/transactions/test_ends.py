"""How ends are gathered, repeated and told."""

from __future__ import annotations

import asyncio

import pytest

from agents.transactions.ends import (
    CALLS_AT_ONCE,
    ENDS_INTERVAL_MS,
    NOT_ENDED,
    SLOW_MS,
    WaitingEnd,
    next_limit,
    next_list,
    outcome_name,
    paid_until_ms,
    pause_ms,
)
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.l0_commit import CommitInDoubtError, CommitRefusedError
from metadata.contract.leases import WriterFencedError
from metadata.transactions.contract import ENDS_MAX, MARKER_BYTES, EndTransaction, TransactionEnded
from storage.keys import parse_file_key
from tests.fixtures.coordinators import Fleet, One, Producer, coordinators
from wire.error_codes import ErrorCode
from wire.markers import read_marker


def waiting(*names: str) -> list[WaitingEnd]:
    loop = asyncio.new_event_loop()
    try:
        return [
            WaitingEnd(
                EndTransaction(transactional_id=name, producer_id=at, producer_epoch=0, commit=True, marker=b""),
                1,
                0.0,
                loop.create_future(),
            )
            for at, name in enumerate(names)
        ]
    finally:
        loop.close()


def names(ends: list[WaitingEnd]) -> str:
    return "".join(f"{each.end.transactional_id}{each.end.producer_id}" for each in ends)


def test_a_list_has_one_end_of_an_id_and_the_others_keep_their_order() -> None:
    taken, rest = next_list(waiting(*"abacab"), 10)
    assert (names(taken), names(rest)) == ("a0b1c3", "a2a4b5")

    taken, rest = next_list(waiting(*"abcd"), 2)
    assert (names(taken), names(rest)) == ("a0b1", "c2d3")


def test_lists_get_shorter_while_calls_are_slow_and_longer_again() -> None:
    assert next_limit(ENDS_MAX, 400, SLOW_MS + 1) == 200
    assert next_limit(ENDS_MAX, 1, SLOW_MS + 1) == 1
    assert next_limit(200, 200, SLOW_MS) == 400
    assert next_limit(ENDS_MAX, 5, 1) == ENDS_MAX


def test_each_end_has_one_outcome() -> None:
    end = EndTransaction(transactional_id="t", producer_id=1, producer_epoch=0, commit=True, marker=b"")
    done = TransactionEnded(0, 1, 1)
    abort = EndTransaction(transactional_id="t", producer_id=1, producer_epoch=0, commit=False, marker=b"")
    fence = EndTransaction(transactional_id="t", producer_id=1, producer_epoch=0, commit=False, marker=b"", fences=True)
    late = EndTransaction(
        transactional_id="t", producer_id=1, producer_epoch=0, commit=False, marker=b"", fences=True, overdue_ms=0
    )
    assert [outcome_name(each, done) for each in (end, abort, fence, late)] == [
        *("committed", "aborted", "fenced", "timed_out")
    ]
    assert outcome_name(end, TransactionEnded(int(ErrorCode.INVALID_TXN_STATE), -1, -1)) == "refused"
    assert outcome_name(end, NOT_ENDED) == "failed"


def test_calls_are_one_each_interval_in_the_long_run_and_some_at_once_after_a_quiet_time() -> None:
    now_ms, paid_ms = 1_000.0, float("-inf")
    begun_ms: list[float] = []
    for _ in range(CALLS_AT_ONCE + 3):
        now_ms += pause_ms(paid_ms, now_ms)
        begun_ms.append(now_ms)
        paid_ms = paid_until_ms(paid_ms, now_ms)
    assert begun_ms == [1_000.0] * CALLS_AT_ONCE + [1_050.0, 1_100.0, 1_150.0]
    # a long quiet time saves up no more than that
    now_ms += 3_600_000
    for _ in range(CALLS_AT_ONCE):
        assert pause_ms(paid_ms, now_ms) == 0
        paid_ms = paid_until_ms(paid_ms, now_ms)
    assert pause_ms(paid_ms, now_ms) == ENDS_INTERVAL_MS


# ---- over the store


async def writing(fleet: Fleet, one: One, count: int, *, version: int = 2) -> tuple[list[Producer], int]:
    """Producers with a record each on one partition."""
    (partition,) = await fleet.partitions()
    producers = [await one.producer(f"t{number}", version=version) for number in range(count)]
    for each in producers:
        await each.write(partition)
    return producers, partition


async def test_ends_that_come_while_a_call_is_under_way_go_together_in_the_next() -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        producers, partition = await writing(fleet, one, 20)
        held = asyncio.Event()
        one.line.before["end_transactions"] = held.wait

        first = asyncio.create_task(producers[0].end())
        while not one.line.times("end_transactions"):
            await asyncio.sleep(0)
        others = [asyncio.create_task(each.end()) for each in producers[1:]]
        await asyncio.sleep(0.01)
        held.set()
        ended = await asyncio.gather(first, *others)

        assert [each.error for each in ended] == [0] * 20
        assert [len(request.ends) for request, _ in one.files] == [1, 19]
        assert await fleet.stable(partition) == (40, 40)
        assert one.metric("transactions_ended_total", outcome="committed") == 20


async def test_an_end_after_a_quiet_time_goes_at_once() -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        (producer,), partition = await writing(fleet, one, 1)
        before_ms = fleet.clock.monotonic_ms()
        assert (await producer.end()).error == 0
        assert fleet.clock.monotonic_ms() == before_ms

        await fleet.pass_ms(ENDS_INTERVAL_MS)
        await producer.write(partition)
        before_ms = fleet.clock.monotonic_ms()
        assert (await producer.end()).error == 0
        assert fleet.clock.monotonic_ms() == before_ms


async def test_ends_without_a_pause_between_them_are_held_back() -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        producers, _ = await writing(fleet, one, CALLS_AT_ONCE + 2)
        began_ms = fleet.clock.monotonic_ms()
        waits_ms: list[float] = []
        for each in producers:
            assert (await each.end()).error == 0
            waits_ms.append(fleet.clock.monotonic_ms() - began_ms)
        assert waits_ms == [0.0] * CALLS_AT_ONCE + [ENDS_INTERVAL_MS, 2 * ENDS_INTERVAL_MS]


async def test_the_markers_say_who_ended_what_when() -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        (producer,), _ = await writing(fleet, one, 1)
        epoch = (await fleet.info("t0")).coordinator_epoch

        await producer.end(commit=False)

        (request, ended), *_ = one.files
        marker = read_marker(memoryview(ended.inline))
        assert marker is not None
        assert len(ended.inline) == MARKER_BYTES
        assert marker == (producer.producer_id, 1, False, epoch, fleet.clock.wall_ms())
        assert request.timestamp_ms == fleet.clock.wall_ms()
        assert parse_file_key(request.key).writer_id == request.lease.writer_id


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", [CommitInDoubtError, MetadataUnavailableError])
async def test_an_end_in_doubt_is_repeated_under_its_key_and_the_next_list_waits(
    when: str, kind: type[Exception]
) -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        producers, partition = await writing(fleet, one, 2)
        failures = 3

        async def fail() -> None:
            nonlocal failures
            if failures:
                failures -= 1
                raise kind("lost")

        (one.line.before if when == "before" else one.line.after)["end_transactions"] = fail

        first = asyncio.create_task(producers[0].end())
        while not one.line.times("end_transactions"):
            await asyncio.sleep(0)
        second = asyncio.create_task(producers[1].end(commit=False))
        ended = await asyncio.gather(first, second)

        assert [each.error for each in ended] == [0, 0]
        requests = [request for name, request in one.line.calls if name == "end_transactions"]
        assert [len(each.ends) for each in requests] == [1, 1, 1, 1, 1]
        assert requests[0] is requests[1] is requests[2] is requests[3]
        assert await fleet.stable(partition) == (4, 4)
        assert len(one.files) == 2


async def test_a_fenced_writer_of_markers_is_registered_again() -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        producers, partition = await writing(fleet, one, 2)
        assert (await producers[0].end()).error == 0
        await fleet.metadata.transactions.register_marker_writer(one.writer.lease)

        assert (await producers[1].end()).error == 0

        assert [request.seq for request, _ in one.files] == [1, 1]
        assert one.line.times("register_marker_writer") == 2
        assert await fleet.stable(partition) == (4, 4)


async def test_an_agent_without_its_lease_ends_nothing_and_says_so() -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        (producer,), partition = await writing(fleet, one, 1)
        lease = one.writer.lease
        await fleet.metadata.agents.unregister_agent(lease)

        assert await producer.end() == NOT_ENDED

        assert (await fleet.stable(partition))[0] == 0
        assert one.metric("transactions_ended_total", outcome="failed") == 1


async def test_one_that_is_refused_does_not_take_the_others_with_it() -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        producers, partition = await writing(fleet, one, 9)
        held = asyncio.Event()

        async def refuse() -> None:
            await held.wait()
            _, request = one.line.calls[-1]
            if any(end.transactional_id == "t5" for end in request.ends):
                raise CommitRefusedError("no")

        one.line.before["end_transactions"] = refuse
        tasks = [asyncio.create_task(each.end()) for each in producers]
        await asyncio.sleep(0.01)
        held.set()
        ended = await asyncio.gather(*tasks)

        bad = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert [each.error for each in ended] == [bad if number == 5 else 0 for number in range(9)]
        assert (await fleet.stable(partition))[1] == 17


async def test_before_anything_reached_the_store_an_end_is_told_to_come_again() -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        (producer,), _ = await writing(fleet, one, 1)

        async def away() -> None:
            raise MetadataUnavailableError("away")

        one.line.before["register_marker_writer"] = away
        assert await producer.end() == NOT_ENDED
        del one.line.before["register_marker_writer"]
        assert (await producer.end()).error == 0


async def test_at_the_end_of_the_agent_those_that_wait_are_told_so() -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        (producer,), _ = await writing(fleet, one, 1)
        one.line.before["end_transactions"] = asyncio.Event().wait
        info = await fleet.info("t0")
        sweep = asyncio.create_task(one.coordinator.abort(info))
        while not one.line.times("end_transactions"):
            await asyncio.sleep(0)

        await one.coordinator.close()

        assert await sweep == NOT_ENDED
        assert (await producer.end()).error == int(ErrorCode.NOT_COORDINATOR)


async def test_a_writer_that_is_fenced_again_and_again_does_not_stop_the_line() -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        (producer,), _ = await writing(fleet, one, 1)
        broken = True

        async def fail() -> None:
            if broken:
                raise WriterFencedError("fenced")

        one.line.before["end_transactions"] = fail
        assert await producer.end() == NOT_ENDED
        broken = False
        assert (await producer.end()).error == 0
