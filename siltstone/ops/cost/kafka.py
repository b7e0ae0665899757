"""The same load on Kafka with three replicas: all of it on EBS, or with tiered storage (KIP-405). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from siltstone.ops.cost import formulas

MS_PER_MB = 2.6
FETCH_MS_PER_MB = 0.52
FULL_SHARE = 0.7
VOLUME_MIB_PER_S = 125
BUSY_SHARE = 0.55
REPLICAS = 3
REMOTE_PART_MIB = 25
REMOTE_READ_MIB = 4
"""Sizes of PUTs and GETs: assumptions, as plugins for S3 differ. Their requests are a small line of the bill."""


class KafkaLoad(Protocol):
    """The parts of a load that the cost of Kafka depends on."""

    @property
    def mib_s(self) -> float: ...
    @property
    def zones(self) -> int: ...
    @property
    def consumers(self) -> int: ...
    @property
    def replay_share(self) -> float: ...
    @property
    def retention_days(self) -> float: ...
    @property
    def compacted_gib(self) -> float: ...
    @property
    def kafka_local_hours(self) -> float: ...


Lines = Sequence[tuple[str, str, float]]


def kafka_lines(load: KafkaLoad, prices: Mapping[str, float]) -> Lines:
    retention_s = load.retention_days * 86_400
    return [_volumes(load, prices, retention_s), *_machines(load, prices)]


def tiered_lines(load: KafkaLoad, prices: Mapping[str, float]) -> Lines:
    """One copy of everything in S3, and the newest hours on the volumes, too. Compacted topics cannot be tiered."""
    local_s = min(load.retention_days * 86_400, load.kafka_local_hours * 3600)
    remote_gib = load.mib_s * load.retention_days * 86_400 / formulas.MIB_PER_GIB
    puts, gets = load.mib_s / REMOTE_PART_MIB, load.mib_s * load.replay_share / REMOTE_READ_MIB
    requests = formulas.requests_usd_per_month(puts, usd_per_1000=prices["s3.put.1000"])
    requests += formulas.requests_usd_per_month(gets, usd_per_1000=prices["s3.get.1000"])
    return [
        _volumes(load, prices, local_s),
        ("tiered", f"{remote_gib:,.0f} GiB in S3 Standard", remote_gib * prices["s3.standard.gib.month"]),
        ("requests", f"{puts + gets:,.1f}/s: parts of {REMOTE_PART_MIB} MiB, replays of {REMOTE_READ_MIB}", requests),
        *_machines(load, prices),
    ]


def _volumes(load: KafkaLoad, prices: Mapping[str, float], kept_s: float) -> tuple[str, str, float]:
    gib = formulas.kafka_stored_gib(load.mib_s, retention_s=kept_s, replicas=REPLICAS, full_share=FULL_SHARE)
    gib += load.compacted_gib * REPLICAS / FULL_SHARE
    # The price of a gp3 volume includes this throughput; only what is above it costs extra.
    over_mib_s = max(0.0, load.mib_s * REPLICAS - VOLUME_MIB_PER_S * _hosts(load))
    usd = gib * prices["ebs.gp3.gib.month"] + over_mib_s * prices["ebs.gp3.mib.s.month"]
    return ("volumes", f"{gib:,.0f} GiB of gp3", usd)


def _machines(load: KafkaLoad, prices: Mapping[str, float]) -> Lines:
    crossing = formulas.gib_per_month(
        formulas.kafka_cross_zone_mib_per_second(
            load.mib_s, zones=load.zones, replicas=REPLICAS, groups=load.consumers, follower_fetching=True
        )
    )
    hosts = _hosts(load)
    return [
        ("between zones", f"{crossing:,.0f} GiB: producers and replication", crossing * prices["zones.gib"]),
        ("brokers", f"{hosts} of 2 vCPU", hosts * prices["ec2.host.hour"] * formulas.HOURS_PER_MONTH),
    ]


def _hosts(load: KafkaLoad) -> int:
    """Hosts of 2 vCPU."""
    cores = formulas.agent_cpu_cores(
        produced_mb_per_s=load.mib_s * formulas.MB_PER_MIB * REPLICAS,
        from_memory_mb_per_s=load.mib_s * formulas.MB_PER_MIB * (load.consumers + load.replay_share),
        from_store_mb_per_s=0,
        produce_ms_per_mb=MS_PER_MB,
        memory_ms_per_mb=FETCH_MS_PER_MB,
        store_ms_per_mb=0,
    )
    return formulas.processes_needed(cores / 2, busy_share=BUSY_SHARE, least=REPLICAS)
