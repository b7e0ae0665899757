"""An open transaction below the marks of an erasure holds its end back, over both metadata stores."""

from __future__ import annotations

import pytest

from compactor.deletion.erasures import ErasureDuty
from compactor.deletion.janitor import Janitor, JanitorLimits
from metadata.erasures.contract import ErasureStage
from runtime.runtime import Runtime
from tests.fixtures.compacted_systems import System
from tests.fixtures.compactors import StartCompactor
from tests.fixtures.transactional_log import TransactionalWriter, Write
from tests.fixtures.waiting import until
from tests.integration.compactor.test_erasures import (
    ADA,
    DAY_MS,
    SECRET,
    erasure,
    holding,
    is_done,
    leveled,
    nothing_pends,
    request,
)
from wire.records import NewRecord


@pytest.mark.parametrize("commits", [True, False])
async def test_an_erasure_is_not_done_before_the_transactions_below_its_marks_have_ended(
    system: System, start_compactor: StartCompactor, commits: bool
) -> None:
    await system.client.create_topic("t", partitions=1, configs={"retention.ms": "-1"})
    (topic,) = await system.metadata.agents.list_topics()
    writer = await TransactionalWriter.start(system.metadata, system.store, topic)
    bad, slow = await writer.producer("bad"), await writer.producer("slow")
    await writer.leave()
    secret = [NewRecord(1_000, ADA, SECRET), NewRecord(1_000, b"bea", b"stays")]
    await writer.write([Write(0, secret), Write(0, secret, bad)])
    await writer.end([(bad, False)])
    await writer.write([Write(0, secret, slow)])
    await leveled(system, start_compactor)
    number = await request(system, "t")
    await until(lambda: nothing_pends(system, number))
    assert await holding(system) == [], "aborted values go, and those of the open transaction"
    # when the duty looks again and again
    limits = JanitorLimits(grace_ms=0, orphan_age_ms=DAY_MS)
    janitor = Janitor(store=system.store, metadata=system.metadata, runtime=Runtime(), limits=limits)
    duty = ErasureDuty(store=system.store, metadata=system.metadata, runtime=Runtime(), janitor=janitor)
    for _ in range(3):
        await duty.round()
    # then it is not done before the end
    assert (await erasure(system, number)).stage is ErasureStage.ERASING
    await writer.end([(slow, commits)])
    await until(lambda: is_done(system, number))
