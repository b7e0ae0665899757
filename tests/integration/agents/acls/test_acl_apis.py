"""CreateAcls, DeleteAcls and DescribeAcls, and what they do to the rights at every agent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import cast

import pytest

from agents.request_context import ANONYMOUS
from runtime.logging import configure
from security.acls.values import CLUSTER_NAME, Acl, AclFilter, Operation, PatternType, ResourceType
from siltstone.kafka.access.acls import creation_of, deletion_of, description_of
from tests.fixtures.acls import an_acl, everything_to
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent
from wire.error_codes import ErrorCode
from wire.messages.acls import CreateAclsResponse, DeleteAclsResponse, DescribeAclsResponse
from wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from wire.messages.scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialUpsertion,
)

ALTER_CLUSTER = an_acl(
    resource_type=ResourceType.CLUSTER, resource_name=CLUSTER_NAME, principal=ANONYMOUS, operation=Operation.ALTER
)

EVERY = AclFilter()


@dataclass
class Served:
    running: list[RunningAgent]
    raws: list[RawConnection]

    async def create(self, *acls: Acl, version: int = 3) -> list[int]:
        answer = await self.raws[0].call(creation_of(acls), CreateAclsResponse, version)
        return [each.error_code for each in answer.results]

    async def delete(self, *filters: AclFilter) -> list[tuple[int, list[str]]]:
        answer = await self.raws[0].call(deletion_of(filters), DeleteAclsResponse, 3)
        return [
            (each.error_code, sorted(acl.resource_name for acl in each.matching_acls)) for each in answer.filter_results
        ]

    async def describe(self, wanted: AclFilter = EVERY) -> DescribeAclsResponse:
        return await self.raws[0].call(description_of(wanted), DescribeAclsResponse, 3)

    async def may_describe(self, topic: str) -> list[bool]:
        """At each agent."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        answers = [await raw.call(request, MetadataResponse, 9) for raw in self.raws]
        return [answer.topics[0].error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED for answer in answers]


@pytest.fixture
async def served(start_agent: StartAgent, dial: Dial) -> AsyncIterator[Served]:
    """Three agents; the client may alter the cluster, and nothing else."""
    first = await start_agent(acl_mode="on")
    await first.metadata.security.create_acls([ALTER_CLUSTER])
    others = [await start_agent(acl_mode="on", store=first.store, metadata=first.metadata) for _ in range(2)]
    running = [first, *others]
    await first.agent._follower.catch_up()
    yield Served(running, [await dial.raw(each.address) for each in running])


async def test_a_right_is_at_every_agent_when_it_is_answered_and_gone_when_its_deletion_is(served: Served) -> None:
    right = an_acl(resource_name="t", principal=ANONYMOUS, operation=Operation.DESCRIBE)
    for _ in range(3):
        assert await served.may_describe("t") == [False] * 3
        assert await served.create(right) == [0]
        assert await served.may_describe("t") == [True] * 3
        assert await served.delete(AclFilter(resource_name="t")) == [(0, ["t"])]
    assert await served.may_describe("t") == [False] * 3


async def test_acls_are_described_by_resource_and_by_filter(served: Served) -> None:
    for_ann = an_acl(resource_name="orders", principal="User:ann")
    prefixed = replace(for_ann, pattern_type=PatternType.PREFIXED, resource_name="ord", operation=Operation.WRITE)
    describe = replace(ALTER_CLUSTER, operation=Operation.DESCRIBE)
    assert await served.create(for_ann, prefixed, describe, for_ann) == [0] * 4

    every = await served.describe()
    shown = {(each.resource_name, each.pattern_type): len(each.acls) for each in every.resources}
    assert shown == {
        ("orders", PatternType.LITERAL): 1,
        ("ord", PatternType.PREFIXED): 1,
        (CLUSTER_NAME, PatternType.LITERAL): 2,
    }
    matching = await served.describe(
        AclFilter(resource_type=ResourceType.TOPIC, resource_name="orders", pattern_type=PatternType.MATCH)
    )
    assert sorted(each.resource_name for each in matching.resources) == ["ord", "orders"]
    [written] = (await served.describe(AclFilter(operation=Operation.WRITE))).resources
    assert (written.resource_name, written.acls[0].principal) == ("ord", "User:ann")


