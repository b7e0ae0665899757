"""DescribeClientQuotas and AlterClientQuotas, and that a change counts at every agent when it is answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from security.quotas.filters import Component, EntityType, MatchType
from security.quotas.values import DEFAULT, QuotaEntity
from siltstone.kafka.access.quotas import alter_quotas, describe_quotas
from siltstone.kafka.client import KafkaClient, KafkaError
from tests.fixtures.agents import Dial, RawConnection, StartAgent
from wire.error_codes import ErrorCode
from wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

INVALID = ErrorCode.INVALID_REQUEST
ANN, APP = QuotaEntity(user="ann"), QuotaEntity(client_id="app")
BOTH, EVERYBODY = QuotaEntity(user="ann", client_id=DEFAULT), QuotaEntity(user=DEFAULT)
HOST = QuotaEntity(ip="10.0.0.1")


def entry(*parts: tuple[str, str | None], **values: float | None) -> EntryData:
    return EntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in parts],
        ops=[OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()],
    )


async def altered(raw: RawConnection, *entries: EntryData, validate_only: bool = False) -> Sequence[int]:
    request = AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
    answer = await raw.call(request, AlterClientQuotasResponse, 1)
    assert [each.entity for each in answer.entries] == [each.entity for each in entries]
    return [each.error_code for each in answer.entries]


async def test_quotas_are_set_found_by_filters_and_removed(client: KafkaClient) -> None:
    given: Mapping[QuotaEntity, Mapping[str, float]] = {
        ANN: {"producer_byte_rate": 1024.0, "request_percentage": 12.5},
        APP: {"consumer_byte_rate": 7e9},
        BOTH: {"controller_mutation_rate": 0.5, "producer_id_rate": 3.0},
        EVERYBODY: {"producer_byte_rate": 1e12},
        HOST: {"connection_creation_rate": 5.0},
    }
    assert await describe_quotas(client, [], strict=False) == {}
    for entity, values in given.items():
        await alter_quotas(client, entity, values)
    assert await describe_quotas(client, [], strict=False) == given

    async def found(*components: Component, strict: bool = False) -> set[QuotaEntity]:
        return set(await describe_quotas(client, components, strict=strict))

    ann = Component(entity_type=EntityType.USER, match_type=MatchType.EXACT, name="ann")
    users = Component(entity_type=EntityType.USER, match_type=MatchType.SPECIFIED)
    default = Component(entity_type=EntityType.USER, match_type=MatchType.DEFAULT)
    assert await found(ann) == {ANN, BOTH}
    assert await found(ann, strict=True) == {ANN}
    assert await found(users) == {ANN, BOTH, EVERYBODY}
    assert await found(default) == {EVERYBODY}

    await alter_quotas(client, ANN, {"producer_byte_rate": None, "request_percentage": 1.0}, validate_only=True)
    assert await describe_quotas(client, [ann], strict=True) == {ANN: given[ANN]}
    await alter_quotas(client, ANN, {"producer_byte_rate": None, "consumer_byte_rate": None})
    assert await describe_quotas(client, [ann], strict=True) == {ANN: {"request_percentage": 12.5}}


async def test_what_is_wrong_with_one_entity_leaves_the_others_alone(raw: RawConnection) -> None:
    good = entry(("user", "ann"), producer_byte_rate=1e9)
    wrong = [
        entry(("user", "ann"), producer_byte_rate=2.0),  # altered already
        entry(producer_byte_rate=1.0),
        entry(("group", "g"), producer_byte_rate=1.0),
        entry(("user", ""), producer_byte_rate=1.0),
        entry(("ip", "10.0.0.1"), ("user", "bob"), producer_byte_rate=1.0),
        entry(("ip", "nowhere"), connection_creation_rate=1.0),
        entry(("ip", "10.0.0.1"), producer_byte_rate=1.0),
        entry(("user", "bob"), connection_creation_rate=1.0),
        entry(("user", "bob"), no_such_rate=1.0),
        entry(("user", "bob"), producer_byte_rate=1.5),
        entry(("user", "bob"), request_percentage=-1.0),
    ]
    assert await altered(raw, good, *wrong) == [0] + [INVALID] * len(wrong)
    described = await raw.call(DescribeClientQuotasRequest(), DescribeClientQuotasResponse, 1)
    [only] = described.entries or []
    assert [(each.key, each.value) for each in only.values] == [("producer_byte_rate", 1e9)]


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("user", 0, None)], INVALID),
        ([("user", 1, "ann")], INVALID),
        ([("user", 2, "ann")], INVALID),
        ([("user", 3, None)], INVALID),
        ([("user", 1, None), ("user", 2, None)], INVALID),
        ([("user", 1, None), ("ip", 1, None)], INVALID),
        ([("", 1, None)], INVALID),
        ([("group", 1, None)], ErrorCode.UNSUPPORTED_VERSION),
    ],
)
async def test_filters_that_ask_for_nothing_are_refused_with_kafkas_codes(
    raw: RawConnection, components: Sequence[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    asked = [ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in components]
    answer = await raw.call(DescribeClientQuotasRequest(components=asked), DescribeClientQuotasResponse, 1)
    assert (answer.error_code, answer.entries) == (code, None) and answer.error_message


async def test_who_may_not_alter_the_cluster_sets_and_sees_nothing(dial: Dial, start_agent: StartAgent) -> None:
    running = await start_agent(acl_mode="on", super_users="User:admin")
    raw = await dial.raw(running.address)
    assert await altered(raw, entry(("user", "ann"), producer_byte_rate=1.0), entry()) == [
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ]
    answer = await raw.call(DescribeClientQuotasRequest(), DescribeClientQuotasResponse, 1)
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert running.agent._access.known.quotas == {}


async def test_a_quota_binds_at_every_agent_when_it_is_answered(dial: Dial, start_agent: StartAgent) -> None:
    first = await start_agent(tail_poll_ms=60_000)
    second = await start_agent(metadata=first.metadata, store=first.store, tail_poll_ms=60_000)
    await alter_quotas(await dial.kafka(first.address), ANN, {"producer_byte_rate": 1e9})
    for running in (first, second):
        assert running.agent._access.known.quotas == {ANN: {"producer_byte_rate": 1e9}}
        assert running.agent._server is not None and running.agent._server.broker.throttle.on


async def test_an_error_names_the_remedy(client: KafkaClient) -> None:
    with pytest.raises(KafkaError, match="above 0"):
        await alter_quotas(client, ANN, {"producer_byte_rate": -1.0})
