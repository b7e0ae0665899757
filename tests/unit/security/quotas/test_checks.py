from __future__ import annotations

import math

import pytest

from security.quotas.checks import NAME_BYTES_MAX, QuotaError, check_value, entity_of, key_of, keys_of
from security.quotas.values import DEFAULT, QuotaEntity, QuotaKey


def test_entities_are_read() -> None:
    assert entity_of([("user", "ann"), ("client-id", None)]) == QuotaEntity(user="ann", client_id=DEFAULT)
    assert entity_of([("client-id", "app")]) == QuotaEntity(client_id="app")
    assert entity_of([("ip", "::1")]) == QuotaEntity(ip="::1")
    assert entity_of([("user", "x" * NAME_BYTES_MAX)]).user == "x" * NAME_BYTES_MAX


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([], "the entity is empty"),
        ([("group", "a")], "no entity type 'group'"),
        ([("user", "a"), ("user", "b")], "names 'user' twice"),
        ([("user", "")], "the name of the user is empty"),
        ([("user", "a\0b")], "zero byte"),
        ([("user", "ä" * NAME_BYTES_MAX)], "more than 249 bytes"),
        ([("ip", "10.0.0.1"), ("user", "a")], "an ip cannot be combined"),
        ([("ip", "example.com")], "'example.com' is not an IP address"),
    ],
)
def test_other_entities_are_refused(parts: list[tuple[str, str | None]], said: str) -> None:
    with pytest.raises(QuotaError, match=said):
        entity_of(parts)


def test_each_entity_has_its_keys() -> None:
    user, ip = QuotaEntity(user="ann"), QuotaEntity(ip=DEFAULT)
    assert key_of(user, "producer_byte_rate") is QuotaKey.PRODUCER_BYTE_RATE
    assert set(keys_of(user)) | set(keys_of(ip)) == set(QuotaKey)
    for entity, key in ((ip, "producer_byte_rate"), (user, "connection_creation_rate"), (user, "burst")):
        with pytest.raises(QuotaError, match=f"'{key}' cannot be set"):
            key_of(entity, key)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("key", QuotaKey)
def test_values_are_above_zero(key: QuotaKey, value: float) -> None:
    with pytest.raises(QuotaError, match="must be above 0"):
        check_value(key, value)


def test_bytes_and_connections_are_whole_numbers() -> None:
    check_value(QuotaKey.REQUEST_PERCENTAGE, 0.5)
    check_value(QuotaKey.CONSUMER_BYTE_RATE, 1e15)
    for key, value in ((QuotaKey.PRODUCER_BYTE_RATE, 0.5), (QuotaKey.CONNECTION_CREATION_RATE, 2.0**31)):
        with pytest.raises(QuotaError, match="whole number"):
            check_value(key, value)
