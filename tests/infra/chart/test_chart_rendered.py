"""The chart as Helm renders it with each set of values: objects that Kubernetes takes, settings that programs load,
addresses that lead to the agent that names them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from infra.check.rules.network import drain_ms
from metadata.postgres.passwords import split
from runtime.settings.addresses import parse_address
from runtime.settings.listeners import ListenerSettings, endpoint_of, listeners_of
from runtime.settings.table import Settings
from siltstone.cli.drill import LOST_SECONDS_MAX, drill
from tests.infra.chart.rendering import (
    CHART,
    NAMESPACE,
    NEWEST,
    OLDEST,
    RELEASE,
    VALUE_SETS,
    Object,
    Rendered,
    helm,
    render,
)

PROGRAMS = ("agent", "compactor", "migrate")
OTHERS = {"ScaledObject", "ServiceMonitor", "PrometheusRule", "TLSRoute"}
"""Kinds that are none of Kubernetes's own."""


def outer_of(settings: Settings) -> tuple[ListenerSettings, int, str, int]:
    """(the listener for clients outside, the port it listens on, the host and the port that clients are told)."""
    (listener,) = [each for each in listeners_of(settings) if each.name == "external"]
    bound = parse_address(listener.address)
    return listener, bound[1], *endpoint_of(listener, bound)


def agents_max(rendered: Rendered) -> int:
    """How many agents there may be."""
    scalers = [*rendered.all("HorizontalPodAutoscaler"), *rendered.all("ScaledObject")]
    for each in scalers:
        if each["spec"]["scaleTargetRef"]["kind"] == "StatefulSet":
            return each["spec"].get("maxReplicas") or each["spec"]["maxReplicaCount"]
    return rendered.the("agent")[0]["spec"]["replicas"]


def agents(rendered: Rendered, folder: Path) -> Iterator[tuple[int, str, Settings]]:
    name = rendered.the("agent")[0]["metadata"]["name"]
    for ordinal in range(agents_max(rendered)):
        yield ordinal, f"{name}-{ordinal}", rendered.settings("agent", f"{name}-{ordinal}", folder)


# ---- what holds for every set of values


@pytest.mark.parametrize("values", VALUE_SETS)
def test_helm_has_nothing_to_say_and_kubernetes_would_take_every_object(values: str) -> None:
    linted = helm("lint", "--strict", ".", "-f", f"ci/{values}")
    assert linted.returncode == 0, linted.stdout + linted.stderr
    rendered = render(values)
    ours = [each for each in rendered.objects if each["kind"] not in OTHERS]
    assert len(ours) >= 13
    for version in (OLDEST, NEWEST):
        for each in ours:
            kubernetes_validate.validate(dict(each), version, strict=True)
    of_a_name = [(each["kind"], each["metadata"]["name"]) for each in rendered.objects]
    assert len(set(of_a_name)) == len(of_a_name)


def test_an_object_that_kubernetes_would_not_take_is_noticed() -> None:
    service: dict[str, Any] = dict(render("scram-values.yaml").all("Service")[0])
    for change in ({"clusterIp": "None"}, {"ports": [{"port": "kafka"}]}):
        broken = {**service, "spec": {**service["spec"], **change}}
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(broken, NEWEST, strict=True)


@pytest.mark.parametrize("values", VALUE_SETS)
def test_programs_load_what_they_are_told_and_have_time_to_drain(values: str, tmp_path: Path) -> None:
    rendered = render(values)
    for command in PROGRAMS:
        _, pod, container = rendered.the(command)
        if command == "agent":
            loaded = [settings for *_, settings in agents(rendered, tmp_path)]
        else:
            loaded = [rendered.settings(command, f"{RELEASE}-{command}-0", tmp_path)]
        for settings in loaded:
            place = split(settings.metadata_url)[1]
            if command == "migrate":
                assert place.file == ""
                continue
            assert is_mounted(place.file, pod, container, of_secret=f"silt-{command}", key="PGPASSWORD")
            time_ms = drain_ms({"command": [command]}, settings)
            assert 1000 * pod["terminationGracePeriodSeconds"] >= time_ms + 10_000


