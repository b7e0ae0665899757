"""`make bench-cold`: twelve partitions read from the store by an agent that holds none of it, beside Apache Kafka.

The rows of `bench consume` with nothing in memory: records that still lie in L0 files, from a local directory and from
S3, by an agent that was just started. Kafka reads from the page cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from bench.cases import consume
from bench.cases.produce import NO_JARS
from bench.loads.load import progress, warm
from bench.measures.limits import loopback
from bench.registry import Size
from bench.servers.kafka import Broker, find_jars
from bench.servers.stack import Store
from bench.table import Table

PARTITIONS = 12
STORES = {Size.SMALL: (Store.LOCAL, Store.S3), Size.FULL: (Store.LOCAL, Store.S3, Store.S3_DISTANT)}


def run(size: Size) -> Iterator[Table]:
    jars = find_jars()
    if jars is None:
        progress(NO_JARS)
    echo_mb_per_s = loopback("socket", seconds=1.0).mb_per_s
    rows: list[consume.Measured] = []
    with ExitStack() as stack:
        if jars is not None:
            kafka = warm(stack.enter_context(Broker(jars)))
            for reads in rows_of(size):
                rows += consume.on_kafka(kafka, reads, size, jars)
    for store in STORES[size]:
        for reads in rows_of(size):
            rows += consume.on_ours(store, reads, size, jars, sources=(consume.STORE,))
    yield consume.table("Consuming, with nothing in memory", rows, echo_mb_per_s, jars)


def rows_of(size: Size) -> Sequence[consume.Reads]:
    return [reads for reads in consume.rows_of(size) if reads.partitions == PARTITIONS]
