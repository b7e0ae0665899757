"""The chart as Helm renders it, and the environment that Kubernetes would give to its containers.

Helm is found on the PATH. One that was built by `go install` does not know which Kubernetes it is for, so every
command names a version.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from runtime.settings.loading import load_settings
from runtime.settings.table import Settings

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "infra" / "helm" / "siltstone"
VALUE_SETS = sorted(path.name for path in (CHART / "ci").glob("*-values.yaml"))
RELEASE, NAMESPACE = "silt", "logs"
KUBERNETES = "1.32"
OLDEST, NEWEST = "1.27", kubernetes_validate.latest_version()
OF_A_POD: Mapping[str, str] = {
    # what the downward API tells, but for the pod's name
    "status.podIP": "10.0.3.7",
    "status.hostIP": "10.0.1.9",
    "spec.nodeName": "ip-10-0-1-9.eu-central-1.compute.internal",
    "metadata.labels['topology.kubernetes.io/zone']": "eu-central-1b",
}

WRONG: Mapping[str, tuple[Mapping[str, Any], str]] = {
    # name: (values, what the refusal names)
    "a misspelt value": ({"agents": {"replica": 3}}, "replica"),
    "a misspelt room": ({"listeners": {}}, "listeners"),
    "a number as text": ({"agents": {"replicas": "three"}}, "replicas"),
    "more agents than names allow": ({"agents": {"replicas": 100}}, "replicas"),
    "an authentication that there is not": ({"listener": {"authentication": "PLAIN"}}, "authentication"),
    "a way outside that there is not": ({"external": {"type": "Route"}}, "type"),
    "a port that there is not": ({"external": {"port": 70000}}, "port"),
    "one name for two agents": ({"external": {"hosts": ["a.example.com", "a.example.com"]}}, "hosts"),
    "compactors by CPU": ({"compactors": {"autoscaling": {"type": "HPA"}}}, "type"),
    "a backlog of nothing": ({"compactors": {"autoscaling": {"backlog": {"threshold": 0}}}}, "threshold"),
    "a setting as a variable": ({"agents": {"extraEnv": [{"name": "SILTSTONE_INSECURE", "value": "true"}]}}, "name"),
    "a password as a variable": ({"compactors": {"extraEnv": [{"name": "PGPASSWORD", "value": "x"}]}}, "name"),
    "a volume of the chart's own": ({"agents": {"extraVolumes": [{"name": "tls", "emptyDir": {}}]}}, "name"),
    "a setting of several values": ({"settings": {"log.level": ["info"]}}, "log.level"),
    "a job that alerts do not know": ({"monitoring": {"job": "kafka"}}, "job"),
    "a database without a port": ({"postgres": {"address": "postgres/siltstone"}}, "address"),
    "a size without a unit": ({"compactors": {"tmpSizeLimit": "8 GB"}}, "tmpSizeLimit"),
    "five bytes": ({"compactors": {"tmpSizeLimit": "5"}}, "tmpSizeLimit"),
    "one byte": ({"drill": {"resources": {"limits": {"memory": 1}}}}, "memory"),
    "a number of MiB without a unit": ({"agents": {"resources": {"requests": {"memory": "1536"}}}}, "memory"),
    "no loss of fewer seconds than none": ({"drill": {"lostSecondsMax": -1}}, "lostSecondsMax"),
    "no agents": ({"agents": {"replicas": 0}}, "replicas"),
    "no least number of agents": ({"agents": {"autoscaling": {"minReplicas": 0}}}, "minReplicas"),
    "no least number of compactors": ({"compactors": {"autoscaling": {"minReplicas": 0}}}, "minReplicas"),
    "a store of Google": ({"objectStoreUrl": "gs://records/prod"}, "objectStoreUrl"),
    "a store in a pod": ({"objectStoreUrl": "file:///records"}, "objectStoreUrl"),
    "a second store in a pod": ({"produceStore": {"url": "file:///records"}}, "url"),
    "a misspelt setting": ({"settings": {"gc.grase.ms": 900_000}}, "gc.grase.ms"),
    "a number with a unit": ({"settings": {"drain.timeout.ms": "10m"}}, "drain.timeout.ms"),
    "a number that is text": ({"settings": {"drain.notice.ms": "abc"}}, "drain.notice.ms"),
    "a number with gaps": ({"settings": {"gc.grace.ms": "900 000"}}, "gc.grace.ms"),
    "a number below its least": ({"settings": {"drain.timeout.ms": 0}}, "drain.timeout.ms"),
    "a number above its most": ({"settings": {"num.partitions": 1_000_000}}, "num.partitions"),
    "a fraction": ({"settings": {"num.partitions": 1.5}}, "num.partitions"),
    "a choice that there is not": ({"settings": {"quota.scope": "zone"}}, "quota.scope"),
    "a yes": ({"settings": {"auto.create.topics.enable": "yes"}}, "auto.create.topics.enable"),
    "processors of a word": ({"agents": {"resources": {"limits": {"cpu": "abc"}}}}, "cpu"),
    "processors in Gi": ({"compactors": {"resources": {"requests": {"cpu": "1Gi"}}}}, "cpu"),
    "thousandths of a byte": ({"agents": {"resources": {"limits": {"memory": "2000m"}}}}, "memory"),
    "a resource that there is not": ({"agents": {"resources": {"limits": {"memroy": "2Gi"}}}}, "memroy"),
    "a label of the chart's own": (
        {"agents": {"podLabels": {"app.kubernetes.io/component": "compactor"}}},
        "app.kubernetes.io/component",
    ),
    "a label that is none": ({"compactors": {"podLabels": {"team": "logs & more"}}}, "team"),
    "an annotation of the chart's own": (
        {"agents": {"podAnnotations": {"siltstone/settings": "x"}}},
        "siltstone/settings",
    ),
    "a label of the chart's own objects": (
        {"monitoring": {"labels": {"app.kubernetes.io/managed-by": "me"}}},
        "app.kubernetes.io/managed-by",
    ),
    "a key of AWS in the open": ({"agents": {"extraEnv": [{"name": "AWS_SECRET_ACCESS_KEY", "value": "x"}]}}, "name"),
    "a session of AWS in the open": (
        {"compactors": {"extraEnv": [{"name": "AWS_SESSION_TOKEN", "value": "x"}]}},
        "extraEnv",
    ),
    "another Postgres by a variable": ({"agents": {"extraEnv": [{"name": "PGHOST", "value": "x"}]}}, "name"),
    "a volume over the program": (
        {"agents": {"extraVolumeMounts": [{"name": "a", "mountPath": "/opt/siltstone"}]}},
        "mountPath",
    ),
    "a volume over the chart's own": (
        {"agents": {"extraVolumeMounts": [{"name": "a", "mountPath": "/etc/siltstone/tls"}]}},
        "mountPath",
    ),
    "a role with a password": ({"postgres": {"agent": "silt:secret"}}, "agent"),
    "a peer that is nobody": ({"networkPolicy": {"clients": [{}]}}, "clients"),
    "a peer by an address": ({"networkPolicy": {"postgres": [{"cidr": "10.0.0.0/8"}]}}, "postgres"),
    "a network without a length": ({"networkPolicy": {"clients": [{"ipBlock": {"cidr": "10.0.0.1"}}]}}, "clients"),
    "a link that ends a line": ({"monitoring": {"docsUrl": "http://x/# /"}}, "docsUrl"),
    "a zone with a comma": ({"agents": {"zone": {"name": "a,b"}}}, "name"),
    "a drill at no time": ({"drill": {"schedule": "weekly"}}, "schedule"),
    "a drill in a zone of its own": ({"drill": {"schedule": "TZ=Europe/Berlin 23 4 * * 0"}}, "schedule"),
    "the same of another cron": ({"drill": {"schedule": "CRON_TZ=UTC 23 4 * * 0"}}, "schedule"),
    "everybody a super user": ({"listener": {"superUsers": ["User:admin", "User:*"]}}, "superUsers"),
    "anybody a super user": ({"listener": {"superUsers": ["User:ANONYMOUS "]}}, "superUsers"),
    "two super users as one": ({"listener": {"superUsers": ["User:admin;User:ops"]}}, "superUsers"),
    "root": ({"podSecurityContext": {"runAsUser": 0}}, "runAsUser"),
    "more rights": ({"podSecurityContext": {"runAsNonRoot": False}}, "runAsNonRoot"),
    "a label of the selectors": (
        {"others": {"podLabels": {"app.kubernetes.io/component": "agent"}}},
        "app.kubernetes.io/component",
    ),
    "an image with two digests": ({"image": {"repository": "siltstone@sha256:00"}}, "repository"),
}

Object = Mapping[str, Any]


@dataclass(frozen=True)
class Rendered:
    objects: Sequence[Object]

    @classmethod
    def of(cls, done: subprocess.CompletedProcess[str]) -> Rendered:
        assert done.returncode == 0, done.stderr
        return cls([each for each in yaml.load_all(done.stdout, _EachKeyOnce) if each])

    def all(self, kind: str) -> list[Object]:
        return [each for each in self.objects if each["kind"] == kind]

    def one(self, kind: str, name: str) -> Object:
        (found,) = [each for each in self.all(kind) if each["metadata"]["name"] == name]
        return found

    def workloads(self) -> Iterator[tuple[Object, Object, Object]]:
        """(object, its pods' specification, their only container)."""
        for kind in ("StatefulSet", "Deployment", "Job", "CronJob"):
            for each in self.all(kind):
                pod = each["spec"].get("jobTemplate", each)["spec"]["template"]["spec"]
                (container,) = pod["containers"]
                yield each, pod, container

    def the(self, command: str) -> tuple[Object, Object, Object]:
        (found,) = [each for each in self.workloads() if each[2]["args"][0] == command]
        return found

    def environment(self, container: Object, pod_name: str) -> dict[str, str]:
        """Variables without those that come from Secrets. `$(NAME)` is another variable's value, as in Kubernetes."""
        variables: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            if "configMapRef" in source:
                variables |= self.one("ConfigMap", source["configMapRef"]["name"])["data"]
        for each in container["env"]:
            of = each.get("valueFrom", {})
            if "fieldRef" in of:
                variables[each["name"]] = {**OF_A_POD, "metadata.name": pod_name}[of["fieldRef"]["fieldPath"]]
            elif not of:
                variables[each["name"]] = _expanded(each["value"], variables)
        return variables

    def settings(self, command: str, pod_name: str, folder: Path) -> Settings:
        """The settings that the program reads in such a pod; `folder` takes its files. Raises SettingsError."""
        _, pod, container = self.the(command)
        variables = self.environment(container, pod_name)
        words = [_expanded(word, variables) for word in container["args"]]
        file = self._file(pod, container, words[words.index("--config") + 1], folder) if "--config" in words else None
        return load_settings(file, variables, {})

    def _file(self, pod: Object, container: Object, path: str, folder: Path) -> Path:
        """A file of a ConfigMap that is mounted."""
        parent, _, name = path.rpartition("/")
        (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] == parent]
        (volume,) = [each for each in pod["volumes"] if each["name"] == mount["name"]]
        file = folder / name
        file.write_text(self.one("ConfigMap", volume["configMap"]["name"])["data"][name], encoding="utf-8")
        return file


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    return re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], text)


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    found = shutil.which("helm")
    if found is None:
        pytest.skip("helm on the PATH")
    command = [found, *words, "--kube-version", KUBERNETES]
    return subprocess.run(command, cwd=CHART, capture_output=True, text=True, timeout=60)


def template(*words: str) -> subprocess.CompletedProcess[str]:
    return helm("template", RELEASE, ".", "--namespace", NAMESPACE, *words)


def render(values: str, *words: str) -> Rendered:
    """The objects of the chart with a set of values of `ci/`."""
    return Rendered.of(template("-f", f"ci/{values}", *words))


class _EachKeyOnce(yaml.SafeLoader):
    """YAML of Python, and of Helm, takes the last of two keys; Kubernetes's own tools refuse them."""


def _mapping(loader: _EachKeyOnce, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key) for key, _ in node.value]
    assert len(set(keys)) == len(keys), f"a key twice: {keys} at {node.start_mark}"
    return loader.construct_mapping(node, deep=True)


_EachKeyOnce.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """As Helm merges values: maps by their keys, everything else as a whole; null takes a default away."""
    both: dict[str, Any] = {
        name: merged(base[name], value) if isinstance(value, dict) and isinstance(base.get(name), dict) else value
        for name, value in over.items()
    }
    return {name: value for name, value in {**base, **both}.items() if value is not None}
