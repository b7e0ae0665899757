"""The prices of the store with the L0 files: S3 Standard, or as the second store S3 Express One Zone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ONE_ZONE_NOTE = (
    "--second-store: a directory bucket lies in one zone. If that zone loses data, records that were not merged yet are"
    " lost, although they were acknowledged"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class L0Store:
    """Prices in dollars."""

    name: str
    put_1000: float
    get_1000: float
    upload_gib: float
    retrieval_gib: float
    gib_month: float
    upload_ms_p50: float
    upload_ms_p99: float
    upload_source: str


def l0_store(prices: Mapping[str, float], *, second: bool) -> L0Store:
    """The store that takes L0 files; `second`: a bucket of S3 Express One Zone."""
    if second:
        return L0Store(
            name="Express One Zone",
            put_1000=prices["s3.express.put.1000"],
            get_1000=prices["s3.express.get.1000"],
            upload_gib=prices["s3.express.upload.gib"],
            retrieval_gib=prices["s3.express.retrieval.gib"],
            gib_month=prices["s3.express.gib.month"],
            upload_ms_p50=10,
            upload_ms_p99=20,
            upload_source="the second store is assumed to take 10 ms, at p99 20 ms",
        )
    return L0Store(
        name="Standard",
        put_1000=prices["s3.put.1000"],
        get_1000=prices["s3.get.1000"],
        upload_gib=0,
        retrieval_gib=0,
        gib_month=prices["s3.standard.gib.month"],
        upload_ms_p50=125,
        upload_ms_p99=250,
        upload_source="S3 takes 125 ms, at p99 250 ms, by WarpStream's published latencies",
    )
