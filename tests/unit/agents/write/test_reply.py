"""The answer to a produce request whose batches lie in several files."""

from __future__ import annotations

import asyncio

import pytest

from agents.write import reply as module
from agents.write.full_store import FullStore
from agents.write.outcomes import BatchOutcomes
from agents.write.reply import ProduceReply
from agents.write.stall import StallLimits, WriteStall
from metadata.contract.l0_commit import BatchResult
from runtime.metrics import Metrics
from runtime.runtime import Runtime
from tests.fixtures.metric_values import metric_value
from wire.error_codes import ErrorCode
from wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse


async def test_a_time_out_leaves_the_answers_of_the_batches_that_were_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TIMEOUT_MS_MIN", 1)
    metrics = Metrics()
    answers = [PartitionProduceResponse(index=index, base_offset=-1) for index in range(2)]
    reply = ProduceReply(
        ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=answers)]),
        timeout_ms=1,
        stall=WriteStall(StallLimits(stall_files=10, refuse_files=20), Metrics()),
        full=FullStore(Runtime()),
        outcomes=BatchOutcomes(metrics),
        runtime=Runtime(),
    )
    committed, _ = [reply.share([answer]) for answer in answers]
    committed.set_result([BatchResult(error=0, duplicate=False, base_offset=7, log_append_time_ms=-1)])
    async with asyncio.timeout(10):
        await reply.future
    assert [(answer.error_code, answer.base_offset, bool(answer.error_message)) for answer in answers] == [
        (ErrorCode.NONE, 7, False),
        (ErrorCode.REQUEST_TIMED_OUT, -1, True),
    ]
    assert metric_value(metrics, "produce_batches_total", {"outcome": "failed"}) == 1
