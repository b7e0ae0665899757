"""The load of `bench tail` and `bench latency`: every record is acknowledged, read and timed, and the group commits."""

from __future__ import annotations

import asyncio

from bench.cases.together.latency import COLUMNS, PLACES, cells
from bench.loads.clients import run_tail
from bench.loads.jobs import TailJob, TailResult
from bench.measures.usage import Usage
from bench.servers.stack import Counters, Reading
from tests.fixtures.agents import Dial, StartAgent


async def test_writers_are_timed_to_the_acknowledgement_and_to_the_reader_who_commits(
    start_agent: StartAgent, dial: Dial
) -> None:
    running = await start_agent(produce_linger_ms=5)
    kafka = await dial.kafka(running.address)
    await kafka.create_topic("t", partitions=2)
    job = TailJob(
        bootstrap=running.address,
        topic="t",
        client_id="bench",
        writers=2,
        records_per_s=20,
        record_bytes=100,
        seconds=1.2,
        warmup_s=0.19,
        idempotent=True,
        commits=True,
    )
    result = await asyncio.to_thread(run_tail, job, job)
    # Both writers together send every 25 ms, the first 8 records within the warm-up.
    assert result.records == 48
    assert result.acked is not None and result.acked.p50_ms is not None and result.p50_ms is not None
    assert 0 < result.acked.p50_ms <= (result.acked.p99_ms or 0) <= (result.acked.max_ms or 0)
    assert 0 < result.p50_ms <= (result.max_ms or 0)
    committed = await running.metadata.groups.offsets("bench")
    assert sorted(each.offset for each in committed.values()) == [28 + 1, 28 + 1]


def test_the_price_of_a_row_is_that_of_the_place_of_its_puts() -> None:
    counters = Counters({("siltstone_object_requests_total", (("op", "put"), ("outcome", "ok"))): 30.0})
    used = Reading(9.0, Usage(), Usage(), Usage(), counters)
    result = TailResult(records=1, p50_ms=2.0, p99_ms=3.0, max_ms=4.0)
    _, second, standard = (
        dict(zip([column.title for column in COLUMNS], cells(place, 1, result, used, load_s=3), strict=True))
        for place in PLACES
    )
    assert standard["PUTs (1/s)"] == second["PUTs (1/s)"] == 10
    month_s = 730 * 3600
    assert standard["PUTs ($/month)"] == 10 * month_s / 1000 * 0.005
    assert second["PUTs ($/month)"] == 10 * month_s / 1000 * 0.00113
