"""The block "The first user" of infra/helm/README.md, run as it stands against an agent with SCRAM, TLS and ACLs.

The agent and its Postgres are real, and its role there is that of agents. There is no cluster: `kubectl` and `helm` are
a script that keeps Secrets as folders and gives each command the environment that its pod would have.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from metadata.urls import open_metadata
from runtime.settings.listeners import ListenerSettings
from runtime.settings.loading import load_settings
from storage.local import LocalStore
from tests.fixtures.agents import StartAgent
from tests.fixtures.certificates import Authority
from tests.fixtures.postgres import AGENT_ROLE, as_role
from tests.infra.chart.rendering import NAMESPACE, RELEASE, ROOT, VALUE_SETS, Object, Rendered, render, template

README = ROOT / "infra" / "helm" / "README.md"
MOUNTED = "/etc/siltstone/client"
BLOCK_S_MAX = 500
CLUSTER = f"""\
#!{sys.executable}
import os, pathlib, sys
words, folder = sys.argv[1:], pathlib.Path(os.environ["CLUSTER"])
with (folder / "asked.txt").open("a") as asked:
    print(pathlib.Path(sys.argv[0]).name, *words, file=asked)
if words[:3] == ["create", "secret", "generic"]:
    secret = folder / words[3]
    secret.mkdir()
    for word in words[4:]:
        key, _, file = word.removeprefix("--from-file=").rpartition("=")
        text = pathlib.Path(file).read_text().replace("{MOUNTED}", str(secret))
        (secret / (key or file)).write_text(text)
        (secret / (key or file)).chmod(0o440)
elif words[0] == "exec":
    takes_input = words[1] == "-i"
    pod, dashes, *command = words[1 + takes_input :]
    assert dashes == "--"
    if not takes_input:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if pod == "silt-agent-0":
        variables = {{"SILTSTONE_METADATA_URL": os.environ["METADATA_OF_AGENTS"]}}
    else:
        of = {{"deployment/silt-client": "silt-admin-client", "deployment/silt-probe": "silt-probe-client"}}[pod]
        file = str(folder / of / "client.properties")
        variables = {{"SILTSTONE_BOOTSTRAP": os.environ["BOOTSTRAP"], "SILTSTONE_CLIENT_CONFIG": file}}
    os.execvpe(command[0], command, {{**os.environ, **variables}})
