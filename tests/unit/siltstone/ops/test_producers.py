"""Which producers wait, and the advice for each library, from the pages of agents."""

from __future__ import annotations

from typing import Any

import pytest

from siltstone.ops.doctor import Verdict, judge_producers
from siltstone.ops.producers import (
    Budget,
    Producer,
    advice_for,
    budget_advice,
    budget_of,
    producers_of,
    round_text,
)

KIB = 1 << 10


def client(**sums: Any) -> dict[str, Any]:
    return {
        "client_id": "orders",
        "software": "apache-kafka-java",
        "rounds": 100,
        "requests": 500,
        "batches": 500,
        "bytes": 500 * 16 * KIB,
        "wait_ms": 900.0,
        "away_ms": 100.0,
        **sums,
    }


def page(*clients: dict[str, Any], **more: Any) -> dict[str, Any]:
    rates = {"early_per_second": 20.0, "early_tokens": 300.0, "put_ms": 30.0, "commit_ms": 3.0}
    return {**rates, "clients": list(clients), **more}


def only(**sums: Any) -> Producer:
    (found,) = producers_of([page(client(**sums))])
    return found


def budget(**rates: Any) -> Budget:
    return budget_of("http://a:1", page(**rates))


def test_the_sums_of_all_agents_are_added_and_those_of_before_are_not_counted() -> None:
    now = [page(client(), client(client_id="b", bytes=10**9)), page(client(rounds=10, wait_ms=100.0))]
    before = [page(client(rounds=40, bytes=40 * 80 * KIB, wait_ms=400.0, away_ms=0.0)), page()]
    largest, orders = producers_of(now, before)
    assert largest.client_id == "b"
    assert (orders.rounds, orders.wait_ms, orders.away_ms) == (70, 600.0, 200.0)
    assert orders.waiting_share == pytest.approx(0.75)


def test_a_client_without_rounds_meanwhile_and_an_agent_that_started_again_are_left_out() -> None:
    assert not producers_of([page(client())], [page(client())])
    assert not producers_of([page(client(rounds=3))], [page(client())])
    assert not producers_of([{}])


@pytest.mark.parametrize("fewer", ["requests", "bytes", "wait_ms", "away_ms"])
def test_an_agent_that_started_again_may_have_some_larger_sums_than_before(fewer: str) -> None:
    (found,) = producers_of([page(client())], [page(client(rounds=1, batches=1, **{fewer: 1e9}))])
    assert getattr(found, fewer) == 0
    assert 0 <= found.waiting_share <= 1
    assert round_text(found)
    advice_for(found)


@pytest.mark.parametrize("part", [{"rounds": 0.5}, {"batches": 0.5}])
def test_less_than_one_round_or_batch_is_none(part: dict[str, float]) -> None:
    assert not producers_of([page(client(**part))])


@pytest.mark.parametrize(
    ("software", "setting"),
    [
        ("apache-kafka-java", "batch.size=1000000, linger.ms=50"),
        ("confluent-kafka-python", "batch.size=1000000, linger.ms=50"),
        ("kafka-python", "batch_size=1000000, linger_ms=50"),
        ("aiokafka", "max_batch_size=1000000, linger_ms=50"),
        ("sarama", "Producer.Flush.Bytes=1000000"),
        ("kgo", "kgo.ProducerLinger(50ms)"),
        ("", "batch.size=1000000, linger.ms=50 (aiokafka: max_batch_size=1000000, linger_ms=50)"),
    ],
)
def test_the_advice_is_in_the_words_of_the_client(software: str, setting: str) -> None:
    advice = advice_for(only(software=software))
    assert advice.startswith(setting)
    assert advice.endswith("up to 61 times as many bytes in a round")


def test_a_library_that_does_not_tell_its_name_is_known_by_its_default_client_id() -> None:
    producer = only(software="", client_id="aiokafka-producer-1")
    assert advice_for(producer).startswith("max_batch_size=1000000")


def test_the_advice_fits_the_round() -> None:
    assert round_text(only()) == "80.0 KiB in 5 batches"
    assert advice_for(only(rounds=9)) == "", "too few to judge"
    assert advice_for(only(wait_ms=90.0)) == "", "it is busy with itself"
    assert "send many, then wait" in advice_for(only(bytes=100 * 300))
    assert "more partitions" in advice_for(only(bytes=500 * 900_000))


def test_the_budget_is_named_only_where_it_is_what_clients_wait_for() -> None:
    assert budget_advice(budget()) == ""
    assert budget_advice(budget(early_tokens=0.3)) == (
        "http://a:1 has spent its budget of early seals: produce.early.per.second=30 instead of 20 would serve every"
        " round at once, for up to $135 a month more in PUTs on S3"
    )
    assert budget_advice(budget(early_tokens=0.3, early_per_second=250.0)) == ""
    assert budget_advice(budget(early_tokens=0.3, put_ms=0.0, commit_ms=0.0)) == "", "nothing was written yet"
    assert "seals no file early" in budget_advice(budget(early_per_second=0.0))


def test_the_doctor_names_the_producer_that_waits_longest() -> None:
    assert judge_producers([only(wait_ms=10.0)]).verdict is Verdict.OK
    check = judge_producers([only(), only(client_id="slowest", wait_ms=9000.0)])
    assert check.verdict is Verdict.WARN
    assert (
        check.detail
        == "slowest has waited 99% of its time since the agents started, with 80.0 KiB in 5 batches a round, and 1 more"
    )
    assert check.remedy.startswith("batch.size=1000000")