def is_mounted(path: str, pod: Object, container: Object, *, of_secret: str, key: str) -> bool:
    """Whether a key of a Secret is this file, which is renewed with it: files of a `subPath` are not."""
    for mount in container["volumeMounts"]:
        (volume,) = [each for each in pod["volumes"] if each["name"] == mount["name"]]
        secret = volume.get("secret", {})
        for item in secret.get("items", ()):
            at = f"{mount['mountPath']}/{item['path']}"
            if (at, item["key"], secret["secretName"], "subPath" in mount) == (path, key, of_secret, False):
                return True
    return False


@pytest.mark.parametrize("values", VALUE_SETS)
def test_no_password_of_postgres_is_a_variable_of_agents_and_compactors(values: str) -> None:
    rendered = render(values)
    for command in ("agent", "compactor"):
        _, _, container = rendered.the(command)
        assert [name for source in container["envFrom"] for name in source] == ["configMapRef"]
        secrets = [each for each in container["env"] if "secretKeyRef" in each.get("valueFrom", {})]
        assert [each["name"] for each in secrets] == ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
        assert all(each["valueFrom"]["secretKeyRef"]["optional"] for each in secrets)
    assert not rendered.all("Secret")


@pytest.mark.parametrize("values", VALUE_SETS)
def test_pods_can_write_a_bounded_tmp_alone_and_every_volume_is_used(values: str) -> None:
    for _, pod, container in render(values).workloads():
        assert container["securityContext"]["readOnlyRootFilesystem"] and not pod["enableServiceLinks"]
        volumes = {each["name"]: each for each in pod["volumes"]}
        assert len(volumes) == len(pod["volumes"])
        assert volumes.keys() == {each["name"] for each in container["volumeMounts"]}
        (tmp,) = [each for each in container["volumeMounts"] if each["mountPath"] == "/tmp"]
        assert volumes[tmp["name"]]["emptyDir"]["sizeLimit"]
        others = [each for each in container["volumeMounts"] if each is not tmp and each["name"] != "more"]
        assert all(each["readOnly"] for each in others)


@pytest.mark.parametrize("values", VALUE_SETS)
def test_clients_inside_are_told_names_that_the_headless_service_gives(values: str, tmp_path: Path) -> None:
    rendered = render(values)
    stateful, _, _ = rendered.the("agent")
    headless = rendered.one("Service", stateful["spec"]["serviceName"])
    assert headless["spec"]["clusterIP"] == "None" and headless["spec"]["publishNotReadyAddresses"]
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert headless["spec"]["selector"].items() <= labels.items()
    for _, pod_name, settings in agents(rendered, tmp_path):
        first = listeners_of(settings)[0]
        name = f"{pod_name}.{headless['metadata']['name']}.{NAMESPACE}.svc.cluster.local"
        assert (first.name, first.advertised) == ("default", f"{name}:9092")
        bootstrap, port = parse_address(settings.advertised_bootstrap)
        service = rendered.one("Service", bootstrap.split(".")[0])
        assert [each["port"] for each in service["spec"]["ports"]] == [port]
        assert service["spec"]["selector"].items() <= labels.items()