"""


def block() -> str:
    section = README.read_text(encoding="utf-8").partition("## The first user\n")[2].partition("\n## ")[0]
    (found,) = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return found


@pytest.mark.timeout(600)
async def test_a_reader_makes_the_first_user_and_a_probe_that_may_write(
    start_agent: StartAgent, postgres_url: str, tmp_path: Path
) -> None:
    authority = Authority()
    files = authority.server().write(tmp_path / "server")
    url = as_role(postgres_url, AGENT_ROLE)
    metadata = open_metadata(url)
    await metadata.open()
    listener = ListenerSettings(
        name="default",
        address="127.0.0.1:0",
        protocol="SASL_SSL",
        tls_cert_file=str(files.cert),
        tls_key_file=str(files.key),
    )
    running = await start_agent(
        listen="",
        store=LocalStore(tmp_path / "objects"),
        metadata=metadata,
        listeners=(listener,),
        acl_mode="on",
        super_users="User:admin",
    )
    desk, cluster, programs = (tmp_path / each for each in ("desk", "cluster", "programs"))
    for each in (desk, cluster, programs):
        each.mkdir()
    authority.write(desk / "ca.pem")
    for name in ("kubectl", "helm"):
        (programs / name).write_text(CLUSTER)
        (programs / name).chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SILTSTONE_")}
    environment |= {
        "PATH": os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "CLUSTER": str(cluster),
        "METADATA_OF_AGENTS": url,
        "BOOTSTRAP": running.address,
    }
    ran = await asyncio.to_thread(
        subprocess.run,
        ["bash", "-euxo", "pipefail", "-c", block()],
        cwd=desk,
        env=environment,
        capture_output=True,
        text=True,
        timeout=BLOCK_S_MAX,
    )
    await running.agent.stop()
    await metadata.close()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "ok: a record was written to siltstone-probe and read back" in ran.stdout
    assert re.findall(r"^(admin|probe) +SCRAM-SHA-512", ran.stdout, re.MULTILINE) == ["admin", "probe"]
    assert ran.stdout.splitlines()[-1] == "no groups", ran.stdout
    assert [each.name for each in desk.iterdir()] == ["ca.pem"]
    asked = (cluster / "asked.txt").read_text().splitlines()
    assert (len(asked), asked[3].split()[:4]) == (10, ["helm", "upgrade", "silt", "infra/helm/siltstone"])


@pytest.mark.parametrize("values", VALUE_SETS)
def test_a_command_in_an_agents_pod_finds_postgres(values: str, tmp_path: Path) -> None:
    """By the environment alone, or with the file that the page names where agents have a listener outside."""
    rendered = render(values)
    workload, _, container = rendered.the("agent")
    pod_name = f"{workload['metadata']['name']}-0"
    if "--config" in container["args"]:
        assert "`--config /etc/siltstone/external/silt-agent-0.toml`" in README.read_text(encoding="utf-8")
        assert container["args"][-1].replace("$(POD_NAME)", pod_name) == f"/etc/siltstone/external/{pod_name}.toml"
        settings = rendered.settings("agent", pod_name, tmp_path)
    else:
        settings = load_settings(None, rendered.environment(container, pod_name), {})
    assert settings.metadata_url.startswith("postgresql://silt_agent@")


def test_the_pods_of_the_block_have_what_its_commands_need() -> None:
    """The environment that the script above gives to commands is that of the chart's pods."""
    (upgrade,) = re.findall(r"^helm upgrade .* -f values.yaml (.*)$", block(), re.MULTILINE)
    done = template("-f", "ci/scram-values.yaml", *upgrade.split())
    rendered = Rendered.of(done)
    for name, secret in (("client", "silt-admin-client"), ("probe", "silt-probe-client")):
        workload = rendered.one("Deployment", f"{RELEASE}-{name}")
        pod = workload["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        variables = rendered.environment(container, f"{RELEASE}-{name}-0")
        assert variables["SILTSTONE_CLIENT_CONFIG"] == f"{MOUNTED}/client.properties"
        host, _, port = variables["SILTSTONE_BOOTSTRAP"].rpartition(":")
        service, namespace, _ = host.split(".")
        assert (service, namespace) == (f"{RELEASE}-bootstrap", NAMESPACE)
        assert [each["port"] for each in rendered.one("Service", service)["spec"]["ports"]] == [int(port)]
        (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] == MOUNTED]
        (volume,) = [each for each in pod["volumes"] if each["name"] == mount["name"]]
        # a file that every user may read is warned of; the pod's group may
        assert volume["secret"] == {"secretName": secret, "defaultMode": 0o440}
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert reach(rendered, labels, rendered.the("agent")[0]["spec"]["template"]["metadata"]["labels"])
    agent = rendered.the("agent")
    assert agent[0]["metadata"]["name"] == f"{RELEASE}-agent" and "SILTSTONE_METADATA_URL" in rendered.environment(
        agent[2], f"{RELEASE}-agent-0"
    )


def reach(rendered: Rendered, one: dict[str, str], other: dict[str, str]) -> bool:
    """Whether both pods' network policies let one come to port 9092 of the other."""

    def rules(labels: dict[str, str], way: str, peers: str, of: dict[str, str]) -> bool:
        return any(
            chosen(peer.get("podSelector"), of) and "namespaceSelector" not in peer
            for policy in rendered.all("NetworkPolicy")
            if chosen(policy["spec"]["podSelector"], labels)
            for rule in policy["spec"].get(way) or ()
            for peer in rule.get(peers, ())
            if 9092 in [each["port"] for each in rule["ports"]]
        )

    return rules(one, "egress", "to", other) and rules(other, "ingress", "from", one)


def chosen(selector: dict[str, object] | None, labels: dict[str, str]) -> bool:
    if selector is None:
        return False
    exactly, among = selector.get("matchLabels", {}), selector.get("matchExpressions", [])
    assert isinstance(exactly, dict) and isinstance(among, list)
    assert all(each["operator"] == "In" for each in among)
    return exactly.items() <= labels.items() and all(labels.get(each["key"]) in each["values"] for each in among)


def test_the_pod_for_commands_waits_and_ends_when_it_is_told_to() -> None:
    _, _, container = template_of_client()
    assert container["command"][0] == "/opt/siltstone/bin/python" and "resources" in container
    words = [sys.executable, *container["command"][1:], *container["args"]]
    with subprocess.Popen(words) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.terminate()
        assert process.wait(10) == 0


def template_of_client() -> tuple[Object, Object, Object]:
    rendered = Rendered.of(template("-f", "ci/watched-values.yaml"))
    (found,) = [each for each in rendered.workloads() if each[0]["metadata"]["name"] == f"{RELEASE}-client"]
    return found
