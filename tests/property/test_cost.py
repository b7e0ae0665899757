"""The bill grows with the loads that should make it grow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from siltstone.ops.cost.estimate import Cost, Load, cost_of, flow_of, prices_with
from siltstone.ops.cost.prices import PRICES

LIST = prices_with({})

LOADS = st.builds(
    Load,
    mib_s=st.floats(0.01, 5_000),
    agents=st.integers(1, 200),
    compactors=st.integers(0, 20),
    zones=st.integers(1, 6),
    retention_days=st.floats(0.1, 800),
    consumers=st.integers(0, 20),
    replay_share=st.floats(0, 5),
    partitions=st.integers(1, 100_000),
    linger_ms=st.floats(5, 5_000),
    early_per_second=st.floats(0, 100),
    storage_class=st.sampled_from(["standard", "standard-ia", "glacier-ir", "intelligent-tiering"]),
    noncurrent_days=st.floats(0, 30),
    compacted_gib=st.floats(0, 10_000),
    zone_aware=st.booleans(),
    spark=st.booleans(),
    second_store=st.booleans(),
)


def usd(estimated: Cost, item: str) -> float:
    return sum(line.usd for line in estimated.lines if line.item == item)


def grows(load: Load, items: tuple[str, ...], **more: Any) -> None:
    less, greater = cost_of(load, LIST), cost_of(replace(load, **more), LIST)
    for item in items:
        assert usd(greater, item) >= usd(less, item) * (1 - 1e-9), item


@given(LOADS, st.floats(1, 10))
def test_more_bytes_cost_no_less(load: Load, times: float) -> None:
    items = ("PUT L0", "GET replays", "stored L0", "stored L2", "between zones", "agents", "Postgres")
    grows(load, items, mib_s=load.mib_s * times)


@given(LOADS, st.integers(0, 50))
def test_more_agents_make_no_fewer_files(load: Load, more: int) -> None:
    grows(load, ("PUT L0", "agents"), agents=load.agents + more)


@given(LOADS, st.floats(1, 10))
def test_a_longer_linger_makes_no_more_files(load: Load, times: float) -> None:
    shorter, longer = flow_of(load), flow_of(replace(load, linger_ms=load.linger_ms * times))
    assert longer.files_per_s <= shorter.files_per_s * (1 + 1e-9)


@given(LOADS, st.integers(0, 10), st.floats(0, 3))
def test_more_readers_cost_no_less(load: Load, groups: int, share: float) -> None:
    items = ("GET tail", "GET replays", "between zones", f"  {load.storage_class} reads")
    grows(load, items, consumers=load.consumers + groups, replay_share=load.replay_share + share)


@given(LOADS, st.floats(0, 100))
def test_what_is_kept_for_longer_costs_no_less(load: Load, days: float) -> None:
    standard = replace(load, storage_class="standard")
    grows(standard, ("stored L2",), retention_days=load.retention_days + days)
    grows(load, ("old versions",), noncurrent_days=load.noncurrent_days + days)


@given(LOADS)
def test_no_line_is_negative_and_doubled_prices_double_the_bill(load: Load) -> None:
    estimated = cost_of(load, LIST)
    assert all(line.usd >= 0 for line in (*estimated.lines, *estimated.kafka))
    doubled = cost_of(load, prices_with({name: 2 * price.usd for name, price in PRICES.items()}))
    assert abs(doubled.usd - 2 * estimated.usd) <= 1e-6 * doubled.usd
    assert abs(doubled.kafka_usd - 2 * estimated.kafka_usd) <= 1e-6 * doubled.kafka_usd