@pytest.mark.parametrize("values", VALUE_SETS)
def test_pods_are_spread_over_zones_and_hosts(values: str) -> None:
    rendered = render(values)
    for command in ("agent", "compactor"):
        workload, pod, _ = rendered.the(command)
        spread = pod["topologySpreadConstraints"]
        assert {each["topologyKey"] for each in spread} == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}
        own = workload["spec"]["template"]["metadata"]["labels"]
        for each in spread:
            assert each["labelSelector"]["matchLabels"].items() <= own.items()
            assert each["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == command


# ---- clients outside


OUTSIDE = [each for each in VALUE_SETS if re.search(r"^external: *(\n|\{)", (CHART / "ci" / each).read_text(), re.M)]


@pytest.mark.parametrize("values", OUTSIDE)
def test_what_clients_outside_are_told_leads_to_that_agent_alone(values: str, tmp_path: Path) -> None:
    rendered = render(values)
    given = yaml.safe_load((CHART / "ci" / values).read_text())["external"]
    labels = rendered.the("agent")[0]["spec"]["template"]["metadata"]["labels"]
    told: set[tuple[str, int]] = set()
    for ordinal, pod_name, settings in agents(rendered, tmp_path):
        listener, listens, host, port = outer_of(settings)
        assert listener.encrypts and listener.authenticates
        wanted = given.get("authentication") or ("SCRAM" if listeners_of(settings)[0].has_sasl else "CERTIFICATE")
        assert listener.has_sasl == (wanted == "SCRAM")
        service = rendered.one("Service", f"{pod_name}-external")["spec"]
        selected, pod = service["selector"], {**labels, "statefulset.kubernetes.io/pod-name": pod_name}
        assert selected.items() <= pod.items() and "statefulset.kubernetes.io/pod-name" in selected
        assert service["publishNotReadyAddresses"]
        (at,) = service["ports"]
        assert at["targetPort"] == listens and lets_in(rendered, listens)
        assert port == {"LoadBalancer": at["port"], "NodePort": at.get("nodePort")}.get(given["type"], 443)
        if hosts := given.get("hosts"):
            assert host == hosts[ordinal]
        elif "{node}" in given["host"]:
            assert host.startswith("ip-10-0-1-9.") and service["externalTrafficPolicy"] == "Local"
        else:
            assert host == f"agent-{ordinal}.kafka.example.com"
        if given["type"] in ("Ingress", "TLSRoute"):
            assert routed(rendered, host) == (f"{pod_name}-external", at["port"])
        told.add((host, port))
    assert len(told) == agents_max(rendered)


def lets_in(rendered: Rendered, port: int) -> bool:
    """Whether the network policy lets clients outside in at the port."""
    rules = rendered.one("NetworkPolicy", f"{RELEASE}-agent")["spec"]["ingress"]
    ranges = [each for rule in rules for each in rule["ports"] if "endPort" in each]
    return any(each["port"] <= port <= each["endPort"] for each in ranges)


def routed(rendered: Rendered, host: str) -> tuple[str, int]:
    """The Service, and its port, to which a gateway sends who asks for `host`."""
    found: list[tuple[str, int]] = []
    for each in rendered.all("Ingress"):
        for rule in each["spec"]["rules"]:
            backends = [path["backend"]["service"] for path in rule["http"]["paths"] if rule["host"] == host]
            for one in backends:
                ports = {at["name"]: at["port"] for at in rendered.one("Service", one["name"])["spec"]["ports"]}
                found.append((one["name"], ports[one["port"]["name"]]))
    for each in rendered.all("TLSRoute"):
        assert each["spec"]["parentRefs"] and each["apiVersion"].startswith("gateway.networking.k8s.io/v1")
        for rule in each["spec"]["rules"] if each["spec"]["hostnames"] == [host] else ():
            found += [(one["name"], one["port"]) for one in rule["backendRefs"]]
    (one,) = found
    return one


def test_a_load_balancer_has_the_name_of_its_agent_and_its_own_certificate(tmp_path: Path) -> None:
    rendered = render("loadbalancer-values.yaml")
    for ordinal, pod_name, settings in agents(rendered, tmp_path):
        service = rendered.one("Service", f"{pod_name}-external")
        host = f"agent-{ordinal}.kafka.example.com"
        assert service["metadata"]["annotations"]["external-dns.alpha.kubernetes.io/hostname"] == host
        assert service["spec"]["loadBalancerSourceRanges"] == ["198.51.100.0/24"]
        listener, *_ = outer_of(settings)
        assert listener.tls_cert_file == "/etc/siltstone/external-tls/tls.crt"
        assert [str(each) for each in listener.proxies] == ["10.0.0.0/16", "10.1.0.0/16"]
    _, pod, container = rendered.the("agent")
    (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] == "/etc/siltstone/external-tls"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == mount["name"]]
    assert volume["secret"]["secretName"] == "silt-outer-tls"


