"""The price of what a load asked of the object store, at list prices, beside the least that it can be. Pure.

The prices are those of `siltstone cost` for S3 Standard, whatever store a row really ran on: a local directory is
counted as if it were a bucket. Postgres has no price for each byte, so its WAL is counted and not priced.

The least (*floor*): one PUT for each sealed file; for each level above, one PUT for each part and the two requests
that open and close an upload; one GET for each MiB that leaves the store, in each zone that reads; for merges, one GET
for each input file, or for each window of a larger one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from agents.read.cache import BLOCK_BYTES
from bench.table import Cell, Column
from compactor.merging.cursors import WINDOW_BYTES
from siltstone.ops.cost.prices import PRICES
from storage.format.file_writer import PART_BYTES

GIB, MIB = 1 << 30, 1 << 20

PUT_OPS = (
    "put",
    "list",
    "multipart_start",
    "multipart_write",
    "multipart_complete",
    "multipart_sweep",
    "multipart_list",
)
"""Operations of `object_requests_total` that S3 bills as a PUT."""
GET_OPS = ("get", "get_range", "head")
"""Those that it bills as a GET. Deletions and aborts are free."""

PRICE_COLUMNS = (
    Column("WAL", "MiB/GiB", 2),
    Column("store price", "$/GiB", 5),
    Column("of floor", "x", 2),
    Column("PUT class", "1/GiB", detail=True),
    Column("GET class", "1/GiB", detail=True),
    Column("written", "B/GiB", detail=True),
    Column("read", "B/GiB", detail=True),
    Column("floor", "$/GiB", 5, detail=True),
)
MERGE_PRICE_COLUMNS = PRICE_COLUMNS[1:]
"""Without WAL: these merges run without a Postgres."""
PRICE_NOTE = (
    "Store price: the requests at S3's list prices for 1 GiB of records, as if a local store were a bucket; of floor: "
    "beside one PUT for each sealed file, and one GET for each MiB read from the store (below 1: larger GETs)."
)
MERGE_PRICE_NOTE = (
    "Store price: the requests at S3's list prices for 1 GiB of inputs; of floor: beside one GET for each input file "
    f"or {WINDOW_BYTES // MIB} MiB of it, and one PUT for each part of {PART_BYTES // MIB} MiB and two for each upload."
)


class Counted(Protocol):
    """Counters of object requests, summed over processes."""

    def sum(self, name: str, **labels: str) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The requests of a load to the object store and to Postgres."""

    puts: float = 0
    """Requests billed as PUT: also LIST, and each part of an upload."""
    gets: float = 0
    written_bytes: float = 0
    read_bytes: float = 0
    wal_bytes: float = 0

    def __add__(self, other: Asked) -> Asked:
        return Asked(
            puts=self.puts + other.puts,
            gets=self.gets + other.gets,
            written_bytes=self.written_bytes + other.written_bytes,
            read_bytes=self.read_bytes + other.read_bytes,
            wal_bytes=self.wal_bytes + other.wal_bytes,
        )

    def for_each(self, amount: float) -> Asked:
        """The requests of one unit of `amount`."""
        return Asked(
            puts=self.puts / amount,
            gets=self.gets / amount,
            written_bytes=self.written_bytes / amount,
            read_bytes=self.read_bytes / amount,
            wal_bytes=self.wal_bytes / amount,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The least requests for a load."""

    puts: float = 0
    gets: float = 0

    def __add__(self, other: Floor) -> Floor:
        return Floor(puts=self.puts + other.puts, gets=self.gets + other.gets)

    def for_each(self, amount: float) -> Floor:
        return Floor(puts=self.puts / amount, gets=self.gets / amount)


def asked_of(counters: Counted, wal_bytes: float) -> Asked:
    """The requests of the processes, by their own counters."""

    def total(name: str, ops: Sequence[str]) -> float:
        return sum(counters.sum(name, op=op) for op in ops)

    return Asked(
        puts=total("object_requests_total", PUT_OPS),
        gets=total("object_requests_total", GET_OPS),
        written_bytes=total("object_bytes_total", PUT_OPS),
        read_bytes=total("object_bytes_total", GET_OPS),
        wal_bytes=wal_bytes,
    )


def requests_usd(requests: Asked | Floor, prices: Mapping[str, float] | None = None) -> float:
    """The price of the requests; `prices` by name, those of `siltstone cost` if left out."""
    put = prices["s3.put.1000"] if prices is not None else PRICES["s3.put.1000"].usd
    get = prices["s3.get.1000"] if prices is not None else PRICES["s3.get.1000"].usd
    return (requests.puts * put + requests.gets * get) / 1000


def month_usd(stored_bytes: float) -> float:
    """Bytes kept for a month in S3 Standard."""
    return stored_bytes / GIB * PRICES["s3.standard.gib.month"].usd


def floor_in(files: float) -> Floor:
    return Floor(puts=files)


def floor_out(store_bytes: float, *, zones: int = 1) -> Floor:
    """`store_bytes`: read from the store, in each of `zones`."""
    return Floor(gets=zones * store_bytes / BLOCK_BYTES)


def floor_merge(inputs_bytes: Sequence[float], outputs_bytes: Sequence[float]) -> Floor:
    """One merge, or several: each input is read once, each output written once."""
    return Floor(
        puts=sum(1 if size <= PART_BYTES else -(-size // PART_BYTES) + 2 for size in outputs_bytes),
        gets=sum(max(1, -(-size // WINDOW_BYTES)) for size in inputs_bytes),
    )


def of_floor(asked: Asked, floor: Floor) -> float | None:
    """None where nothing had to be asked."""
    least = requests_usd(floor)
    return requests_usd(asked) / least if least else None


def price_cells(asked: Asked, floor: Floor, records_bytes: float) -> list[Cell]:
    """The cells of PRICE_COLUMNS. `records_bytes`: of the load's record values."""
    if not records_bytes:
        return [None] * len(PRICE_COLUMNS)
    gib = records_bytes / GIB
    return [
        asked.wal_bytes / MIB / gib,
        requests_usd(asked) / gib,
        of_floor(asked, floor),
        asked.puts / gib,
        asked.gets / gib,
        asked.written_bytes / gib,
        asked.read_bytes / gib,
        requests_usd(floor) / gib,
    ]


def no_price() -> list[Cell]:
    """The cells of PRICE_COLUMNS for a broker without an object store."""
    return [None] * len(PRICE_COLUMNS)
