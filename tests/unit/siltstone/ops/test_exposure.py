"""The doctor's judgement of listeners, ACLs and certificates, fault by fault."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.settings.listeners import ListenerSettings
from runtime.settings.table import Settings
from siltstone.ops.doctor import Verdict
from siltstone.ops.exposure import ServedCertificate, advertised_host, covers, judge_certificate, judge_exposure
from tests.fixtures.certificates import Authority

NOW_MS, DAY_MS = 1_700_000_000_000, 86_400_000
FILES = {"tls_cert_file": "server.pem", "tls_key_file": "server.key"}


def listener(name: str = "public", **members: Any) -> ListenerSettings:
    given = {"address": "0.0.0.0:9092", "advertised": "agent-7.example.com:9092", "protocol": "SASL_SSL", **FILES}
    return ListenerSettings(name=name, **{**given, **members})


SECURED = listener()
OPEN = listener("open", protocol="PLAINTEXT", tls_cert_file="", tls_key_file="")


def faults(**settings: Any) -> dict[str, str]:
    checks = judge_exposure(Settings(**{"super_users": "User:admin", "listeners": (SECURED,), **settings}))
    wrong = [check for check in checks if check.verdict is not Verdict.OK]
    assert all(check.remedy for check in wrong)
    return {check.name: check.detail for check in wrong}


def test_an_agent_that_only_this_machine_reaches_is_asked_nothing() -> None:
    assert judge_exposure(Settings()) == []
    assert judge_exposure(Settings(acl_mode="off")) == []


def test_a_secured_agent_is_ok() -> None:
    checks = judge_exposure(Settings(super_users="User:admin", listeners=(SECURED,)))
    assert {check.name: check.verdict for check in checks} == {
        "listener public": Verdict.OK,
        "acl.mode": Verdict.OK,
    }


@pytest.mark.parametrize(
    ("settings", "name", "says"),
    [
        ({"acl_mode": "off"}, "acl.mode", "ACLs are off, and other machines can reach listener public"),
        ({"acl_mode": "shadow"}, "acl.mode", "judged but not enforced, because acl.mode=shadow"),
        ({"super_users": ""}, "super users", "super.users is empty"),
        ({"super_users": "User:admin;User:ANONYMOUS"}, "super users", "'User:ANONYMOUS' is no principal"),
        (
            {"listeners": (SECURED, ListenerSettings(name="local", address="127.0.0.1:9093"))},
            "strangers",
            "clients of listener local are User:ANONYMOUS",
        ),
        (
            {"listeners": (listener(protocol="SASL_PLAINTEXT", tls_cert_file="", tls_key_file=""),), "insecure": True},
            "listener public",
            "nothing is encrypted",
        ),
        (
            {"metrics_listen": "0.0.0.0:9644", "metrics_insecure": True},
            "metrics.listen",
            "can be reached from other machines",
        ),
    ],
)
def test_each_fault_is_told_alone_with_a_remedy(settings: dict[str, Any], name: str, says: str) -> None:
    found = faults(**settings)
    assert list(found) == [name] and says in found[name]


def test_acls_that_nobody_turned_off_are_told_with_the_reason() -> None:
    assert "(acl.mode=auto, and no listener authenticates)" in faults(listeners=(OPEN,), insecure=True)["acl.mode"]
    chosen = faults(listeners=(OPEN,), insecure=True, acl_mode="off")["acl.mode"]
    assert chosen.startswith("ACLs are off, and other machines")


def test_the_remedy_for_strangers_names_the_settings_of_their_listener() -> None:
    local = ListenerSettings(name="local", address="127.0.0.1:9093")
    checks = judge_exposure(Settings(super_users="User:admin", listeners=(SECURED, local)))
    [told] = [check for check in checks if check.name == "strangers"]
    assert told.remedy.startswith("set listener.local.protocol to SASL_SSL, or listener.local.tls.client.auth to")


def test_an_open_listener_is_named_for_all_that_it_lacks() -> None:
    found = faults(listeners=(OPEN,), insecure=True, super_users="")
    assert set(found) == {"listener open", "acl.mode"}
    assert "nobody proves who it is and nothing is encrypted" in found["listener open"]


def test_a_certificate_is_told_before_it_expires_and_where_it_lacks_a_name() -> None:
    own = Authority().server(("agent-7.example.com", "10.0.0.7")).certificate

    def told(days: float, host: str | None, *warnings: str) -> list[tuple[Verdict, str]]:
        served = ServedCertificate(certificate=own, expires_ms=NOW_MS + int(days * DAY_MS), warnings=warnings)
        checks = judge_certificate("public", served, host, NOW_MS, setting="listener.public.tls.cert.file")
        return [(check.verdict, check.detail) for check in checks]

    assert told(30, "agent-7.example.com") == [(Verdict.OK, "good for 30 days")]
    assert told(30, None) == [(Verdict.OK, "good for 30 days")]
    [(verdict, detail)] = told(6.9, "10.0.0.7")
    assert verdict is Verdict.WARN and "the one of listener.public.tls.cert.file, or" in detail
    assert "expires in 6.9 days" in detail
    [(verdict, detail)] = told(30, "agent-8.example.com")
    assert (
        verdict is Verdict.WARN
        and "the one of listener.public.tls.cert.file does not name agent-8.example.com" in detail
    )
    assert len(told(1, "other", "everybody may read the key")) == 3


def test_names_are_compared_as_clients_do() -> None:
    own = Authority().server(("Agent.example.com", "*.kafka.example.com", "10.0.0.7", "::1")).certificate
    for host in ("agent.example.com", "AGENT.example.com", "a.kafka.example.com", "10.0.0.7", "::1", "[::1]"):
        assert covers(own, host), host
    for host in ("kafka.example.com", "a.b.kafka.example.com", "10.0.0.8", "example.com", "com"):
        assert not covers(own, host), host
    assert not covers(Authority().certificate, "a"), "without alternative names"


def test_where_clients_connect_to() -> None:
    assert advertised_host(SECURED) == "agent-7.example.com"
    assert advertised_host(listener(advertised="", address="10.0.0.7:9092")) == "10.0.0.7"
    assert advertised_host(listener(advertised="ecs-name:0")) is None
