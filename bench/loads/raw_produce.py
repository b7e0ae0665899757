"""Produce requests that were made before, by blocking sockets, at a rate: next to no work of a client's."""

from __future__ import annotations

import os
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from bench.loads.raw import RawClient, connected
from wire.api import decode_response
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.records import NewRecord, build_batch

PRODUCE, VERSION = 0, 9
CONNECTIONS = 8
IN_FLIGHT = 5
"""As Kafka's own producer has it, of each connection."""
REQUEST_BYTES = 1_000_000
TIMEOUT_MS = 30_000


class Sent(NamedTuple):
    value_bytes: int
    seconds: float


def produce_at(
    address: str,
    topic: str,
    *,
    partitions: int,
    record_bytes: int,
    rate_mb_per_s: float,
    seconds: float,
    context: ssl.SSLContext | None,
) -> Sent:
    """Returns once every request is answered. Raises RuntimeError if one is refused."""
    records = REQUEST_BYTES // partitions // record_bytes
    value = os.urandom(record_bytes)
    batch = build_batch([NewRecord(0, None, value)] * records)
    data = [PartitionProduceData(index=each, records=batch) for each in range(partitions)]
    request = ProduceRequest(
        acks=-1, timeout_ms=TIMEOUT_MS, topic_data=[TopicProduceData(name=topic, partition_data=data)]
    )
    request_bytes = records * partitions * record_bytes
    each = max(1, round(rate_mb_per_s * 1e6 * seconds / request_bytes / CONNECTIONS))
    interval_s = seconds / each

    def one(number: int) -> None:
        with connected(address, context) as client:
            waiting = 0
            begin_s = time.monotonic() + number * interval_s / CONNECTIONS
            for sent in range(each):
                time.sleep(max(0.0, begin_s + sent * interval_s - time.monotonic()))
                if waiting == IN_FLIGHT:
                    _answered(client)
                    waiting -= 1
                client.send(PRODUCE, VERSION, request)
                waiting += 1
            for _ in range(waiting):
                _answered(client)

    began_s = time.monotonic()
    with ThreadPoolExecutor(CONNECTIONS) as threads:
        list(threads.map(one, range(CONNECTIONS)))
    return Sent(each * CONNECTIONS * request_bytes, time.monotonic() - began_s)


def _answered(client: RawClient) -> None:
    _, answer = decode_response(PRODUCE, VERSION, client.receive())
    assert isinstance(answer, ProduceResponse)
    for topic in answer.responses:
        for partition in topic.partition_responses:
            if partition.error_code:
                raise RuntimeError(f"{topic.name}-{partition.index} was refused: error {partition.error_code}")
