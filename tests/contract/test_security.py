"""Users, ACLs and quotas: one suite for both metadata stores."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from metadata.contract.leases import ALIVE_MS, LEASE_MS, AgentAddress, Endpoint, WriterFencedError
from metadata.contract.store import MetadataStore
from metadata.contract.tail import Change, ChangeKind, Cursor
from metadata.security import details
from metadata.security.contract import UserChange
from runtime.errors import BugError
from security.acls.values import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from security.quotas.values import DEFAULT, QuotaEntity
from security.scram import Mechanism, ScramCredential
from tests.contract.metadata_worlds import World

NOW_MS = 1_700_000_000_000

SHA_256, SHA_512 = Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512
ODD_NAMES = ["ann", "", "a\0b", "\ud83d\ude00", "\U0001f600", "%41", 'it"s \\ a=b,c', "ü" * 300, "%", "User:*"]
LONG = "".join(map(chr, random.Random(7).choices(range(0x4E00, 0x9FFF), k=10_000)))  # a row of an index holds less


def acl(name: str = "orders", **fields: Any) -> Acl:
    values: dict[str, Any] = {
        "resource_type": ResourceType.TOPIC,
        "pattern_type": PatternType.LITERAL,
        "resource_name": name,
        "principal": "User:ann",
        "host": "*",
        "operation": Operation.READ,
        "permission": Permission.ALLOW,
        **fields,
    }
    return Acl(**values)


def credential(mechanism: Mechanism = SHA_256, *, key: bytes = b"k") -> ScramCredential:
    return ScramCredential(mechanism=mechanism, salt=b"\0\xff", iterations=4096, stored_key=key, server_key=key * 2)


def sets(name: str, mechanism: Mechanism = SHA_256, *, key: bytes = b"k") -> UserChange:
    return UserChange(name=name, mechanism=mechanism, credential=credential(mechanism, key=key))


def removes(name: str, mechanism: Mechanism = SHA_256) -> UserChange:
    return UserChange(name=name, mechanism=mechanism, credential=None)


async def changes_of(service: MetadataStore) -> Sequence[Change]:
    return (await service.agents.tail(Cursor())).changes


# ---- users


async def test_a_user_has_a_credential_for_each_mechanism_and_is_gone_with_the_last(world: World) -> None:
    security = world.service.security
    await security.alter_users([sets("ann"), sets("ann", SHA_512), sets("bob", key=b"b")])
    await security.alter_users([sets("ann", key=b"new"), removes("bob")])

    assert await security.users(["ann", "bob", "nobody"]) == {
        "ann": {SHA_256: credential(key=b"new"), SHA_512: credential(SHA_512)}
    }
    assert (await security.security()).users == await security.users(["ann"])
    await security.alter_users([removes("ann"), removes("ann", SHA_512)])
    assert (await security.security()).users == {}


async def test_the_last_of_several_changes_of_one_credential_counts(world: World) -> None:
    security = world.service.security
    await security.alter_users([removes("ann"), sets("ann", key=b"1"), sets("ann", key=b"2")])
    assert (await security.users(["ann"]))["ann"][SHA_256].stored_key == b"2"
    await security.alter_users([sets("ann", key=b"3"), removes("ann")])
    assert await security.users(["ann"]) == {}


async def test_a_change_of_users_names_them_and_shows_nothing_else(world: World) -> None:
    service = world.service
    await service.security.alter_users([sets("bob"), sets("ann"), sets("ann", SHA_512), removes("nobody")])

    (change,) = await changes_of(service)
    assert (change.kind, dict(change.detail)) == (ChangeKind.USERS_CHANGED, {"names": ["ann", "bob"]})


# ---- ACLs


async def test_an_acl_is_all_of_its_seven_fields_and_is_there_once(world: World) -> None:
    service = world.service
    one = acl()
    others = [
        acl("payments"),
        acl(resource_type=ResourceType.GROUP),
        acl(pattern_type=PatternType.PREFIXED),
        acl(principal="User:bob"),
        acl(host="10.0.0.1"),
        acl(operation=Operation.WRITE),
        acl(permission=Permission.DENY),
    ]
    first = await service.security.create_acls([one, *others, one])
    again = await service.security.create_acls([others[0], one])

    state = await service.security.security()
    assert (len(state.acls), set(state.acls)) == (8, {one, *others})
    assert again == first == state.change_id, "nothing changed, and the caller waits for the change that made them"
    (change,) = await changes_of(service)
    assert details.acls_of(change.detail) == ([one, *others], [])


async def test_filters_delete_what_they_match_and_each_names_its_own(world: World) -> None:
    service = world.service
    acls = [
        acl("orders"),
        acl("ord", pattern_type=PatternType.PREFIXED),
        acl("*"),
        acl("other"),
        acl("orders", resource_type=ResourceType.GROUP),
        acl("o", pattern_type=PatternType.PREFIXED, principal="User:bob", operation=Operation.ALL),
    ]
    await service.security.create_acls(acls)
    by_name = AclFilter(resource_type=ResourceType.TOPIC, resource_name="orders", pattern_type=PatternType.MATCH)
    exact = AclFilter(resource_name="orders")
    none = AclFilter(permission=Permission.DENY)

    change_id, found = await service.security.delete_acls([by_name, exact, none])

    assert [set(each) for each in found] == [{acls[0], acls[1], acls[2], acls[5]}, {acls[0], acls[4]}, set()]
    state = await service.security.security()
    assert (set(state.acls), state.change_id) == ({acls[3]}, change_id)
    added, removed = details.acls_of((await changes_of(service))[-1].detail)
    assert (list(added), set(removed)) == ([], {*acls} - {acls[3]})
    # a repeat deletes nothing, and waits for the deletion all the same
    assert await service.security.delete_acls([by_name]) == (change_id, [[]])


@pytest.mark.parametrize("seed", range(3))
async def test_a_filter_deletes_exactly_what_it_matches(world: World, seed: int) -> None:
    chance = random.Random(seed)
    print(f"seed {seed}")
    names = ["a", "ab", "abc", "b", "*", "", "a%", "A"]

    def some(values: Sequence[Any]) -> Any:
        return chance.choice(values)

    acls = {
        acl(
            some(names),
            resource_type=some([ResourceType.TOPIC, ResourceType.GROUP]),
            pattern_type=some([PatternType.LITERAL, PatternType.PREFIXED]),
            principal=some(["User:a", "User:b", "User:*"]),
            host=some(["*", "1"]),
            operation=some([Operation.READ, Operation.ALL]),
            permission=some([Permission.ALLOW, Permission.DENY]),
        )
        for _ in range(150)
    }
    await world.service.security.create_acls(list(acls))
    while acls:
        wanted = AclFilter(
            resource_type=some([ResourceType.ANY, ResourceType.TOPIC, ResourceType.GROUP, ResourceType.UNKNOWN]),
            pattern_type=some([PatternType.ANY, PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED]),
            resource_name=some([None, *names]),
            principal=some([None, "User:a", "User:*"]),
            host=some([None, "*"]),
            operation=some([Operation.ANY, Operation.READ]),
            permission=some([Permission.ANY, Permission.DENY]),
        )
        if chance.random() < 0.02:
            wanted = AclFilter()
        _, (found,) = await world.service.security.delete_acls([wanted])
        assert (len(found), set(found)) == (len(set(found)), set(filter(wanted.matches, acls)))
        acls -= set(found)
        assert set((await world.service.security.security()).acls) == acls


async def test_any_text_that_a_client_may_send_comes_back_as_it_was(world: World) -> None:
    service = world.service
    names = [*ODD_NAMES, LONG]
    acls = [acl(name, principal=name, host=name) for name in names]
    quotas = {QuotaEntity(user=name, client_id=name): {"producer_byte_rate": 1.5} for name in names}
    await service.security.create_acls(acls)
    await service.security.alter_users([sets(name) for name in names])
    await service.security.alter_quotas(quotas)

    state = await service.security.security()
    assert set(state.acls) == set(acls)
    assert state.users.keys() == (await service.security.users(names)).keys() == set(names)
    assert state.quotas == quotas
    told = {change.kind: change.detail for change in await changes_of(service)}
    assert details.acls_of(told[ChangeKind.ACLS_CHANGED]) == (acls, [])
    assert set(details.names_of(told[ChangeKind.USERS_CHANGED])) == set(names)
    assert details.quotas_of(told[ChangeKind.QUOTAS_CHANGED]) == quotas
    _, (gone,) = await service.security.delete_acls([AclFilter(resource_name="a\0b")])
    assert gone == [acl("a\0b", principal="a\0b", host="a\0b")]


async def test_many_rows_become_several_changes_that_are_seen_at_once(world: World) -> None:
    service = world.service
    acls = [acl(f"t{number}") for number in range(2_500)]
    cursor = (await service.agents.snapshot()).cursor

    async def watch() -> list[int]:
        seen: list[int] = []
        while not seen or not seen[-1]:
            seen.append(len((await service.agents.tail(cursor)).changes))
            await asyncio.sleep(0)
        return seen

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    change_id = await service.security.create_acls(acls)
    assert set(await watching) <= {0, 3}
    changes = (await service.agents.tail(cursor)).changes
    assert changes[-1].change_id == change_id
    assert [acl for change in changes for acl in details.acls_of(change.detail)[0]] == acls
    _, (found,) = await service.security.delete_acls([AclFilter()])
    assert len(found) == 2_500
    assert (await service.security.security()).acls == []


# ---- quotas


async def test_quotas_of_names_of_defaults_and_of_both(world: World) -> None:
    service = world.service
    entities = [
        QuotaEntity(user="ann"),
        QuotaEntity(user=DEFAULT),
        QuotaEntity(client_id="app"),
        QuotaEntity(client_id=DEFAULT),
        QuotaEntity(user="ann", client_id="app"),
        QuotaEntity(user="ann", client_id=DEFAULT),
        QuotaEntity(user=DEFAULT, client_id=DEFAULT),
        QuotaEntity(ip="10.0.0.1"),
        QuotaEntity(ip=DEFAULT),
    ]
    quotas = {entity: {"producer_byte_rate": 1e308 / (at + 1)} for at, entity in enumerate(entities)}
    await service.security.alter_quotas(quotas)
    assert (await service.security.security()).quotas == quotas

    ann = entities[0]
    await service.security.alter_quotas({ann: {"producer_byte_rate": None, "consumer_byte_rate": 7.0, "x": None}})
    assert (await service.security.security()).quotas == {**quotas, ann: {"consumer_byte_rate": 7.0}}
    told = details.quotas_of((await changes_of(service))[-1].detail)
    assert told == {ann: {"producer_byte_rate": None, "consumer_byte_rate": 7.0}}, "what was not there is not told"
    assert details.quotas_of((await changes_of(service))[0].detail) == quotas
    last = await service.security.alter_quotas({entity: dict.fromkeys(["producer_byte_rate"]) for entity in entities})
    assert (await service.security.security()).quotas == {ann: {"consumer_byte_rate": 7.0}}
    assert await service.security.alter_quotas({entities[1]: {"producer_byte_rate": None}}) == last


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
async def test_a_quota_that_is_no_number_changes_nothing(world: World, value: float) -> None:
    service = world.service
    with pytest.raises(BugError, match="producer_byte_rate is no number"):
        await service.security.alter_quotas(
            {QuotaEntity(user="ann"): {"producer_byte_rate": 1.0}, QuotaEntity(user="b"): {"producer_byte_rate": value}}
        )
    assert (await service.security.security()).quotas == {}
    assert await changes_of(service) == []


# ---- the state, and who knows of a change


async def test_the_state_holds_everything_up_to_its_change(world: World) -> None:
    service = world.service
    assert (await service.security.security()).change_id == 0
    await service.agents.create_topic("t", partitions=1, configs={})
    change_id = await service.security.create_acls([acl()])
    later = await service.agents.create_topic("u", partitions=1, configs={})

    state = await service.security.security()
    snapshot = await service.agents.snapshot()
    assert (state.acls, state.change_id) == ([acl()], snapshot.cursor.change_id)
    assert state.change_id > change_id and later.name == "u"


async def test_changes_of_all_kinds_come_in_one_order(world: World) -> None:
    service = world.service
    other = await world.another()
    security = (service.security, other.security)
    work = [
        *(security[at % 2].create_acls([acl(f"t{at}"), acl("same")]) for at in range(8)),
        *(security[at % 2].alter_users([sets("ann"), sets(f"u{at}")]) for at in range(8)),
        *(service.agents.create_topic(f"t{at}", partitions=1, configs={}) for at in range(8)),
    ]
    await asyncio.gather(*work)
    changes = await changes_of(service)
    ids = [change.change_id for change in changes]
    assert ids == sorted(set(ids)) and len(ids) == 24
    added = [
        acl.resource_name for change in changes if "added" in change.detail for acl in details.acls_of(change.detail)[0]
    ]
    assert sorted(added) == sorted(["same", *(f"t{at}" for at in range(8))]), "one of them made it, and told so"


async def test_all_agents_have_one_secret_which_nobody_can_guess(world: World) -> None:
    other = await world.another()
    states = await asyncio.gather(*(each.security.security() for each in (world.service, other) * 3))
    assert len({state.cluster_secret for state in states}) == 1
    assert len(states[0].cluster_secret) == 32
    assert states[0].cluster_secret.hex() not in repr(states[0])


async def test_an_agent_is_behind_until_it_reports_and_for_as_long_as_its_lease_runs(world: World) -> None:
    service = world.service
    one, two, gone = [
        await service.agents.register_agent(AgentAddress(host="a", port=port)) for port in (9092, 9093, 9094)
    ]
    await service.agents.unregister_agent(gone)
    await service.agents.heartbeat(two, draining=True)
    change_id = await service.security.create_acls([acl()])

    async def behind(at: int = change_id) -> list[int]:
        return [agent.writer_id for agent in await service.security.agents_behind(at)]

    assert await behind() == [one.writer_id, two.writer_id], "one that drains still answers"
    await service.security.report_seen(one, change_id)
    await service.security.report_seen(one, change_id - 1)  # late: it takes nothing back
    assert await behind() == [two.writer_id]
    assert await behind(change_id + 1) == [one.writer_id, two.writer_id]
    again = await service.agents.register_agent(AgentAddress(host="a", port=9092), instead_of=one)
    assert await behind() == [one.writer_id, two.writer_id], "a new lease has reported nothing"
    await service.security.report_seen(one, change_id)  # of the old lease
    await service.security.report_seen(gone, change_id)
    assert await behind() == [one.writer_id, two.writer_id]
    await service.security.report_seen(again, change_id)
    await world.expire_leases()
    assert await behind() == []


async def test_a_process_whose_address_was_taken_is_behind_until_its_lease_would_have_ended(world: World) -> None:
    service, here = world.service, AgentAddress(host="a", port=9092)
    await world.set_clock(NOW_MS)
    cut_off = await service.agents.register_agent(here)
    change_id = await service.security.create_acls([acl()])

    async def behind() -> list[int]:
        return [agent.writer_id for agent in await service.security.agents_behind(change_id)]

    # given its address goes to another process, which knows the change
    await world.set_clock(NOW_MS + ALIVE_MS)
    heir = await service.agents.register_agent(here)
    await service.security.report_seen(heir, change_id)
    assert await behind() == [cut_off.writer_id]
    # then neither a new lease of the same process nor its end makes a difference
    heir = await service.agents.register_agent(here, instead_of=heir)
    await service.security.report_seen(heir, change_id)
    assert await behind() == [cut_off.writer_id]
    await service.agents.unregister_agent(heir)
    assert await service.agents.live_agents() == [] and await behind() == [cut_off.writer_id]
    assert [each.epoch for each in await service.security.agents_behind(change_id)] == [heir.epoch]
    with pytest.raises(WriterFencedError):
        await service.agents.heartbeat(heir)
    heir = await service.agents.register_agent(here)
    await service.security.report_seen(heir, change_id)
    await world.set_clock(NOW_MS + LEASE_MS - 1)
    assert await behind() == [cut_off.writer_id]
    await world.set_clock(NOW_MS + LEASE_MS)
    assert await behind() == []


async def test_an_agents_endpoints_are_those_of_its_last_registration(world: World) -> None:
    service = world.service
    endpoints = (
        Endpoint(listener="external", host="b-1.example", port=9093),
        Endpoint(listener="internal", host="10.0.0.1", port=9092),
    )
    lease = await service.agents.register_agent(AgentAddress(host="a", port=9092, endpoints=endpoints))
    (agent,) = await service.agents.live_agents()
    assert agent.address.endpoints == endpoints
    assert [each.address.endpoints for each in await service.security.agents_behind(1)] == [endpoints]
    await service.agents.register_agent(AgentAddress(host="a", port=9092), instead_of=lease)
    (agent,) = await service.agents.live_agents()
    assert agent.address.endpoints == ()


async def test_a_change_wakes_the_followers(world: World) -> None:
    service, other = world.service, await world.another()
    async with asyncio.timeout(30):
        while not service.agents.hears_news():  # Postgres: once it listens
            await asyncio.sleep(0.01)
        await service.agents.wait_for_news(10)
        waiting = asyncio.create_task(service.agents.wait_for_news(25_000))
        await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        await other.security.create_acls([acl()])
        await waiting
    assert asyncio.get_running_loop().time() - began < 20
