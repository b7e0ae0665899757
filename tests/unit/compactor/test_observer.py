"""Gauges of the whole cluster: bounded in number, correct when the duty moves, and cheap to set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from compactor.compaction_metrics import largest_topics, show_no_sweep, show_nothing, show_view
from compactor.observer import LABEL_CHARS_MAX, OBSERVE_INTERVAL_MS, REST_FACTOR, Observer
from metadata.contract.operators import GroupLag, GroupLags, Observation, PostgresFigures, TableFigures
from metadata.memory.store import MemoryMetadata
from runtime.clock import ManualClock
from runtime.metrics import Metrics
from runtime.runtime import Runtime
from tests.fixtures.metadata_parts import Part
from tests.fixtures.plan_views import a_file, a_partition, a_view, an_extent

Samples = dict[tuple[str, ...], float]


def samples(metrics: Metrics, name: str) -> Samples:
    """The gauge's values by label values, as a reader of the text format finds them."""
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        tuple(each.labels.values()): each.value for family in families for each in family.samples if each.name == name
    }


UNREAD_MS = {7: 1_500, 4: 9_000, 5: 2_000}
"""By lag: the oldest unread record. One is of a producer whose clock is ahead; the store's time is 5,000."""


def lags(*pairs: tuple[str, str, int], total: int | None = None) -> GroupLags:
    largest = [
        GroupLag(group_id=group, topic=topic, lag=lag, newest_commit_ms=1_000, oldest_unread_ms=UNREAD_MS.get(lag))
        for group, topic, lag in pairs
    ]
    sum_of_shown = sum(each.lag for each in largest)
    return GroupLags(largest=largest, pairs=len(pairs), total_lag=sum_of_shown if total is None else total)


POSTGRES = PostgresFigures(
    oldest_xmin_transactions={"session": 7, "slot": 8, "prepared": 9},
    longest_transaction_seconds=1.5,
    connections={"active": 2, "idle": 3},
    connections_max=100,
    xid_age_transactions=1000,
    wal_position_bytes=50_000,
    slot_retained_bytes=4096,
    tables=[TableFigures(name="files", live_rows=10, dead_rows=3, size_bytes=8192)],
)


class Store(Part):
    """A metadata store with canned answers that take some time."""

    def __init__(self, clock: ManualClock, seen: GroupLags, *, took_ms: float = 10.0) -> None:
        super().__init__(MemoryMetadata(runtime=Runtime(clock=clock)).operators)
        self.clock, self.took_ms, self.asked = clock, took_ms, 0
        agents = {"serving": 3, "draining": 1}
        self.seen = Observation(now_ms=5_000, agents=agents, compactors=2, lags=seen, postgres=POSTGRES)

    async def observe(self, *, lags_max: int) -> Observation:
        self.asked += 1
        self.clock.advance_ms(self.took_ms)
        return self.seen


def observed(seen: GroupLags, **more: Any) -> tuple[Observer, Store, Metrics]:
    clock, metrics = ManualClock(), Metrics()
    store = Store(clock, seen, **more)
    return Observer(store, Runtime(clock=clock, metrics=metrics), lags_max=2), store, metrics


async def test_what_was_observed_is_shown_and_what_is_gone_is_not() -> None:
    observer, store, metrics = observed(lags(("g", "orders", 7), ("h", "users", 4), total=16))
    await observer.observe()
    assert samples(metrics, "siltstone_group_lag_offsets") == {("g", "orders"): 7, ("h", "users"): 4}
    assert samples(metrics, "siltstone_group_lag_seconds") == {("g", "orders"): 3.5, ("h", "users"): 0}
    assert samples(metrics, "siltstone_group_commit_age_seconds") == {("g", "orders"): 4, ("h", "users"): 4}
    assert samples(metrics, "siltstone_group_lag_rest_offsets") == {(): 5}
    assert samples(metrics, "siltstone_live_agents") == {("serving",): 3, ("draining",): 1}
    assert samples(metrics, "siltstone_live_compactors") == {(): 2}
    assert samples(metrics, "siltstone_postgres_dead_rows") == {("files",): 3}
    assert samples(metrics, "siltstone_postgres_oldest_xmin_transactions")[("slot",)] == 8
    # when the group has caught up on one topic and is forgotten on the other
    store.seen = replace(store.seen, lags=lags(("g", "orders", 0)))
    store.clock.advance_ms(OBSERVE_INTERVAL_MS)
    await observer.observe()
    assert samples(metrics, "siltstone_group_lag_offsets") == {("g", "orders"): 0}
    assert samples(metrics, "siltstone_group_lag_seconds") == {("g", "orders"): 0}
    assert samples(metrics, "siltstone_group_lag_rest_offsets") == {(): 0}


async def test_whoever_loses_the_duty_shows_nothing_any_more() -> None:
    observer, _, metrics = observed(lags(("g", "orders", 7)))
    await observer.observe()
    observer.show_nothing()
    for name in ("group_lag_offsets", "group_lag_seconds", "live_agents", "postgres_dead_rows", "postgres_connections"):
        assert samples(metrics, f"siltstone_{name}") == {}
    for name in ("live_compactors", "postgres_slot_retained_bytes", "group_lag_pairs", "postgres_xid_age_transactions"):
        assert samples(metrics, f"siltstone_{name}") == {(): 0}


