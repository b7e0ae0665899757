"""`make bench-transactions`: what transactions cost, beside the same records without them and beside Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from bench.cases.produce import NO_JARS
from bench.cases.transactions import ends, others, reading, throughput
from bench.loads.load import KafkaTarget, progress, warm
from bench.registry import Size
from bench.servers.kafka import Broker, find_jars
from bench.table import Table


def run(size: Size) -> Iterator[Table]:
    jars = find_jars()
    if jars is None:
        progress(NO_JARS)
    with ExitStack() as stack:
        kafka: KafkaTarget | None = warm(stack.enter_context(Broker(jars))) if jars is not None else None
        yield ends.measure_ends(size, kafka)
        yield throughput.measure_throughput(size, kafka)
    yield ends.measure_puts(size)
    yield reading.measure_reading(size)
    yield others.measure_others(size)