async def test_what_says_nothing_is_refused_alone(served: Served) -> None:
    good = an_acl(resource_name="good", principal="User:ann")
    wrong = [
        replace(good, principal="ann"),
        replace(good, resource_name=""),
        replace(good, operation=Operation.ANY),
        replace(good, resource_type=ResourceType.CLUSTER),
        replace(good, host="a\x1bb"),
    ]
    assert await served.create(*wrong, good) == [ErrorCode.INVALID_REQUEST] * 5 + [0]
    unknown = AclFilter(operation=Operation.UNKNOWN)
    newer = AclFilter(operation=cast("Operation", 77))
    found = await served.delete(unknown, newer, AclFilter(principal="User:ann"))
    assert found == [(ErrorCode.INVALID_REQUEST, []), (ErrorCode.INVALID_REQUEST, []), (0, ["good"])]


async def test_who_takes_away_the_own_right_has_none_afterwards(served: Served) -> None:
    assert await served.delete(EVERY) == [(0, [CLUSTER_NAME])]
    assert await served.create(ALTER_CLUSTER) == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    assert (await served.describe()).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_an_address_is_kept_in_one_way_of_writing(served: Served) -> None:
    right = an_acl(resource_name="t", principal=ANONYMOUS, operation=Operation.DESCRIBE, host="::ffff:127.0.0.1")
    assert await served.create(right) == [0]
    assert await served.may_describe("t") == [True] * 3
    assert await served.delete(AclFilter(host="::ffff:7f00:1")) == [(0, ["t"])]
    assert await served.may_describe("t") == [False] * 3


async def test_the_audit_log_tells_who_changed_what(
    start_agent: StartAgent, dial: Dial, capfd: pytest.CaptureFixture[str]
) -> None:
    running = await start_agent(acl_mode="on")
    running.agent.authorizer.change(added=list(everything_to(ANONYMOUS)))
    raw = await dial.raw(running.address)
    configure("info", "json")
    for name, operation in (("carol", Operation.READ), ("dave", Operation.WRITE)):
        acl = an_acl(resource_name="t", principal=f"User:{name}", operation=operation)
        assert await Served([running], [raw]).create(acl) == [0]
    assert await Served([running], [raw]).delete(AclFilter(principal="User:carol")) == [(0, ["t"])]
    quotas = AlterClientQuotasRequest(
        entries=[
            EntryData(
                entity=[
                    EntityData(entity_type="user", entity_name="carol"),
                    EntityData(entity_type="client-id", entity_name=None),
                ],
                ops=[
                    OpData(key="producer_byte_rate", value=1024.0, remove=False),
                    OpData(key="request_percentage", value=0.0, remove=True),
                ],
            )
        ]
    )
    assert not (await raw.call(quotas, AlterClientQuotasResponse, 1)).entries[0].error_code
    upsertion = ScramCredentialUpsertion(
        name="carol", mechanism=1, iterations=4096, salt=b"s" * 16, salted_password=b"p" * 32
    )
    users = AlterUserScramCredentialsRequest(upsertions=[upsertion])
    assert not (await raw.call(users, AlterUserScramCredentialsResponse, 0)).results[0].error_code
    told = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]
    changes = [line for line in told if "by" in line]
    assert {line["by"] for line in changes} == {ANONYMOUS}
    assert [line["event"] for line in changes] == [
        "ACL created",
        "ACL created",
        "ACL deleted",
        "quotas altered",
        "user's credential set",
    ]
    assert changes[2]["principal"] == "User:carol"
    altered = {"producer_byte_rate": "1024", "request_percentage": "removed"}
    assert changes[3].items() >= {"entity": "user=carol client_id=<default>", **altered}.items()
    assert changes[4]["user"] == "carol"
