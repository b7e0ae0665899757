"""Rights on a connection: kept until the ACLs change, super users, shadow, a silent store, building off the loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Sequence

import pytest

from agents.request_context import ClientConnection
from agents.security import authorizer as authorizers
from agents.security.authorizer import AclMode, Authorizer, NoAcls, mode_of, super_users_of
from agents.security.in_force import notices_of
from agents.security.rights import KEPT_MAX, UNLIMITED, JudgedRights
from runtime.errors import BadInputError
from runtime.logging import configure
from runtime.settings.listeners import ListenerSettings
from security.acls.operations import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from security.acls.values import CLUSTER_NAME, Acl, Operation, Permission, ResourceType
from tests.fixtures.acls import an_acl

TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER
READ, WRITE, DESCRIBE, ALTER = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALTER


class Known(NoAcls):
    """The knowledge of an agent, by hand."""

    async def tell(self, came: Collection[Acl], went: Collection[Acl] = ()) -> None:
        self.acls = frozenset({*self.acls, *came} - {*went})
        for hear in self.on_acls:
            await hear(came, went)


def client(principal: str = "User:ann", peer: str = "10.0.0.1:5000") -> ClientConnection:
    made = ClientConnection(1, peer)
    made.principal = principal
    return made


async def test_rights_are_kept_on_the_connection_until_the_acls_change() -> None:
    judge = Authorizer(AclMode.ON)
    ann = client()
    before = judge.rights_of(ann)
    assert not before.allows(READ, TOPIC, "t")
    assert judge.rights_of(ann) is before

    judge.change(added=[an_acl()])
    granted = judge.rights_of(ann)
    assert granted is not before
    assert granted.allows(READ, TOPIC, "t") and granted.allows(DESCRIBE, TOPIC, "t")
    assert not granted.allows(WRITE, TOPIC, "t")

    judge.change(removed=[an_acl()])
    assert not judge.rights_of(ann).allows(READ, TOPIC, "t")
    await judge.load([an_acl()])
    assert judge.rights_of(ann).allows(READ, TOPIC, "t")
    ann.principal = "User:bob"
    assert not judge.rights_of(ann).allows(READ, TOPIC, "t")


async def test_a_connection_keeps_a_bounded_number_of_judgements() -> None:
    judge = Authorizer(AclMode.ON)
    await judge.load([an_acl(resource_name="*")])
    rights = judge.rights_of(client())
    assert isinstance(rights, JudgedRights)
    for number in range(3 * KEPT_MAX):
        assert rights.allows(READ, TOPIC, f"t-{number}")
    assert rights.kept_count == KEPT_MAX


async def test_an_address_is_compared_as_it_is_kept() -> None:
    judge = Authorizer(AclMode.ON)
    await judge.load([an_acl(host="10.0.0.1"), an_acl(host="::1", principal="User:bob")])
    assert judge.rights_of(client()).allows(READ, TOPIC, "t")
    assert judge.rights_of(client(peer="::ffff:10.0.0.1:5000")).allows(READ, TOPIC, "t")
    assert not judge.rights_of(client(peer="10.0.0.2:5000")).allows(READ, TOPIC, "t")
    assert judge.rights_of(client("User:bob", "0:0:0:0:0:0:0:1:5000")).allows(READ, TOPIC, "t")


async def test_no_acl_denies_a_super_user_anything() -> None:
    judge = Authorizer(AclMode.ON, super_users=["User:root"])
    await judge.load([an_acl(principal="User:*", operation=Operation.ALL, permission=Permission.DENY)])
    root = judge.rights_of(client("User:root"))
    assert root.allows(ALTER, TOPIC, "t") and root.allows_any(WRITE, TOPIC) and root.allows_every(DESCRIBE, TOPIC)
    assert root.cluster_mask() == sum(1 << each for each in CLUSTER_OPERATIONS)
    assert not judge.rights_of(client()).allows(DESCRIBE, TOPIC, "t")


async def test_the_store_can_take_something_from_all_but_super_users_without_a_password() -> None:
    judge = Authorizer(AclMode.ON, super_users=["User:root"])
    ann, root, by_password = client(), client("User:root"), client("User:root")
    by_password.has_password = True
    assert judge.binds(ann) and judge.binds(by_password) and not judge.binds(root)
    for mode in (AclMode.OFF, AclMode.SHADOW):
        judge = Authorizer(mode, super_users=["User:root"])
        assert not any(judge.binds(each) for each in (ann, root, by_password))


async def test_shadow_allows_and_tells_what_it_would_refuse(capfd: pytest.CaptureFixture[str]) -> None:
    configure("info", "json")
    judge = Authorizer(AclMode.SHADOW)
    rights = judge.rights_of(client())
    assert rights.allows(READ, TOPIC, "t") and rights.sees(READ, TOPIC, "t") and rights.allows_any(WRITE, TOPIC)
    assert rights.mask(TOPIC_OPERATIONS, TOPIC, "t") == UNLIMITED.mask(TOPIC_OPERATIONS, TOPIC, "t")
    assert not rights.holds(DESCRIBE, TOPIC, "t"), "another right may be enough, so this one is told as it is"
    judge.audit.close()
    told = _audit_lines(capfd)
    assert [(line["event"], line["operation"]) for line in told[:2]] == [
        ("would be denied", "READ"),
        ("would be denied", "WRITE"),
    ]


async def test_a_denial_is_told_at_once_and_again_with_its_count(capfd: pytest.CaptureFixture[str]) -> None:
    configure("info", "json")
    judge = Authorizer(AclMode.ON)
    await judge.load([an_acl(resource_type=CLUSTER, resource_name=CLUSTER_NAME, operation=ALTER)])
    rights = judge.rights_of(client())
    for _ in range(5):
        assert not rights.allows(READ, TOPIC, "t\x1b[31m")
    assert not rights.sees(READ, TOPIC, "other")
    assert rights.allows_cluster(ALTER)
    judge.audit.close()

    once, changed, again = _audit_lines(capfd)
    named = {"principal": "User:ann", "host": "10.0.0.1", "operation": "READ", "resource_type": "TOPIC"}
    assert once.items() >= {**named, "event": "denied", "resource": "t\x1b[31m"}.items()
    assert again.items() >= {**named, "event": "denied again", "times": 4}.items()
    assert changed.items() >= {"event": "allowed", "operation": "ALTER", "resource": CLUSTER_NAME}.items()


async def test_many_acls_are_put_in_place_off_the_loop_and_no_change_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a large set that is being built, while a smaller one judges
    monkeypatch.setattr(authorizers, "BUILD_ON_LOOP_MAX", 3)
    judge = Authorizer(AclMode.ON)
    await judge.load([an_acl(resource_name="old")])
    loading = asyncio.create_task(judge.load([an_acl(resource_name=f"t{number}") for number in range(10)]))
    await asyncio.sleep(0)
    # when ACLs come and go meanwhile
    judge.change(added=[an_acl(resource_name="new")], removed=[an_acl(resource_name="t1")])
    ann = client()
    assert judge.rights_of(ann).allows(READ, TOPIC, "new")
    assert judge.rights_of(ann).allows(READ, TOPIC, "old")
    await loading
    # then the new set has them too
    rights = judge.rights_of(ann)
    allowed = [name for name in ("t0", "t1", "t9", "new", "old") if rights.allows(READ, TOPIC, name)]
    assert allowed == ["t0", "t9", "new"]


async def test_it_takes_in_what_is_known_and_what_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorizers, "BUILD_ON_LOOP_MAX", 3)
    known = Known()
    await known.tell([an_acl(resource_name="first")])
    judge = Authorizer(AclMode.ON, known=known)
    await judge.start()
    many = [an_acl(resource_name=f"t{number}") for number in range(10)]
    await known.tell(many)
    await known.tell([an_acl(resource_name="last")], [an_acl(resource_name="t1")])
    ann = client()
    assert judge.rights_of(ann).allows(READ, TOPIC, "first") and judge.rights_of(ann).allows(READ, TOPIC, "last")
    judge.close()
    rights = judge.rights_of(ann)
    allowed = [name for name in ("first", "t0", "t1", "t9", "last") if rights.allows(READ, TOPIC, name)]
    assert allowed == ["first", "t0", "t9", "last"]
    assert known.on_acls == []


def test_the_settings_in_words() -> None:
    assert mode_of("auto", authenticates=False) is AclMode.OFF
    assert mode_of("auto", authenticates=True) is AclMode.ON
    assert mode_of("off", authenticates=True) is AclMode.OFF
    assert mode_of("shadow", authenticates=False) is AclMode.SHADOW
    assert super_users_of(" User:a; User:CN=b,O=c ;") == {"User:a", "User:CN=b,O=c"}
    for wrong in ("ann", "User:", ":ann", "User:ANONYMOUS"):
        with pytest.raises(BadInputError):
            super_users_of(wrong)
    with pytest.raises(BadInputError, match=r"separate principals by ; .*: User:CN=b,O=c;User:ops"):
        super_users_of("User:CN=b,O=c, User:ops")


def _audit_lines(capfd: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("module") == "siltstone.audit"]


PLAIN, SECURE = ListenerSettings(name="default"), ListenerSettings(name="secure", protocol="SASL_SSL")


@pytest.mark.parametrize(
    ("setting", "super_users", "listeners", "told"),
    [
        ("auto", (), (PLAIN,), []),
        ("off", (), (PLAIN, SECURE), ["ACLs are not enforced, because acl.mode=off"]),
        ("shadow", (), (PLAIN,), ["ACLs are judged but not enforced, because acl.mode=shadow"]),
        (
            "auto",
            (),
            (PLAIN, SECURE),
            [
                "ACLs are enforced, because acl.mode=auto and listener secure authenticates",
                "WARN super.users is empty: nobody can create the first ACL",
                "WARN clients of listener default are User:ANONYMOUS unless they prove who they are",
            ],
        ),
        ("on", ("User:root",), (SECURE,), ["ACLs are enforced, because acl.mode=on"]),
    ],
)
def test_the_mode_in_force_is_told_with_its_reason_and_what_is_odd_about_it(
    setting: str, super_users: Sequence[str], listeners: Sequence[ListenerSettings], told: Sequence[str]
) -> None:
    mode = mode_of(setting, authenticates=any(each.authenticates for each in listeners))
    notices = notices_of(mode, setting, super_users, listeners)
    assert ["WARN " * each.is_warning + each.text for each in notices] == told