def test_the_address_of_the_node_is_told_where_nothing_is_named(tmp_path: Path) -> None:
    rendered = render("nodeport-values.yaml", "--set", "external.host=")
    told = [outer_of(settings)[2:] for *_, settings in agents(rendered, tmp_path)]
    assert told == [("10.0.1.9", 32090 + ordinal) for ordinal in range(5)]


def test_a_newer_gateway_api_is_used_where_it_is() -> None:
    rendered = render("tlsroute-values.yaml", "--api-versions", "gateway.networking.k8s.io/v1/TLSRoute")
    assert {each["apiVersion"] for each in rendered.all("TLSRoute")} == {"gateway.networking.k8s.io/v1"}


# ---- autoscaling and monitoring


@pytest.mark.parametrize("values", VALUE_SETS)
def test_whoever_scales_is_alone_and_ends_one_pod_at_a_time(values: str) -> None:
    rendered = render(values)
    scalers = [*rendered.all("HorizontalPodAutoscaler"), *rendered.all("ScaledObject")]
    scaled = {each["spec"]["scaleTargetRef"]["name"]: each["spec"] for each in scalers}
    for command in ("agent", "compactor"):
        workload, pod, _ = rendered.the(command)
        spec = scaled.pop(workload["metadata"]["name"], None)
        assert ("replicas" in workload["spec"]) == (spec is None)
        if spec is None:
            continue
        target = (spec["scaleTargetRef"]["apiVersion"], spec["scaleTargetRef"]["kind"])
        assert target == (workload["apiVersion"], workload["kind"])
        behavior = spec.get("behavior") or spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        ((policy),) = behavior["scaleDown"]["policies"]
        assert (policy["type"], policy["value"]) == ("Pods", 1)
        assert pod["terminationGracePeriodSeconds"] < policy["periodSeconds"] <= 1800
    assert scaled == {}


def test_keda_asks_for_cpu_lag_and_what_compactors_have_to_do() -> None:
    rendered = render("keda-values.yaml")
    agents, compactors = (rendered.one("ScaledObject", f"logs-{each}")["spec"] for each in ("agent", "compactor"))
    assert (agents["minReplicaCount"], agents["maxReplicaCount"]) == (3, 12)
    cpu, lag = agents["triggers"]
    assert (cpu["type"], cpu["metricType"], cpu["metadata"]) == ("cpu", "Utilization", {"value": "70"})
    (backlog,) = compactors["triggers"]
    assert (lag["metricType"], lag["metadata"]["threshold"]) == ("AverageValue", "2000000")
    assert (backlog["metricType"], backlog["metadata"]["threshold"]) == ("Value", "180")
    assert "siltstone_group_lag_offsets" in lag["metadata"]["query"]
    assert "siltstone_l0_oldest_seconds" in backlog["metadata"]["query"]
    for each in (lag, backlog):
        assert each["metadata"]["serverAddress"] == "http://prometheus.monitoring:9090"
        assert each["metadata"]["ignoreNullValues"] == "false"
        assert all(isinstance(value, str) for value in each["metadata"].values())
    without = render("keda-values.yaml", "--set", "agents.autoscaling.lag.threshold=0")
    assert len(without.one("ScaledObject", "logs-agent")["spec"]["triggers"]) == 1


