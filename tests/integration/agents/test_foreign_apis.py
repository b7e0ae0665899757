"""APIs of Kafka that have nothing to do here: what changes nothing succeeds, the rest is refused in words."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from siltstone.kafka.client import KafkaClient
from tests.fixtures.agents import Dial, RawConnection, RunningAgent
from wire.error_codes import ErrorCode
from wire.messages.acls import CreateAclsResponse, DeleteAclsResponse, DescribeAclsResponse
from wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResponse
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from wire.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from wire.messages.sasl import SaslHandshakeRequest, SaslHandshakeResponse
from wire.messages.scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse

from .test_every_version import REQUESTS

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE = 0, 1


@pytest.fixture
async def raw(dial: Dial, agent: RunningAgent) -> AsyncIterator[RawConnection]:
    client: KafkaClient = await dial.kafka(agent.address)
    await client.create_topic("t", partitions=2)
    yield await dial.raw(agent.address)


@pytest.fixture
async def node_id(agent: RunningAgent) -> int:
    return (await agent.metadata.agents.live_agents())[0].writer_id


async def alter(raw: RawConnection, kind: int, name: str, *changes: tuple[str, int, str | None]) -> tuple[int, str]:
    configs = [AlterableConfig(name=key, config_operation=operation, value=value) for key, operation, value in changes]
    asked = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[asked])
    [answer] = (await raw.call(request, IncrementalAlterConfigsResponse, 1)).responses
    return answer.error_code, answer.error_message or ""


async def test_acls_are_disabled_in_the_words_of_kafka_without_an_authorizer(raw: RawConnection) -> None:
    described = await raw.call(REQUESTS[29](3), DescribeAclsResponse, 3)
    created = await raw.call(REQUESTS[30](3), CreateAclsResponse, 3)
    deleted = await raw.call(REQUESTS[31](3), DeleteAclsResponse, 3)

    answers = [described, *created.results, *deleted.filter_results]
    disabled = (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    assert [(each.error_code, each.error_message) for each in answers] == [disabled] * 4
    assert described.resources == []


async def test_the_credentials_of_users_are_kept_and_told_without_their_secrets(raw: RawConnection) -> None:
    async def described(*names: str) -> dict[str, tuple[int, list[tuple[int, int]]]]:
        request = DescribeUserScramCredentialsRequest(users=[UserName(name=name) for name in names] if names else None)
        answer = await raw.call(request, DescribeUserScramCredentialsResponse, 0)
        assert answer.error_code == 0
        return {
            each.user: (each.error_code, [(info.mechanism, info.iterations) for info in each.credential_infos])
            for each in answer.results
        }

    async def altered(
        deletions: Sequence[tuple[str, int]] = (), *upsertions: ScramCredentialUpsertion
    ) -> dict[str, int]:
        request = AlterUserScramCredentialsRequest(
            deletions=[ScramCredentialDeletion(name=name, mechanism=mechanism) for name, mechanism in deletions],
            upsertions=list(upsertions),
        )
        answer = await raw.call(request, AlterUserScramCredentialsResponse, 0)
        return {each.user: each.error_code for each in answer.results}

    def upsertion(name: str, mechanism: int, password_bytes: int) -> ScramCredentialUpsertion:
        return ScramCredentialUpsertion(
            name=name, mechanism=mechanism, iterations=4096, salt=b"s", salted_password=b"p" * password_bytes
        )

    assert await described() == {}
    assert await altered([("a", 1)], upsertion("b", 1, 32), upsertion("c", 2, 32)) == {
        "a": ErrorCode.RESOURCE_NOT_FOUND,
        "b": 0,
        "c": ErrorCode.UNACCEPTABLE_CREDENTIAL,
    }
    assert await altered([], upsertion("b", 2, 64)) == {"b": 0}
    assert await described() == {"b": (0, [(1, 4096), (2, 4096)])}
    assert await described("a", "b", "a") == {
        "a": (ErrorCode.DUPLICATE_RESOURCE, []),
        "b": (0, [(1, 4096), (2, 4096)]),
    }
    assert await altered([("b", 2)]) == {"b": 0}
    assert await described("b", "c") == {"b": (0, [(1, 4096)]), "c": (ErrorCode.RESOURCE_NOT_FOUND, [])}


async def test_a_client_with_sasl_is_told_that_it_has_no_place_here(raw: RawConnection) -> None:
    answer = await raw.call(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
    assert (answer.error_code, answer.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])


async def test_deleting_what_is_not_set_changes_nothing(raw: RawConnection, node_id: int) -> None:
    unset = ("leader.replication.throttled.replicas", DELETE, None)
    unknown = ("no.such.config", DELETE, None)
    rate = ("leader.replication.throttled.rate", DELETE, None)
    for kind, name in ((TOPIC, "t"), (BROKER, ""), (BROKER, str(node_id)), (GROUP, "g"), (CLIENT_METRICS, "s")):
        assert await alter(raw, kind, name, unset, unknown, rate) == (0, "")


async def test_an_agents_own_configs_and_log_level_are_its_settings(raw: RawConnection, node_id: int) -> None:
    code, said = await alter(raw, BROKER, str(node_id), ("log.retention.ms", SET, "1"))
    assert code == ErrorCode.INVALID_REQUEST and "settings" in said
    asked = DescribeConfigsResource(resource_type=LOGGER, resource_name=str(node_id), configuration_keys=None)
    [shown] = (await raw.call(DescribeConfigsRequest(resources=[asked]), DescribeConfigsResponse, 4)).results
    [level] = shown.configs
    assert (shown.error_code, level.name, level.config_source, level.read_only) == (0, "root", 6, True)
    assert await alter(raw, LOGGER, str(node_id), ("root", SET, level.value)) == (0, "")
    code, said = await alter(raw, LOGGER, str(node_id), ("root", SET, "TRACE"))
    assert code == ErrorCode.INVALID_REQUEST and "log.level" in said
    assert (await alter(raw, LOGGER, str(node_id), ("kafka.x", SET, "INFO")))[0] == ErrorCode.INVALID_CONFIG
    assert (await alter(raw, LOGGER, "99", ("root", SET, "INFO")))[0] == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(("kind", "name"), [(GROUP, "g"), (CLIENT_METRICS, "s")])
async def test_groups_and_client_metrics_have_no_configs(raw: RawConnection, kind: int, name: str) -> None:
    asked = [
        DescribeConfigsResource(resource_type=kind, resource_name=each, configuration_keys=None) for each in (name, "")
    ]
    there, nameless = (await raw.call(DescribeConfigsRequest(resources=asked), DescribeConfigsResponse, 4)).results
    assert (there.error_code, there.configs) == (0, [])
    assert nameless.error_code == ErrorCode.INVALID_REQUEST
    assert (await alter(raw, kind, name, ("interval.ms", SET, "1000")))[0] == ErrorCode.INVALID_CONFIG


async def test_the_resources_with_configs_are_listed(raw: RawConnection, node_id: int) -> None:
    async def listed(version: int, *kinds: int) -> list[tuple[int, str]]:
        request = ListConfigResourcesRequest(resource_types=list(kinds))
        answer = await raw.call(request, ListConfigResourcesResponse, version)
        assert answer.error_code == 0
        return [(each.resource_type, each.resource_name) for each in answer.config_resources]

    everything = [(TOPIC, "t"), (BROKER, str(node_id)), (LOGGER, str(node_id))]
    assert await listed(1) == everything
    assert await listed(1, TOPIC) == everything[:1]
    assert await listed(1, GROUP, CLIENT_METRICS) == await listed(0) == []
    strange = ListConfigResourcesRequest(resource_types=[TOPIC, 77])
    answer = await raw.call(strange, ListConfigResourcesResponse, 1)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_an_assignment_that_changes_nothing_is_accepted_and_any_other_refused(
    raw: RawConnection, node_id: int
) -> None:
    wanted = [(0, [node_id]), (0, [node_id, 99]), (0, []), (0, None), (7, [node_id])]
    request = AlterPartitionReassignmentsRequest(
        topics=[
            ReassignableTopic(
                name="t",
                partitions=[ReassignablePartition(partition_index=number, replicas=nodes) for number, nodes in wanted],
            )
        ]
    )
    [topic] = (await raw.call(request, AlterPartitionReassignmentsResponse, 1)).responses

    assert [each.error_code for each in topic.partitions] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert [bool(each.error_message) for each in topic.partitions] == [False, True, True, True, True]


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_no_feature_can_be_raised(raw: RawConnection, version: int) -> None:
    key = FeatureUpdateKey(feature="transaction.version", max_version_level=2)
    answer = await raw.call(UpdateFeaturesRequest(feature_updates=[key]), UpdateFeaturesResponse, version)
    codes = [answer.error_code] if version == 2 else [each.error_code for each in answer.results]
    assert codes == [ErrorCode.INVALID_UPDATE_VERSION]
