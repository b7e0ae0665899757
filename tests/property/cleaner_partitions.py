"""Random partitions of every kind that a cleaner may meet. Each comes from one seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import cramjam

from compactor.cleaning.bounds import CleanBounds
from tests.fixtures.cleaning import ABORT, COMMIT, marker_batch
from tests.fixtures.record_batches import with_header
from wire.batch import (
    BATCH_HEADER_BYTES,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    ProducerStamp,
    read_header,
)
from wire.codecs import Codec, compress
from wire.records import NewRecord, _append_record, build_batch

KEYS = [
    b"",
    b"k",
    b"a",
    b"b",
    b"key-%d" % 7,
    b"x" * 111,
    b"y" * 112,
    b"z" * 300,
    b"\x00\x00\x00\x01",
    *(b"key-%d" % n for n in range(20)),
]
HORIZONS_MS = (1000, 2000, 3000)


@dataclass
class Partition:
    batches: list[bytes]
    aborted: list[tuple[int, int, int]]
    bounds: CleanBounds
    keys_max: int
    passes: int
    cuts: list[list[int]] = field(default_factory=list)
    """The places where windows end: those of the scan, and those of the rewrite."""


def random_partition(seed: int) -> Partition:
    r = random.Random(seed)
    maker = _Maker(r)
    for _ in range(r.choice((1, 3, 12, 30))):
        maker.step()
    batches = maker.batches
    edges = [header.base_offset for header in map(read_header, batches)] + [maker.end]
    stable = r.choice((maker.end, maker.end, r.choice(edges)))
    first_uncleanable = r.choice((stable, stable, min(stable, r.choice(edges)), r.randint(0, stable)))
    bounds = CleanBounds(
        first_uncleanable_offset=first_uncleanable,
        whole_through_offset=r.choice((maker.end, maker.end, r.choice(edges), r.randint(0, maker.end), 0)),
        now_ms=r.choice((500, 1000, 1999, 2500, 5000)),
        delete_horizon_ms=r.choice((6000, 7000, 2**40)),
        high_watermark=maker.end,
        last_stable_offset=stable,
        aborted=[one for one in maker.aborted if r.random() < 0.9],
    )
    return Partition(
        batches,
        list(bounds.aborted),
        bounds,
        keys_max=r.choice((1, 2, 3, 7, 1000, 1000)),
        passes=r.choice((1, 1, 1, 2, 3)),
        cuts=[sorted(r.sample(range(len(batches) + 1), r.randint(0, min(4, len(batches))))) for _ in range(2)],
    )


class _Maker:
    def __init__(self, r: random.Random) -> None:
        self.r = r
        self.batches: list[bytes] = []
        self.aborted: list[tuple[int, int, int]] = []
        self.end = r.choice((0, 0, 5, 2**40))
        self.open: dict[int, int] = {}
        self.keys = r.sample(KEYS, r.randint(1, len(KEYS)))
        self.codecs = r.choice((list(Codec), [Codec.NONE], [Codec.NONE, Codec.NONE, Codec.ZSTD]))

    def step(self) -> None:
        r = self.r
        if r.random() < 0.2:
            self.end += r.randint(1, 50)  # offsets that an earlier cleaning emptied
        kind = r.random()
        if kind < 0.6:
            self.add(self.data())
        elif kind < 0.75:
            producer_id = r.randint(1, 3)
            self.open.setdefault(producer_id, self.end)
            self.add(self.data(producer_id=producer_id, attributes=TRANSACTIONAL_BIT))
        elif kind < 0.9:
            self.end_transaction()
        else:
            self.add(self.empty())

    def add(self, batch: bytes) -> None:
        self.batches.append(batch)
        self.end = read_header(batch).next_offset

    def end_transaction(self) -> None:
        r = self.r
        producer_id = r.choice(list(self.open)) if self.open and r.random() < 0.8 else r.randint(1, 4)
        kind = r.choice((ABORT, COMMIT))
        first = self.open.pop(producer_id, None)
        # A listed transaction may have no data any more: a merge of a part of the log took it.
        if kind == ABORT and (first is not None or r.random() < 0.4):
            self.aborted.append((producer_id, self.end if first is None else first, self.end))
        batch = marker_batch(
            r.choice((kind, kind, kind, kind, 2)), producer_id, self.end, timestamp_ms=r.randint(0, 10**6)
        )
        if r.random() < 0.5:
            batch = self.with_horizon(batch)
        self.add(batch)

    def with_horizon(self, batch: bytes) -> bytes:
        attributes = read_header(batch).attributes | DELETE_HORIZON_BIT
        return with_header(batch, attributes=attributes, base_timestamp_ms=self.r.choice(HORIZONS_MS))

    def empty(self) -> bytes:
        r = self.r
        batch = build_batch(
            [NewRecord(1, b"k", b"v")], base_offset=self.end, producer=ProducerStamp(r.choice((-1, 1, 2)))
        )
        return with_header(
            batch[:BATCH_HEADER_BYTES],
            batch_length=BATCH_HEADER_BYTES - 12,
            base_timestamp_ms=-1,
            records_count=0,
            last_offset_delta=r.randint(0, 9),
            attributes=r.choice((0, 0, TRANSACTIONAL_BIT, TRANSACTIONAL_BIT | CONTROL_BIT)),
        )

    def record(self) -> NewRecord:
        r = self.r
        key = None if r.random() < 0.05 else r.choice(self.keys)
        value = r.choice((None, b"", b"v" * r.randint(1, 40), b"value" * r.randint(1, 60), b"%d" % r.getrandbits(60)))
        headers = tuple(
            (r.choice(("", "h", "h\u00e9ader" * 5)), r.choice((None, b"", b"w" * 70)))
            for _ in range(r.choice((0, 0, 0, 1, 3)))
        )
        return NewRecord(0, key, value, headers)

    def data(self, *, attributes: int = 0, producer_id: int = -1) -> bytes:
        """Some records, with gaps between their offsets if an earlier cleaning was there."""
        r = self.r
        span = r.choice((1, 2, 5, 20, 60))
        deltas = sorted(r.sample(range(span), r.randint(1, span)))
        plain = bytearray()
        spread = r.choice((1, 1, 100, 10**10, 2**62))
        for delta in deltas:
            _append_record(plain, self.record(), delta, r.choice((0, r.randint(-spread, spread))))
        codec = r.choice(self.codecs)
        payload = bytes(plain) if codec is Codec.NONE else compress(codec, plain)
        if codec is Codec.SNAPPY and r.random() < 0.5:
            payload = bytes(cramjam.snappy.compress_raw(bytes(plain)))
        attributes |= int(codec) | (LOG_APPEND_TIME_BIT if r.random() < 0.15 else 0)
        fields: dict[str, Any] = {
            "batch_length": BATCH_HEADER_BYTES - 12 + len(payload),
            "partition_leader_epoch": r.choice((0, 0, 7)),
            "attributes": attributes,
            "last_offset_delta": r.choice((deltas[-1], span - 1, span + 3)),
            "base_timestamp_ms": r.choice((0, -1, 1_700_000_000_000, r.randint(0, 2**40), 2**63 - 1)),
            "max_timestamp_ms": r.randint(-1, 2**50),
            "producer_id": producer_id,
            "producer_epoch": r.choice((-1, 0, 3)),
            "base_sequence": r.choice((-1, 0, 2**31 - 1)),
            "records_count": len(deltas),
        }
        head = build_batch([NewRecord(1, b"k", b"v")], base_offset=self.end)[:BATCH_HEADER_BYTES]
        batch = with_header(head + payload, **fields)
        return self.with_horizon(batch) if r.random() < 0.25 else batch