def test_prometheus_scrapes_both_kinds_of_process_as_jobs_that_alerts_know() -> None:
    for values, scheme in (("hpa-values.yaml", "http"), ("certificate-values.yaml", "https")):
        rendered = render(values)
        for each in ("agent", "compactor"):
            monitor = rendered.one("ServiceMonitor", f"{RELEASE}-{each}s")["spec"]
            chosen = monitor["selector"]["matchLabels"].items()
            (service,) = [one for one in rendered.all("Service") if chosen <= one["metadata"]["labels"].items()]
            (endpoint,) = monitor["endpoints"]
            assert (service["metadata"]["name"], endpoint["scheme"]) == (f"{RELEASE}-{each}s", scheme)
            assert [at["port"] for at in service["spec"]["ports"] if at["name"] == endpoint["port"]] == [9644]
            assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": f"siltstone-{each}s"}]
            workload, _, container = rendered.the(each)
            assert service["spec"]["selector"].items() <= workload["spec"]["template"]["metadata"]["labels"].items()
            assert container["livenessProbe"]["httpGet"]["scheme"] == scheme.upper()


def test_a_probe_is_scraped_where_it_listens_and_knows_agents_alone(tmp_path: Path) -> None:
    for values in ("watched-values.yaml", "certificate-values.yaml"):
        rendered = render(values, "--set", "probe.secret=silt-probe")
        settings = rendered.settings("probe", f"{RELEASE}-probe-0", tmp_path)
        assert (settings.metrics_listen, settings.metrics_insecure, settings.log_format) == (
            "0.0.0.0:9644",
            True,
            "json",
        )
        assert (settings.metadata_url, settings.object_store_url, settings.metrics_tls_cert_file) == ("", "", "")
        _, pod, container = rendered.the("probe")
        assert "envFrom" not in container and "serviceAccountName" not in pod
        (endpoint,) = rendered.one("ServiceMonitor", f"{RELEASE}-probe")["spec"]["endpoints"]
        assert (endpoint["scheme"], endpoint["relabelings"][0]["replacement"]) == ("http", "siltstone-probe")
        assert "tlsConfig" not in endpoint
        service = rendered.one("Service", f"{RELEASE}-probe")
        chosen = rendered.one("ServiceMonitor", f"{RELEASE}-probe")["spec"]["selector"]["matchLabels"]
        assert chosen.items() <= service["metadata"]["labels"].items()
        workload = rendered.one("Deployment", f"{RELEASE}-probe")
        assert service["spec"]["selector"] == workload["spec"]["template"]["metadata"]["labels"]
        (let_in,) = rendered.one("NetworkPolicy", f"{RELEASE}-probe")["spec"]["ingress"]
        assert let_in["ports"][0]["port"] == 9644


def test_a_drill_is_the_owners_and_reads_the_places_of_the_cluster(tmp_path: Path) -> None:
    rendered = render("watched-values.yaml")
    cron, pod, container = rendered.the("drill")
    settings = rendered.settings("drill", f"{RELEASE}-drill-0", tmp_path)
    compactors = rendered.settings("compactor", f"{RELEASE}-compactor-0", tmp_path)
    owner = rendered.settings("migrate", f"{RELEASE}-migrate-0", tmp_path)
    assert settings.metadata_url == owner.metadata_url and settings.object_store_url == compactors.object_store_url
    (password,) = [each for each in container["env"] if each["name"] == "PGPASSWORD"]
    assert password["valueFrom"]["secretKeyRef"] == {"name": "silt-migrate", "key": "PGPASSWORD"}
    assert pod["serviceAccountName"] == rendered.the("compactor")[1]["serviceAccountName"]
    assert container["resources"]["limits"] == {"memory": "4Gi"}
    job = cron["spec"]["jobTemplate"]["spec"]
    assert (cron["spec"]["schedule"], job["backoffLimit"], pod["restartPolicy"]) == ("23 4 * * 0", 0, "Never")
    # one at a time, and one that never starts fails before the next day's
    assert cron["spec"]["concurrencyPolicy"] == "Forbid" and 6 * 3600 <= job["activeDeadlineSeconds"] < 24 * 3600
    labels = job["template"]["metadata"]["labels"]
    assert rendered.one("NetworkPolicy", f"{RELEASE}-drill")["spec"]["podSelector"]["matchLabels"] == labels


