"""infra/kubernetes: objects, guide and image agree with each other, and the executor is started as Spark asks for."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import yaml

from runtime.settings.loading import load_settings
from spark_jobs.submitters.arguments import SubmitArguments, parse_arguments, submit_arguments

ROOT = Path(__file__).resolve().parents[3]
PLACE = ROOT / "infra" / "kubernetes"
OBJECTS: list[dict[str, Any]] = list(yaml.safe_load_all((PLACE / "merges.yaml").read_text()))
NAMESPACE = "merges"


def one(kind: str, name: str = "siltstone-compactor") -> dict[str, Any]:
    (found,) = [each for each in OBJECTS if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def settings() -> dict[str, str]:
    data = one("ConfigMap")["data"]
    return {name: text for name, text in data.items() if name.startswith("SILTSTONE_")}


def arguments() -> SubmitArguments:
    return submit_arguments(load_settings(None, settings(), {}))


def test_all_lie_in_one_namespace_and_none_is_a_secret() -> None:
    assert {each["metadata"]["namespace"] for each in OBJECTS if each["kind"] != "Namespace"} == {NAMESPACE}
    assert one("Namespace", NAMESPACE)
    assert "Secret" not in {each["kind"] for each in OBJECTS}
    text = (PLACE / "merges.yaml").read_text() + (PLACE / "Dockerfile").read_text()
    assert not re.search(r"PASSWORD|AKIA|secret_?access|BEGIN [A-Z ]*KEY", text, re.IGNORECASE)
    assert "secretRef: {name: silt-compactor}" in text
    readme = (PLACE / "README.md").read_text()
    assert "create secret generic silt-compactor --namespace merges" in readme


def test_the_names_that_drivers_and_executors_use_are_those_of_the_objects() -> None:
    confs = arguments().confs
    state, service = one("StatefulSet"), one("Service")
    assert confs["spark.driver.host"] == f"{service['metadata']['name']}.{NAMESPACE}.svc"
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    labels = state["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels == state["spec"]["selector"]["matchLabels"]
    assert (state["spec"]["serviceName"], state["spec"]["replicas"]) == (service["metadata"]["name"], 1)
    assert confs["spark.kubernetes.driver.pod.name"] == f"{state['metadata']['name']}-0"
    assert confs["spark.kubernetes.namespace"] == NAMESPACE
    ports = {each["name"]: each["port"] for each in service["spec"]["ports"]}
    assert [int(confs[name]) for name in ("spark.driver.port", "spark.blockManager.port")] == [
        ports["driver"],
        ports["blocks"],
    ]
    policy = one("NetworkPolicy")["spec"]["ingress"][0]
    assert [each["port"] for each in policy["ports"]] == [ports["driver"], ports["blocks"]]


def test_each_account_has_its_own_rights() -> None:
    spec = one("StatefulSet")["spec"]["template"]["spec"]
    (subject,) = one("RoleBinding", "siltstone-driver")["subjects"]
    assert spec["serviceAccountName"] == subject["name"] == one("ServiceAccount")["metadata"]["name"]
    assert one("RoleBinding", "siltstone-driver")["roleRef"]["name"] == "siltstone-driver"
    rules = {name: rule["verbs"] for rule in one("Role", "siltstone-driver")["rules"] for name in rule["resources"]}
    assert rules.keys() == {"pods", "configmaps"}
    assert all({"create", "get", "list", "watch", "delete", "deletecollection"} <= set(each) for each in rules.values())
    confs = arguments().confs
    executor = one("ServiceAccount", confs["spark.kubernetes.authenticate.executor.serviceAccountName"])
    assert executor["automountServiceAccountToken"] is False
    roles = {
        each["metadata"]["annotations"]["eks.amazonaws.com/role-arn"] for each in (executor, one("ServiceAccount"))
    }
    assert len(roles) == 2


def test_pods_run_one_image_by_its_digest_and_can_do_little() -> None:
    data = one("ConfigMap")["data"]
    template = yaml.safe_load(data["executor.yaml"])
    pod = one("StatefulSet")["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == arguments().confs["spark.kubernetes.container.image"]
    assert "@sha256:" in pod["containers"][0]["image"]
    for spec in (pod, template["spec"]):
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 10001
        container = spec["containers"][0]["securityContext"]
        assert container["readOnlyRootFilesystem"] and container["capabilities"] == {"drop": ["ALL"]}
    assert (
        one("NetworkPolicy", "siltstone-executor")["spec"]["podSelector"]["matchLabels"]
        == (template["metadata"]["labels"])
    )
    # and the template is where the driver is told to look
    (mount,) = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "executor"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "executor"]
    (item,) = volume["configMap"]["items"]
    assert arguments().confs["spark.kubernetes.executor.podTemplateFile"] == f"{mount['mountPath']}/{item['path']}"
    assert item["key"] in data
    given = [each["name"] for each in pod["containers"][0]["env"]]
    assert given == list(settings())


def test_the_guide_says_the_same() -> None:
    guide = (ROOT / "docs" / "spark.md").read_text()
    section = guide.partition("### Kubernetes\n")[2].partition("\n### ")[0]
    (block,) = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)
    told = tomllib.loads(block)["spark"]
    confs, here = parse_arguments(shlex.split(told["submit"]["args"].replace("\\\n", " "))).confs, arguments().confs
    assert told["submitter"] == "spark-submit" and told["master"].startswith("k8s://")
    assert {name: here.get(name) for name in confs} == confs
    assert "infra/kubernetes" in section


def test_the_executor_is_started_with_what_the_driver_gives(tmp_path: Path) -> None:
    # given a Java that prints how it was called
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    given = {
        "JAVA_HOME": str(tmp_path),
        "SPARK_HOME": "/opt/spark",
        "SPARK_EXECUTOR_MEMORY": "1g",
        "SPARK_JAVA_OPT_0": "-Da=b c",
        "SPARK_JAVA_OPT_1": "-Dd=e",
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@siltstone-compactor.merges.svc:7078",
        "SPARK_EXECUTOR_ID": "3",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "spark-1",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.9",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "merge-exec-3",
    }
    command = ["bash", str(PLACE / "executor.sh")]
    done = subprocess.run(
        [*command, "executor"], env={"PATH": os.environ["PATH"], **given}, capture_output=True, text=True
    )
    said = done.stdout.splitlines()
    assert said[:5] == ["-Da=b c", "-Dd=e", "-Xms1g", "-Xmx1g", "-cp"], done.stderr
    options = dict(zip(said[7::2], said[8::2], strict=True))
    assert options["--driver-url"] == given["SPARK_DRIVER_URL"] and options["--podName"] == "merge-exec-3"
    assert set(given.values()) - {str(tmp_path), "/opt/spark", "1g"} <= set(said)
    # and nothing else is
    assert subprocess.run([*command, "driver"], env=given, capture_output=True).returncode == 2
    del given["SPARK_DRIVER_URL"]
    assert subprocess.run([*command, "executor"], env=given, capture_output=True).returncode != 0


def test_the_class_that_starts_an_executor_is_in_the_spark_here() -> None:
    import zipfile

    from spark_jobs.environment import find_spark

    (jar,) = (find_spark().home / "jars").glob("spark-kubernetes_*.jar")
    wanted = re.findall(r"(org\.apache\.spark\.\S+Backend)", (PLACE / "executor.sh").read_text())
    assert len(wanted) == 1
    assert f"{wanted[0].replace('.', '/')}.class" in zipfile.ZipFile(jar).namelist()
