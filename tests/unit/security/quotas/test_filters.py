from __future__ import annotations

import pytest

from security.quotas.filters import Component, EntityType, MatchType, matches
from security.quotas.values import DEFAULT, QuotaEntity

ANN = QuotaEntity(user="ann")
ANN_APP = QuotaEntity(user="ann", client_id="app")
ANN_ANY = QuotaEntity(user="ann", client_id=DEFAULT)
ALL_USERS = QuotaEntity(user=DEFAULT)
APP = QuotaEntity(client_id="app")
HOST = QuotaEntity(ip="10.0.0.1")
EVERY = [ANN, ANN_APP, ANN_ANY, ALL_USERS, APP, HOST]
IS_ANN = Component(entity_type=EntityType.USER, match_type=MatchType.EXACT, name="ann")
HAS_USER = Component(entity_type=EntityType.USER, match_type=MatchType.SPECIFIED)
DEFAULT_USER = Component(entity_type=EntityType.USER, match_type=MatchType.DEFAULT)
HAS_CLIENT = Component(entity_type=EntityType.CLIENT_ID, match_type=MatchType.SPECIFIED)


@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ([], False, EVERY),
        ([], True, []),
        ([IS_ANN], False, [ANN, ANN_APP, ANN_ANY]),
        ([IS_ANN], True, [ANN]),
        ([DEFAULT_USER], False, [ALL_USERS]),
        ([HAS_USER], False, [ANN, ANN_APP, ANN_ANY, ALL_USERS]),
        ([HAS_USER, HAS_CLIENT], True, [ANN_APP, ANN_ANY]),
        ([HAS_CLIENT], True, [APP]),
        ([Component(entity_type=EntityType.IP, match_type=MatchType.EXACT, name="10.0.0.1")], True, [HOST]),
    ],
)
def test_a_filter_finds(components: list[Component], strict: bool, found: list[QuotaEntity]) -> None:
    assert [each for each in EVERY if matches(each, components, strict=strict)] == found