def test_a_drill_takes_the_losses_that_values_allow_and_has_the_ways_of_compactors() -> None:
    more = ["--set", "drill.schedule=@weekly", "--set", "drill.lostSecondsMax=1000000"]
    for words, lost_seconds_max in ((more[:2], LOST_SECONDS_MAX), (more, 1_000_000)):
        rendered = render("certificate-values.yaml", *words)
        _, pod, container = rendered.the("drill")
        name, *arguments = container["args"]
        assert drill.make_context(name, arguments).params["lost_seconds_max"] == lost_seconds_max
        given = yaml.safe_load((CHART / "ci" / "certificate-values.yaml").read_text())["compactors"]
        assert given["extraVolumes"][0] in pod["volumes"]
        assert given["extraVolumeMounts"][0] in container["volumeMounts"]
    _, _, container = render("placement-values.yaml", *more).the("drill")
    assert {"name": "HTTPS_PROXY", "value": "http://proxy.example.internal:3128"} in container["env"]


def test_nothing_of_it_is_there_unless_it_is_asked_for() -> None:
    rendered = render("scram-values.yaml")
    names = {each["metadata"]["name"] for each in rendered.objects}
    assert not names & {f"{RELEASE}-{each}" for each in ("client", "probe", "drill")}
    peers = rendered.one("NetworkPolicy", f"{RELEASE}-agent")["spec"]["ingress"][0]["from"]
    assert [list(each) for each in peers] == [["namespaceSelector"]]


def test_a_setting_is_given_on_the_command_line_as_the_readme_says(tmp_path: Path) -> None:
    readme = (CHART.parent / "README.md").read_text(encoding="utf-8")
    ((name, value),) = re.findall(r"--set-json '(settings)=(\{[^']*\})'", readme)
    ((in_file,),) = [re.findall(r"`(settings: \{[^`]*\})`", readme)]
    assert yaml.safe_load(in_file) == {name: yaml.safe_load(value)}
    rendered = render("scram-values.yaml", "--set-json", f"{name}={value}")
    assert rendered.settings("compactor", f"{RELEASE}-compactor-0", tmp_path).drain_notice_ms == 60_000


def test_the_readme_migrates_by_hand_as_the_hook_does() -> None:
    readme = (CHART.parent / "README.md").read_text(encoding="utf-8")
    _, _, container = render("scram-values.yaml").the("migrate")
    assert f"`{' '.join(container['args'])}`" in readme