async def test_log_written_while_others_observed_is_not_counted_as_a_burst() -> None:
    observer, store, metrics = observed(lags())

    async def at(position_bytes: int) -> float:
        store.seen = replace(store.seen, postgres=replace(POSTGRES, wal_position_bytes=position_bytes))
        store.clock.advance_ms(OBSERVE_INTERVAL_MS)
        await observer.observe()
        return samples(metrics, "siltstone_postgres_wal_bytes_total")[()]

    assert [await at(position) for position in (10**12, 10**12 + 500, 10**12 + 700)] == [0, 500, 700]
    observer.show_nothing()
    assert [await at(position) for position in (10**13, 10**13 + 1)] == [700, 701]
    assert await at(5) == 701  # a restore to an earlier point


async def test_a_name_that_no_label_can_carry_is_escaped_and_a_long_one_cut_off() -> None:
    long = "x" * LABEL_CHARS_MAX
    pairs = (("a\0b \udc80 é\n\"'", "t", 1), (long + "one", "t", 2), (long + "two", "t", 3))
    observer, _, metrics = observed(lags(*pairs))
    await observer.observe()
    assert samples(metrics, "siltstone_group_lag_offsets") == {("a\0b \\udc80 é\n\"'", "t"): 1, (long, "t"): 5}


async def test_a_slow_store_is_asked_so_much_more_rarely() -> None:
    observer, store, _ = observed(lags(), took_ms=2_000)
    for _ in range(21):  # 210 s of rounds: two seconds for the queries, 38 s of rest
        await observer.observe()
        store.clock.advance_ms(OBSERVE_INTERVAL_MS)
    assert store.asked * 2_000 <= store.clock.monotonic_ms() / (REST_FACTOR + 1) + 2_000
    assert store.asked >= 4


# ---- the metrics of the planner and the janitor


def extents(*lengths: int) -> Sequence[Any]:
    return [an_extent(at, at * 10, at * 10 + 9, 1, length=length) for at, length in enumerate(lengths)]


def test_the_largest_topics_are_shown_and_the_rest_summed() -> None:
    view = a_view(
        partitions=[
            a_partition(1, extents(100, 50), topic_name="b"),
            a_partition(2, extents(60), topic_name="b", partition=1),
            a_partition(3, extents(300), topic_name="a"),
            a_partition(4, extents(7), topic_name="d"),
            a_partition(5, extents(7), topic_name="c"),
            a_partition(6, (), topic_name="empty"),
        ]
    )
    assert largest_topics(view.partitions, 3) == ({"a": 300, "b": 210, "c": 7}, 7)
    assert largest_topics(view.partitions, 0) == ({}, 524)
    metrics = Metrics()
    show_view(metrics, view, topics_max=1)
    assert samples(metrics, "siltstone_compacted_topic_bytes") == {("a",): 300}
    assert samples(metrics, "siltstone_compacted_topics_rest_bytes") == {(): 224}
    show_nothing(metrics)
    assert samples(metrics, "siltstone_compacted_topic_bytes") == {}
    assert samples(metrics, "siltstone_compacted_topics_rest_bytes") == {(): 0}


def test_files_are_counted_by_level_but_not_those_that_no_object_holds() -> None:
    files = [a_file(1, 0, size_bytes=7), a_file(2, 0, size_bytes=5, is_inline=True), a_file(3, 1, size_bytes=100)]
    metrics = Metrics()
    show_view(metrics, a_view(files))
    assert samples(metrics, "siltstone_level_files") == {("0",): 1, ("1",): 1, ("2",): 0}
    assert samples(metrics, "siltstone_level_bytes") == {("0",): 7, ("1",): 100, ("2",): 0}


def test_markers_that_wait_for_their_merge_have_an_age() -> None:
    metrics = Metrics()
    show_view(metrics, a_view([a_file(1, 0, is_inline=True, created_ms=4_000)], now_ms=10_000))
    assert samples(metrics, "siltstone_l0_oldest_seconds") == {(): 6}


def test_partitions_are_shown_for_topics_that_ask_and_the_dirtiest_first() -> None:
    asks = {"cleanup.policy": "compact", "siltstone.metrics.partitions": "true"}
    view = a_view(
        now_ms=60_000,
        partitions=[
            a_partition(
                1, extents(100, 100), topic_name="a", configs=asks, cleaned_through_offset=20, last_cleaned_ms=0
            ),
            a_partition(
                2, extents(100, 300), topic_name="a", configs=asks, cleaned_through_offset=10, last_cleaned_ms=0
            ),
            a_partition(3, extents(100), topic_name="quiet"),
        ],
    )
    metrics = Metrics()
    show_view(metrics, view)
    assert samples(metrics, "siltstone_partition_dirty_ratio") == {("1", "a"): 0.0, ("2", "a"): 0.75}
    assert samples(metrics, "siltstone_partition_extents") == {("1", "a"): 2, ("2", "a"): 2}
    assert samples(metrics, "siltstone_partition_seconds_since_clean") == {("1", "a"): 60, ("2", "a"): 60}
    show_view(metrics, view, partitions_max=1)
    assert samples(metrics, "siltstone_partition_extents") == {("2", "a"): 2}
    show_nothing(metrics)
    assert samples(metrics, "siltstone_partition_extents") == {}


def test_a_janitor_that_hands_over_shows_none_of_what_it_found() -> None:
    metrics = Metrics()
    gauges = ("dead_files_waiting", "dead_bytes_waiting", "orphans", "orphans_spared", "foreign_objects")
    for name in gauges:
        getattr(metrics, name).set(5)
    show_no_sweep(metrics)
    assert [samples(metrics, f"siltstone_{name}") for name in gauges] == [{(): 0}] * len(gauges)
