"""Random sets of ACLs whose rules meet in few names; and how a set is put on both servers, in place of the last one."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Collection, Sequence

from security.acls.values import CLUSTER_NAME, Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from siltstone.kafka.access.acls import creation_of, deletion_of, description_of
from tests.conformance.security.beside.sides import POLL_S, WAIT_S_MAX, Side
from wire.error_codes import ErrorCode
from wire.messages.acls import CreateAclsResponse, DeleteAclsResponse, DescribeAclsResponse
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

CLIENTS = ("User:ann", "User:ANONYMOUS")
PRINCIPALS = ("User:ann", "User:ann", "User:ANONYMOUS", "User:ANONYMOUS", "User:*", "User:bob")
HOSTS = ("*", "*", "*", "*", "127.0.0.1", "10.0.0.1")
NAMES = {
    ResourceType.TOPIC: ("t1", "t2", "team-a", "t", "te", "absent", "a", "doomed", "t-doomed", "t9", "*", "*"),
    ResourceType.GROUP: ("g1", "g2", "g", "g-doomed", "gone", "*"),
    ResourceType.CLUSTER: (CLUSTER_NAME,),
    ResourceType.TRANSACTIONAL_ID: ("tx1", "tx", "tx2", "*"),
    ResourceType.DELEGATION_TOKEN: ("token", "*"),
    ResourceType.USER: ("ann", "*"),
}
"""The last is every name."""
OPERATIONS = {
    ResourceType.TOPIC: (3, 4, 5, 6, 7, 8, 10, 11),
    ResourceType.GROUP: (3, 6, 8, 10, 11),
    ResourceType.CLUSTER: (5, 7, 8, 9, 10, 11, 12),
    ResourceType.TRANSACTIONAL_ID: (4, 8, 15),
    ResourceType.DELEGATION_TOKEN: (8,),
    ResourceType.USER: (13, 14),
}
TYPES = (
    *[ResourceType.TOPIC] * 10,
    *[ResourceType.GROUP] * 5,
    *[ResourceType.CLUSTER] * 5,
    *[ResourceType.TRANSACTIONAL_ID] * 3,
    ResourceType.DELEGATION_TOKEN,
    ResourceType.USER,
)


def _rule(
    kind: ResourceType,
    name: str,
    principal: str,
    operation: Operation,
    permission: Permission = Permission.ALLOW,
    *,
    prefixed: bool = False,
    host: str = "*",
) -> Acl:
    is_prefix = prefixed and name != "*" and kind is not ResourceType.CLUSTER
    return Acl(
        resource_type=kind,
        pattern_type=PatternType.PREFIXED if is_prefix else PatternType.LITERAL,
        resource_name=name,
        principal=principal,
        host=host,
        operation=operation,
        permission=permission,
    )


KEPT = _rule(ResourceType.TOPIC, "kept", "User:kept", Operation.READ)
"""In each set: for a client to delete."""
MARK = "mark"


def _marks(permission: Permission) -> Sequence[Acl]:
    """By these, the controller (CREATE) and the broker (DESCRIBE) show that they have heard of what came before."""
    asked = [
        (ResourceType.CLUSTER, CLUSTER_NAME, Operation.CREATE),
        (ResourceType.TOPIC, MARK, Operation.CREATE),
        (ResourceType.TOPIC, MARK, Operation.DESCRIBE),
    ]
    return [_rule(kind, name, "User:probe", operation, permission) for kind, name, operation in asked]


def drawn_set(chance: random.Random) -> Sequence[Acl]:
    """For each client and type of resource nothing, some operations on some names, or everything but some; and rules
    of any kind among them."""
    found = {_drawn(chance) for _ in range(chance.randrange(16))}
    for principal in CLIENTS:
        for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID):
            way = chance.choice(("nothing", *["some"] * 5, *["all but"] * 3))
            if way == "all but":
                found.add(_rule(kind, NAMES[kind][-1], principal, Operation.ALL))
            if way != "nothing":
                permission = Permission.ALLOW if way == "some" else Permission.DENY
                share = chance.choice((0.2, 0.5))
                for name in {chance.choice(NAMES[kind]) for _ in range(3)}:
                    found |= {
                        _rule(kind, name, principal, Operation(each), permission, prefixed=chance.random() < 0.3)
                        for each in OPERATIONS[kind]
                        if chance.random() < share
                    }
    return [*sorted(found, key=repr), KEPT]


def _drawn(chance: random.Random) -> Acl:
    kind = chance.choice(TYPES)
    return _rule(
        kind,
        chance.choice(NAMES[kind]),
        chance.choice(PRINCIPALS),
        Operation.ALL if chance.random() < 0.2 else Operation(chance.choice(OPERATIONS[kind])),
        Permission.DENY if chance.random() < 0.25 else Permission.ALLOW,
        prefixed=chance.random() < 0.4,
        host=chance.choice(HOSTS),
    )


async def put(side: Side, acls: Collection[Acl]) -> None:
    """These are all ACLs, and every part of the server judges by them: Kafka's broker and its controller hear of them
    one after the other. So a mark is allowed before the set, and denied after it."""
    probe = await side.connect("probe")

    async def may_probe() -> set[bool]:
        topic = CreatableTopic(name=MARK, num_partitions=1, replication_factor=1)
        made = CreateTopicsRequest(topics=[topic], timeout_ms=1_000, validate_only=True)
        by_controller = await probe.call(made, CreateTopicsResponse, 5)
        named = MetadataRequest(topics=[MetadataRequestTopic(name=MARK)], allow_auto_topic_creation=False)
        by_broker = await probe.call(named, MetadataResponse, 8)
        codes = (by_controller.topics[0].error_code, by_broker.topics[0].error_code)
        return {code != ErrorCode.TOPIC_AUTHORIZATION_FAILED for code in codes}

    async def until(allowed: bool) -> None:
        deadline_s = time.monotonic() + WAIT_S_MAX
        while await may_probe() != {allowed}:
            assert time.monotonic() < deadline_s, f"{side.name} does not apply ACLs"
            await asyncio.sleep(POLL_S)

    try:
        await delete_of(side, None)
        await create(side, _marks(Permission.ALLOW))
        await until(allowed=True)
        await create(side, acls)
        await create(side, _marks(Permission.DENY))
        await until(allowed=False)
        await delete_of(side, "User:probe")
        await _until_described(side, len(acls))
    finally:
        await probe.close()


async def create(side: Side, acls: Collection[Acl]) -> None:
    answer = await side.call(creation_of(acls), CreateAclsResponse)
    assert {each.error_code for each in answer.results} == {0}, answer


async def delete_of(side: Side, principal: str | None) -> None:
    """None: of all."""
    answer = await side.call(deletion_of([AclFilter(principal=principal)]), DeleteAclsResponse)
    assert {each.error_code for each in answer.filter_results} == {0}, answer


async def _until_described(side: Side, count: int) -> None:
    deadline_s = time.monotonic() + WAIT_S_MAX
    while True:
        answer = await side.call(description_of(AclFilter()), DescribeAclsResponse)
        if sum(len(each.acls) for each in answer.resources) == count:
            return
        assert time.monotonic() < deadline_s, f"{side.name} has other ACLs than it was given: {answer}"
        await asyncio.sleep(POLL_S)
