"""Values that Helm refuses, because nothing would work with them; and each refusal names the value."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from agents.security.authorizer import super_users_of
from runtime.settings.loading import declarations, environment_name
from storage.objects import StoreMisconfiguredError
from storage.urls import parse_store_url
from tests.infra.chart.rendering import CHART, NEWEST, RELEASE, VALUE_SETS, WRONG, Rendered, render, template

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    # name: (set of values, more values, what the refusal says)
    "a tag": ("scram", {"image": {"digest": "1.0"}}, "image.digest"),
    "no Postgres": ("scram", {"postgres": {"address": ""}}, "postgres.address"),
    "no store": ("scram", {"objectStoreUrl": ""}, "objectStoreUrl"),
    "no Secret of the owner": ("scram", {"secrets": {"migrate": ""}}, "secrets.migrate"),
    "no Secret of agents": ("scram", {"secrets": {"agent": ""}}, "secrets.agent"),
    "no Secret of compactors": ("scram", {"secrets": {"compactor": ""}}, "secrets.compactor"),
    "one Secret for two": ("scram", {"secrets": {"agent": "silt-migrate"}}, "three Secrets"),
    "a super user's pod with the owner's password": (
        "watched",
        {"adminClient": {"secret": "silt-migrate"}},
        "adminClient.secret: a Secret of its own",
    ),
    "a probe with that of agents": (
        "watched",
        {"probe": {"secret": "silt-agent"}},
        "probe.secret: a Secret of its own",
    ),
    "a probe with that of compactors": (
        "watched",
        {"probe": {"secret": "silt-compactor"}},
        "probe.secret: a Secret of its own",
    ),
    "a probe that is a super user": ("watched", {"probe": {"secret": "silt-client"}}, "probe.secret: another Secret"),
    "one role for two": ("scram", {"postgres": {"agent": "siltstone"}}, "three roles"),
    "no certificate": ("scram", {"listener": {"tlsSecret": ""}}, "listener.tlsSecret"),
    "no authentication": ("scram", {"listener": {"authentication": ""}}, "listener.authentication"),
    "nobody who makes the first ACL": ("scram", {"listener": {"superUsers": []}}, "listener.superUsers"),
    "the same with certificates": ("certificate", {"listener": {"superUsers": None}}, "listener.superUsers"),
    "a port of Postgres that there is not": ("scram", {"postgres": {"address": "h:99999/x"}}, "no port 99999"),
    "port 0 of Postgres": ("scram", {"postgres": {"address": "h:0/x"}}, "postgres.address: there is no port 0"),
    "nobody may connect": ("scram", {"networkPolicy": {"clients": []}}, "networkPolicy.clients"),
    "Postgres is nowhere": ("scram", {"networkPolicy": {"postgres": []}}, "networkPolicy.postgres"),
    "a long name": ("scram", {"nameOverride": "n" * 42}, "fullnameOverride"),
    "a second store that is the first": (
        "scram",
        {"produceStore": {"url": "s3://records/prod?region=eu-central-1"}},
        "produceStore.url",
    ),
    "a second store without a region": ("scram", {"produceStore": {"url": "s3://quick/prod"}}, "produceStore.url"),
    "a drain that is cut off": ("placement", {"agents": {"terminationGracePeriodSeconds": 1245}}, "above 1245"),
    "a drain of compactors": ("placement", {"compactors": {"terminationGracePeriodSeconds": 45}}, "above 45"),
    "a zone twice": ("certificate", {"agents": {"zone": {"downwardApi": True}}}, "agents.zone"),
    "blocks in no zone": ("certificate", {"agents": {"zone": {"name": ""}}}, "agents.zone.tlsSecret"),
    "nobody outside may connect": ("ingress", {"networkPolicy": {"external": []}}, "networkPolicy.external"),
    "one name for all agents": ("ingress", {"external": {"host": "kafka.example.com"}}, "external.host"),
    "too few names": ("tlsroute", {"agents": {"replicas": 4}}, "external.hosts: 4 names"),
    "no gateway": ("tlsroute", {"external": {"gateway": None}}, "external.gateway"),
    "a gateway without a name": ("tlsroute", {"external": {"gateway": {"name": ""}}}, "external.gateway"),
    "a node behind a gateway": ("ingress", {"external": {"host": "{node}.example.com"}}, "{node}"),
    "the usual port at a node": ("nodeport", {"external": {"port": 9094}}, "external.port"),
    "ports above those of nodes": ("nodeport", {"external": {"port": 32764}}, "32764 to 32768"),
    "a scrape that is not let in": ("hpa", {"networkPolicy": {"prometheus": []}}, "networkPolicy.prometheus"),
    "percent of nothing": (
        "hpa",
        {"agents": {"resources": {"requests": {"cpu": None}}}},
        "agents.resources.requests.cpu",
    ),
    "a least above the most": (
        "hpa",
        {"agents": {"autoscaling": {"minReplicas": 7}}},
        "agents.autoscaling.minReplicas",
    ),
    "the same of compactors": (
        "keda",
        {"compactors": {"autoscaling": {"minReplicas": 5}}},
        "compactors.autoscaling.minReplicas",
    ),
    "no Prometheus for KEDA": ("keda", {"monitoring": {"prometheusAddress": ""}}, "monitoring.prometheusAddress"),
}


def with_more(values: str, more: Mapping[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "more.yaml"
    file.write_text(yaml.safe_dump(dict(more)))
    return template("-f", f"ci/{values}-values.yaml", "-f", str(file))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_missing_or_unsafe_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    values, more, says = REFUSED[name]
    done = with_more(values, more, tmp_path)
    assert done.returncode != 0 and says in done.stderr, done.stderr


@pytest.mark.parametrize("schedule", ["23 4 * * 0", "*/15 0-6,22 1 jan-MAR,12 SUN", "5/20 23 31 12 6", "@weekly"])
def test_schedules_that_kubernetes_takes_are_taken(schedule: str, tmp_path: Path) -> None:
    Rendered.of(with_more("watched", {"drill": {"schedule": schedule}}, tmp_path))


def test_names_that_only_look_like_those_refused_are_taken(tmp_path: Path) -> None:
    users = ["User:CN=admin,OU=*,O=Example", "User:ANONYMOUS-2", "User:*admin"]
    of_a_secret = {"secretKeyRef": {"name": "silt-session", "key": "token"}}
    variables = [{"name": "AWS_SESSION_TOKEN", "valueFrom": of_a_secret}, {"name": "TZ", "value": "UTC"}]
    more = {"listener": {"superUsers": users}, "agents": {"extraEnv": variables}}
    rendered = Rendered.of(with_more("scram", more, tmp_path))
    _, _, container = rendered.the("agent")
    assert super_users_of(rendered.environment(container, f"{RELEASE}-agent-0")["SILTSTONE_SUPER_USERS"]) == {*users}
    assert all(each in container["env"] for each in variables)


@pytest.mark.parametrize("notice_ms", [0, "0", 40_000, "40000"])
def test_a_drain_ends_before_the_time_that_is_given(notice_ms: int | str, tmp_path: Path) -> None:
    """The number 0 is one that is set, too. drain.timeout.ms is 30 s."""
    drains = int(notice_ms) // 1000 + 30
    more: dict[str, Any] = {"settings": {"drain.notice.ms": notice_ms}}
    for given, wanted in ((0, drains + 30), (drains + 1, drains + 1), (drains, None)):
        more["agents"] = {"terminationGracePeriodSeconds": given}
        done = with_more("scram", more, tmp_path)
        if wanted is None:
            assert f"above {drains}," in done.stderr
        else:
            assert Rendered.of(done).the("agent")[1]["terminationGracePeriodSeconds"] == wanted


PLACE = "s3://BUCKET/PREFIX?region=REGION"
STORES = {
    # URL: what the refusal says, "" if agents of the chart could use it
    "s3://records?region=eu-central-1": "",
    "s3://records/prod/?region=eu-central-1": "",
    "s3://records/prod/a%20b?region=eu-central-1&client=obstore": "",
    "s3://records/prod?endpoint=https://minio.data.svc:9000&region=us-east-1": "",
    "s3://records/prod?region=us-east-1&endpoint=http%3A%2F%2Fminio%3A9000": "",
    "s3://records/prod": "no region; append ?region=REGION",
    "s3://records/prod?endpoint=http://minio:9000": "no region; append &region=REGION",
    "s3://records/prod?region=": "write one such as region=eu-central-1",
    "s3://records/prod?region=EU": "write one such as region=eu-central-1",
    "s3://?region=eu-central-1": PLACE,
    "s3://a/prod?region=eu-central-1": PLACE,
    "s3://key:secret@records/prod?region=eu-central-1": PLACE,
    "s3://records/../prod?region=eu-central-1": PLACE,
    "s3://records/prod?regoin=eu-central-1": "regoin= is no parameter; there are region=, endpoint= and client=",
    "s3://records/prod?region=eu-central-1&secret": "something in it is no parameter",
    "s3://records/prod?region=eu-central-1&region=us-east-1": "region is there twice",
    "s3://records/prod?region=us-east-1&endpoint=minio:9000": "write endpoint=https://HOST:PORT",
    "s3://records/prod?region=us-east-1&endpoint=https://minio/path": "write endpoint=https://HOST:PORT",
    "s3://records/prod?region=us-east-1&endpoint=https://key:secret@minio": "write endpoint=https://HOST:PORT",
    "s3://records/prod?region=us-east-1&endpoint=https://minio:90000": "there is no port 90000",
    "s3://records/prod?region=us-east-1&client=boto": "write client=obstore, or leave it out",
    "s3://records/prod?region=us-east-1&l0=s3%3A%2F%2Fother": "l0= is no parameter",
    "s3://records/prod?region=us-east-1#part": "write one such as region=eu-central-1",
}


@pytest.mark.parametrize("url", STORES)
def test_a_store_is_taken_if_agents_can_use_it(url: str, tmp_path: Path) -> None:
    done, says = with_more("scram", {"objectStoreUrl": url}, tmp_path), STORES[url]
    try:
        place = parse_store_url(url)
        reads = bool(place.region) and place.l0 is None
    except StoreMisconfiguredError:
        reads = False
    assert (reads, done.returncode == 0) == (not says, not says), done.stderr
    assert reads or ("objectStoreUrl: " in done.stderr and says in done.stderr)
    assert "secret" not in done.stderr


def test_no_setting_of_the_charts_own_is_taken(tmp_path: Path) -> None:
    """All that a container of agents or compactors is told by name, and what would open a listener."""
    own = {"insecure", "allow.everyone.if.no.acl.found", "listen", "listener.other.address", "advertised.host"}
    own |= {"metrics.insecure", "metrics.listen", "object.store.url", "produce.store.url", "produce.store.writes"}
    usual = {name: default for name, _, default in declarations()}
    table = {environment_name(name): name for name in usual}
    for values in VALUE_SETS:
        rendered = render(values)
        for command in ("agent", "compactor"):
            for variable in (each["name"] for each in rendered.the(command)[2]["env"]):
                if variable.startswith("SILTSTONE_LISTENER_"):
                    own.add(variable.removeprefix("SILTSTONE_").replace("_", ".").lower())
                elif variable.startswith("SILTSTONE_"):
                    own.add(table[variable])
    assert len(own) > 25
    for name in sorted(own):
        value = usual.get(name, "text")
        done = with_more("scram", {"settings": {name: value}}, tmp_path)
        assert done.returncode != 0 and f"settings.{name} follows from other values" in done.stderr, done.stderr


def of_defaults(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in values.items():
        yield (*path, name)
        if isinstance(value, dict):
            yield from of_defaults(value, (*path, name))


def test_a_value_that_is_taken_away_is_refused_by_its_name_or_not_missed(tmp_path: Path) -> None:
    """`name:` without anything after it, as it stays behind in a file of values, is such a null."""
    refused, usual = 0, set(template("-f", "ci/scram-values.yaml").stdout.split("\n---\n"))
    paths = list(of_defaults(yaml.safe_load((CHART / "values.yaml").read_text())))
    # what agents and compactors have in common is refused alike
    for path in [each for each in paths if each[0] != "compactors" or ("agents", *each[1:]) not in paths]:
        more: Any = None
        for name in reversed(path):
            more = {name: more}
        done = with_more("scram", more, tmp_path)
        if done.returncode:
            refused += 1
            assert f"{path[-1]} is required" in done.stderr or ".".join(path) in done.stderr, (path, done.stderr)
            continue
        for text in set(done.stdout.split("\n---\n")) - usual:
            kubernetes_validate.validate(yaml.safe_load(text), NEWEST, strict=True)
    assert refused > 20


def test_pods_may_reach_the_ports_that_urls_name_or_those_behind_a_service(tmp_path: Path) -> None:
    second = {"produceStore": {"url": "s3://quick/prod?region=us-east-1&endpoint=http://quick.data.svc"}}
    behind = {"networkPolicy": {"postgresPort": 5432, "storePort": 9001}, **second}
    for more, postgres, stores in (({}, 6432, [9000]), (second, 6432, [9000, 80]), (behind, 5432, [9001])):
        rendered = Rendered.of(with_more("watched", more, tmp_path))
        for each in ("agent", "compactor", "drill"):
            rules = rendered.one("NetworkPolicy", f"{RELEASE}-{each}")["spec"]["egress"]
            assert [[at["port"] for at in rule["ports"]] for rule in rules[1:]] == [[postgres], stores]


def test_every_pod_may_ask_for_names_also_where_dns_has_another_port_behind_its_service() -> None:
    policies = render("watched-values.yaml").all("NetworkPolicy")
    assert len(policies) == 6
    for each in policies:
        first = each["spec"]["egress"][0]
        ports = sorted((at["port"], at["protocol"]) for at in first["ports"])
        assert "to" not in first
        assert ports == [(53, "TCP"), (53, "UDP"), (5353, "TCP"), (5353, "UDP")]


@pytest.mark.parametrize("name", WRONG)
def test_helm_refuses_what_the_schema_refuses(name: str, tmp_path: Path) -> None:
    values, named = WRONG[name]
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    done = template("-f", "ci/scram-values.yaml", "-f", str(file))
    assert done.returncode != 0 and named in done.stderr and "schema" in done.stderr, done.stderr
