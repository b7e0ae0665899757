"""Produce 3-12: validate every batch, hand the good ones to the write path, answer when they are committed.

Validation runs in the read callback, so batches enter the buffer in the order they came; only the waiting is
asynchronous, and a connection may have many requests waiting. Partitions succeed and fail one by one. acks 1 and -1
both wait for the commit. acks 0 gets no answer, and any error closes the connection, for that is all a client could
notice. Kafka's `KafkaApis.handleProduceRequest` and `ReplicaManager.appendRecords`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from agents.broker import Broker
from agents.write.submission import BATCHES_MAX, PendingBatch, Submission
from agents.write.validation import Refusal, check_produced
from metadata.service import BatchResult
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

_Promise: TypeAlias = "asyncio.Future[Sequence[BatchResult]]"

TIMEOUT_MS_MIN = 1_000
"""A client's `request.timeout.ms` is about replicas; a file that lingers for part of a second is no reason to fail."""


class DropConnectionError(Exception):
    """acks=0 and something was refused: the connection is closed, as in Kafka."""


@dataclass(slots=True)
class _Accepted:
    batches: list[PendingBatch] = field(default_factory=list[PendingBatch])
    answers: list[PartitionProduceResponse] = field(default_factory=list[PartitionProduceResponse])
    """The answer to fill for each batch."""


def handle(
    broker: Broker, header: RequestHeader, request: ProduceRequest
) -> ProduceResponse | Awaitable[ProduceResponse | None]:
    """None = no answer (acks 0)."""
    refused = _refusal_of_all(broker, request)
    accepted = _Accepted()
    response = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                partition_responses=[
                    _refused(part.index, refused)
                    if refused is not None
                    else _check(broker, header, topic.name, part, accepted)
                    for part in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )
    promises = _submit(broker, accepted.batches)
    if request.acks == 0:
        return _unanswered(response, promises)
    if not promises:
        return response
    return _wait(broker, request.timeout_ms, response, accepted, promises)


def _submit(broker: Broker, batches: Sequence[PendingBatch]) -> list[_Promise]:
    """Hand over the batches in order, as many at a time as one file may hold."""
    promises: list[_Promise] = []
    for start in range(0, len(batches), BATCHES_MAX):
        promise: _Promise = asyncio.get_running_loop().create_future()
        broker.write_path.submit(Submission(batches[start : start + BATCHES_MAX], promise))
        promises.append(promise)
    return promises


def _refusal_of_all(broker: Broker, request: ProduceRequest) -> Refusal | None:
    if request.acks not in (-1, 0, 1):
        return Refusal(error=ErrorCode.INVALID_REQUIRED_ACKS, message=f"acks must be -1, 0 or 1, not {request.acks}")
    if request.transactional_id is not None:
        return Refusal(
            error=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, message="transactions are not supported yet"
        )
    index_bytes_max = broker.settings.index_bytes_max
    if broker.index.bytes_used >= index_bytes_max:
        return Refusal(
            error=ErrorCode.KAFKA_STORAGE_ERROR,
            message=f"the index of live files has reached index.bytes.max ({index_bytes_max}): merging lags behind",
        )
    return None


def _check(
    broker: Broker, header: RequestHeader, topic_name: str, part: PartitionProduceData, accepted: _Accepted
) -> PartitionProduceResponse:
    """Validate one partition's batch; a good one is added to `accepted` with the answer to be filled later."""
    topic = broker.catalog.topic(topic_name)
    if topic is None or not 0 <= part.index < len(topic.partition_ids):
        return PartitionProduceResponse(
            index=part.index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, base_offset=-1
        )
    partition_id = topic.partition_ids[part.index]
    log = broker.index.partition(partition_id)
    log_start_offset = log.start if log is not None else -1
    rules = broker.catalog.rules(topic)
    records = None if part.records is None else memoryview(part.records)
    verdict = check_produced(records, rules=rules, api_version=header.api_version, now_ms=broker.clock.wall_ms())
    if isinstance(verdict, Refusal):
        return _refused(part.index, verdict, log_start_offset)
    if records is None:
        raise AssertionError("validation accepted a partition without records")
    answer = PartitionProduceResponse(index=part.index, base_offset=-1, log_start_offset=log_start_offset)
    accepted.batches.append(
        PendingBatch(partition_id, topic.topic_id, part.index, records, verdict, rules.log_append_time)
    )
    accepted.answers.append(answer)
    return answer


def _refused(index: int, refusal: Refusal, log_start_offset: int = -1) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index,
        error_code=refusal.error,
        base_offset=-1,
        log_start_offset=log_start_offset,
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=each.batch_index, batch_index_error_message=each.message)
            for each in refusal.record_errors
        ],
        error_message=refusal.message,
    )


async def _wait(
    broker: Broker,
    timeout_ms: int,
    response: ProduceResponse,
    accepted: _Accepted,
    promises: Sequence[_Promise],
) -> ProduceResponse:
    started_ms = broker.clock.monotonic_ms()
    try:
        async with asyncio.timeout(max(timeout_ms, TIMEOUT_MS_MIN) / 1000):
            results = [result for promise in promises for result in await asyncio.shield(promise)]
    except TimeoutError:
        # The batches may yet be committed; an idempotent producer's retry will then be a duplicate.
        for answer in accepted.answers:
            answer.error_code = ErrorCode.REQUEST_TIMED_OUT
            answer.error_message = "the records were not committed in time; they may still be"
        return response
    finally:
        broker.metrics.produce_latency_seconds.observe((broker.clock.monotonic_ms() - started_ms) / 1000)
    for answer, result in zip(accepted.answers, results, strict=True):
        answer.error_code = result.error
        answer.base_offset = result.base_offset
        answer.log_append_time_ms = result.log_append_time_ms
    return response


async def _unanswered(response: ProduceResponse, promises: Sequence[_Promise]) -> None:
    refused = any(part.error_code for topic in response.responses for part in topic.partition_responses)
    if not refused:
        results = [result for promise in promises for result in await promise]
        refused = any(result.error for result in results)
    if refused:
        raise DropConnectionError