def test_the_operators_rules_are_the_alert_rules_with_links_that_lead_somewhere() -> None:
    (rule,) = render("hpa-values.yaml").all("PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    text = (CHART / "files" / "alerts.yml").read_text()
    wanted = text.replace("runbook_url: docs/", "runbook_url: https://docs.example.com/siltstone/docs/")
    assert rule["spec"] == yaml.safe_load(wanted) != yaml.safe_load(text)


# ---- names, places, refusals


def test_names_follow_the_overrides_everywhere() -> None:
    for values, begin, label in (
        ("keda-values.yaml", "logs-", "siltstone"),
        ("placement-values.yaml", "silt-silt-east-", "silt-east"),
        ("scram-values.yaml", "silt-", "siltstone"),
    ):
        for each in render(values).objects:
            assert each["metadata"]["name"].startswith(begin)
            labels = each["metadata"]["labels"]
            assert (labels["app.kubernetes.io/name"], labels["app.kubernetes.io/instance"]) == (label, RELEASE)


def test_pods_are_placed_as_the_values_say(tmp_path: Path) -> None:
    rendered = render("placement-values.yaml")
    given = yaml.safe_load((CHART / "ci" / "placement-values.yaml").read_text())
    for command in ("agent", "compactor"):
        _, pod, container = rendered.the(command)
        of = given[f"{command}s"]
        assert (pod["tolerations"], pod["affinity"]) == (of["tolerations"], of["affinity"])
        assert of["extraEnv"][0] in container["env"]
        assert {"name": "tmp", "emptyDir": {"sizeLimit": of["tmpSizeLimit"]}} in pod["volumes"]
    workload, pod, container = rendered.the("agent")
    assert pod["terminationGracePeriodSeconds"] == 1300 and pod["priorityClassName"] == "logs"
    assert {each["whenUnsatisfiable"] for each in pod["topologySpreadConstraints"]} == {"DoNotSchedule"}
    assert given["agents"]["extraVolumes"][0] in pod["volumes"]
    assert given["agents"]["extraVolumeMounts"][0] in container["volumeMounts"]
    metadata = workload["spec"]["template"]["metadata"]
    assert given["agents"]["podLabels"].items() <= metadata["labels"].items()
    assert given["agents"]["podAnnotations"].items() <= metadata["annotations"].items()
    for _, _, settings in agents(rendered, tmp_path):
        assert (settings.agent_zone, settings.drain_notice_ms, settings.gc_grace_ms) == (
            "eu-central-1b",
            1_200_000,
            900_000,
        )
        assert settings.log_level == "debug"


def test_the_other_pods_are_placed_and_marked_as_the_values_say() -> None:
    given = yaml.safe_load((CHART / "ci" / "placement-values.yaml").read_text())["others"]
    names = {"nodeSelector", "tolerations", "priorityClassName"}
    marks = {"podLabels": "labels", "podAnnotations": "annotations"}
    of_sets: dict[str, dict[str, Any]] = {"placement-values.yaml": given, "watched-values.yaml": {}}
    for values, others in of_sets.items():
        found: set[str] = set()
        for workload, pod, container in render(values).workloads():
            if container["name"] in ("agent", "compactor"):
                continue
            found.add(container["name"])
            assert {name: pod[name] for name in names & pod.keys()} == {
                name: others[name] for name in names & {*others}
            }
            metadata = workload["spec"].get("jobTemplate", workload)["spec"]["template"]["metadata"]
            assert metadata["labels"]["app.kubernetes.io/component"] == container["name"]
            own = {name for name in metadata["labels"] if name.startswith("app.kubernetes.io/")}
            for mark, at in marks.items():
                said = {name: value for name, value in metadata.get(at, {}).items() if name not in own}
                assert said == others.get(mark, {})
        assert found == {"migrate", "drill", "client", "probe"}


def test_pods_run_as_the_images_user_or_as_the_cluster_says() -> None:
    always = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    usual = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), 10001)
    of_sets = {"watched-values.yaml": usual, "placement-values.yaml": {"fsGroup": 1_000_660_000}}
    for values, told in of_sets.items():
        pods = [pod["securityContext"] for _, pod, _ in render(values).workloads()]
        assert pods == 6 * [always | told]


def test_a_changed_setting_replaces_pods_and_a_changed_number_of_agents_does_not() -> None:
    marks: list[tuple[str, ...]] = []
    for words in ((), ("--set", "agents.replicas=2"), ("--set-string", "settings.log\\.level=debug")):
        rendered = render("tlsroute-values.yaml", *words)
        metadata = [rendered.the(each)[0]["spec"]["template"]["metadata"] for each in ("agent", "compactor")]
        marks.append(tuple(str(each["annotations"]) for each in metadata))
    same, changed = ([one != other for one, other in zip(*pair, strict=True)] for pair in pairwise(marks))
    assert (same, changed) == ([False, False], [True, True])
