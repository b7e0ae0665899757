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

import pytest
import yaml

from runtime.settings.loading import load_settings
from runtime.settings.table import Settings

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "infra" / "helm" / "siltstone"
VALUE_SETS = sorted(path.name for path in (CHART / "ci").glob("*-values.yaml"))
RELEASE, NAMESPACE = "silt", "logs"
KUBERNETES = "1.32"
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
}

Object = Mapping[str, Any]


@dataclass(frozen=True)
class Rendered:
    objects: Sequence[Object]

    def all(self, kind: str) -> list[Object]:
        return [each for each in self.objects if each["kind"] == kind]

    def one(self, kind: str, name: str) -> Object:
        (found,) = [each for each in self.all(kind) if each["metadata"]["name"] == name]
        return found

    def workloads(self) -> Iterator[tuple[Object, Object, Object]]:
        """(object, its pods' specification, their only container)."""
        for kind in ("StatefulSet", "Deployment", "Job"):
            for each in self.all(kind):
                pod = each["spec"]["template"]["spec"]
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
    done = template("-f", f"ci/{values}", *words)
    assert done.returncode == 0, done.stderr
    return Rendered([each for each in yaml.safe_load_all(done.stdout) if each])


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """As Helm merges values: maps by their keys, everything else as a whole."""
    both = {
        name: merged(base[name], value) if isinstance(value, dict) and isinstance(base.get(name), dict) else value
        for name, value in over.items()
    }
    return {**base, **both}
