"""Spark's wait for a metadata store: short if the store was never reached, longer if it was."""

from __future__ import annotations

import asyncio

import pytest

from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.store import MetadataStore
from runtime.clock import ManualClock
from spark_jobs.source.metadata import FIRST_RETRY_MS, RETRY_MS, RETRY_WAIT_MS, MetadataThread

NOBODY = "postgresql://nobody@127.0.0.1:1/silt"


async def away(_metadata: MetadataStore) -> None:
    await asyncio.sleep(0)
    raise MetadataUnavailableError("away")


def test_one_that_was_never_reached_is_given_up_after_seconds_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    with MetadataThread(NOBODY, clock=clock) as metadata, pytest.raises(MetadataUnavailableError):
        metadata.call(away)
    assert FIRST_RETRY_MS - RETRY_WAIT_MS <= clock.monotonic_ms() <= FIRST_RETRY_MS
    assert capsys.readouterr().err.count("the metadata store is asked again") == 1


def test_one_that_answered_is_waited_for_through_a_failover(postgres_url: str) -> None:
    clock = ManualClock()
    with MetadataThread(postgres_url, clock=clock) as metadata:
        metadata.call(lambda opened: opened.now_ms())
        with pytest.raises(MetadataUnavailableError):
            metadata.call(away)
    assert RETRY_MS - RETRY_WAIT_MS <= clock.monotonic_ms() <= RETRY_MS


def test_a_patience_that_was_given_counts_from_the_first_call() -> None:
    clock = ManualClock()
    with MetadataThread(NOBODY, clock=clock, retry_ms=0) as metadata, pytest.raises(MetadataUnavailableError):
        metadata.call(away)
    assert clock.monotonic_ms() == 0
