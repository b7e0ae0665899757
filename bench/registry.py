"""The list of benchmarks. One row per module; a module is loaded when its benchmark is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from bench.table import Table


class Size(Enum):
    SMALL = "small"
    """A part of the rows, briefly: all benchmarks together in under 10 minutes."""
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Benchmark:
    name: str
    doc: str
    """One line: what it measures."""
    run: Callable[[Size], Iterable[Table]]
    """Yields each table as soon as it is complete."""


def _module(name: str, doc: str, *, folder: str = "bench.cases") -> Benchmark:
    def run(size: Size) -> Iterable[Table]:
        return importlib.import_module(f"{folder}.{name}").run(size)

    return Benchmark(name, doc, run)


SPARK = "bench.cases.spark"
POSTGRES = "bench.cases.postgres"
TOGETHER = "bench.cases.together"
TRANSACTIONS = "bench.cases.transactions"
KEYED_TABLE = "bench.cases.keyed_table"

BENCHMARKS: tuple[Benchmark, ...] = (
    _module("file_build", "grouping batches by partition and laying out one 8 MiB file"),
    _module("commit", "the metadata commit of one file at 10 to 5,000 partitions", folder=POSTGRES),
    _module(
        "commit_sessions", "commits of 1 to 16 agents at once, of the same and of disjoint partitions", folder=POSTGRES
    ),
    _module("large_metadata", "periodic calls on 10 M extents, 1 M producers and 10,000 writers", folder=POSTGRES),
    _module("long_run", "twelve writers with merges and sweeps for long: what grows, what slows", folder=POSTGRES),
    _module("groups", "commits of consumer groups' offsets: rate, WAL, and how large the table becomes"),
    _module("followers", "what idle agents, and agents that hear of commits, cost Postgres", folder=TOGETHER),
    _module("metadata", "the Metadata answer for 50,000 partitions, fresh and repeated"),
    _module("security", "what TLS, logins and judgements by 100,000 ACLs cost an agent"),
    _module("scale", "an agent's start, stalls and memory at 10,000 and 100,000 partitions, to 5,000 connections"),
    _module("store_client", "the CPU that a PUT and a GET cost the process that asks"),
    _module("kernels", "the compactor's compiled kernels, per record"),
    _module("compact", "a whole compaction of one partition, per record"),
    _module("keyed_table", "changed keys merged into an Iceberg table with one row per key", folder=KEYED_TABLE),
    _module("spark", "heavy merges on Spark and without", folder=SPARK),
    _module("spark_source", "a topic read into Spark, by our source and by Spark's own from an agent", folder=SPARK),
    _module("produce", "producing through Kafka clients"),
    _module("stock", "producing through clients as they come, with nothing set but the address"),
    _module("consume", "consuming through Kafka clients"),
    _module("transactions", "transactions: ends, PUTs, throughput, reading, the others' commits", folder=TRANSACTIONS),
    _module("tail", "from the producer's send to the consumer's hands, with 1 to 12 writers"),
    _module("replay", "reading merged history, and the tail beside it"),
    _module("cold", "consuming twelve partitions with nothing in memory", folder=TOGETHER),
    _module("latency", "how soon a record is acknowledged and read, with a second store", folder=TOGETHER),
    _module("zone", "GETs when every agent reads what all write, with and without the zone", folder=TOGETHER),
    _module("costs", "every request to S3 from a producer to a replay, in dollars for 1 GiB", folder=TOGETHER),
    _module("fleet", "the whole fleet replaced by other addresses, under stock clients of every kind", folder=TOGETHER),
)


def find(names: Iterable[str]) -> list[Benchmark]:
    """The named benchmarks in the order of `BENCHMARKS`; all of them if no name is given.

    Raises ValueError that names the unknown ones and lists the known.
    """
    wanted = set(names)
    unknown = wanted - {benchmark.name for benchmark in BENCHMARKS}
    if unknown:
        known = ", ".join(benchmark.name for benchmark in BENCHMARKS)
        raise ValueError(f"no benchmark is called {', '.join(sorted(unknown))}; there are: {known}")
    return [benchmark for benchmark in BENCHMARKS if not wanted or benchmark.name in wanted]
