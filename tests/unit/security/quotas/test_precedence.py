"""Kafka's eight levels, each against the ones below it."""

from __future__ import annotations

from itertools import combinations

import pytest

from security.quotas.precedence import Limit, QuotaTable, Share
from security.quotas.values import DEFAULT, QuotaEntity, QuotaKey

KEY = QuotaKey.PRODUCER_BYTE_RATE
LEVELS = [
    (QuotaEntity(user="ann", client_id="app"), Share(user="ann", client_id="app")),
    (QuotaEntity(user="ann", client_id=DEFAULT), Share(user="ann", client_id="app")),
    (QuotaEntity(user="ann"), Share(user="ann")),
    (QuotaEntity(user=DEFAULT, client_id="app"), Share(user="ann", client_id="app")),
    (QuotaEntity(user=DEFAULT, client_id=DEFAULT), Share(user="ann", client_id="app")),
    (QuotaEntity(user=DEFAULT), Share(user="ann")),
    (QuotaEntity(client_id="app"), Share(client_id="app")),
    (QuotaEntity(client_id=DEFAULT), Share(client_id="app")),
]


@pytest.mark.parametrize(("higher", "lower"), list(combinations(range(len(LEVELS)), 2)))
def test_the_narrower_level_wins(higher: int, lower: int) -> None:
    table = QuotaTable({LEVELS[lower][0]: {KEY: 2.0}, LEVELS[higher][0]: {KEY: 1.0}})
    assert table.limit(KEY, "ann", "app") == Limit(LEVELS[higher][1], 1.0)


@pytest.mark.parametrize(("entity", "share"), LEVELS)
def test_each_level_binds_alone(entity: QuotaEntity, share: Share) -> None:
    table = QuotaTable({entity: {KEY: 3.0}})
    assert table.limit(KEY, "ann", "app") == Limit(share, 3.0)
    assert table.limit(QuotaKey.CONSUMER_BYTE_RATE, "ann", "app") is None


def test_a_level_that_does_not_set_the_key_is_passed_over() -> None:
    table = QuotaTable(
        {
            QuotaEntity(user="ann"): {QuotaKey.CONSUMER_BYTE_RATE: 1.0},
            QuotaEntity(client_id="app"): {KEY: 5.0},
        }
    )
    assert table.limit(KEY, "ann", "app") == Limit(Share(client_id="app"), 5.0)


def test_others_are_not_bound() -> None:
    table = QuotaTable({QuotaEntity(user="ann"): {KEY: 1.0}, QuotaEntity(client_id="app"): {KEY: 1.0}})
    assert table.limit(KEY, "bob", "tool") is None
    # A user or client of the name of the default is a name like any other.
    assert QuotaTable({QuotaEntity(user=DEFAULT): {KEY: 1.0}}).limit(KEY, "default", "") is not None
    assert QuotaTable({QuotaEntity(user="default"): {KEY: 1.0}}).limit(KEY, "ann", "") is None


def test_an_address_has_its_own_quota_or_the_default() -> None:
    key = QuotaKey.CONNECTION_CREATION_RATE
    table = QuotaTable({QuotaEntity(ip="10.0.0.1"): {key: 5.0}, QuotaEntity(ip=DEFAULT): {key: 2.0}})
    assert table.connections_per_second("10.0.0.1") == Limit(Share(ip="10.0.0.1"), 5.0)
    assert table.connections_per_second("10.0.0.2") == Limit(Share(ip="10.0.0.2"), 2.0)
    assert QuotaTable({}).connections_per_second("10.0.0.2") is None
    assert table.keys == frozenset()
