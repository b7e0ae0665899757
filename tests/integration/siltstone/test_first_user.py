"""The first users of a cluster on ECS, by the commands of infra/terraform/README.md: the secrets, the files that tasks
make of them, and the commands that the admin task runs with them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.fixtures.dev import running_dev

TERRAFORM = Path(__file__).parents[3] / "infra" / "terraform"
TOOLS = ("jq", "openssl")
AWS = """\
#!/bin/sh
cat > "$4.secret"
"""
SILTSTONE = f'ecs_siltstone() {{ {sys.executable} -m siltstone "$@"; }}\n'


def blocks(heading: str) -> list[str]:
    """The blocks of `sh` in a section of the README."""
    section = (TERRAFORM / "README.md").read_text().split(f"\n### {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def write_files(secret: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """As the container does that ends before the command starts."""
    folder.mkdir()
    found = re.search(r"<<-EOT\n(.*?)\n +EOT", (TERRAFORM / "modules/client_files/main.tf").read_text(), re.DOTALL)
    assert found is not None
    code = textwrap.dedent(found[1]).replace("/tmp/", f"{folder}/")
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env={**os.environ, "files": secret}, capture_output=True, text=True, timeout=30, check=False
    )


def typed(script: str, folder: Path, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-ec", script],
        env={**environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_administrator_and_the_probe_are_made_by_the_commands_of_the_readme(tmp_path: Path) -> None:
    for tool in TOOLS:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not on the PATH")
    make_secrets, make_users = blocks("The first user")
    aws = tmp_path / "aws"
    aws.write_text(AWS)
    aws.chmod(0o755)
    with running_dev(tmp_path / "data", "--secure") as dev:
        shutil.copy(dev.data / "certificates" / "ca.pem", tmp_path / "agents-ca.pem")
        # when the secrets are made, and a task of each
        done = typed(make_secrets, tmp_path, os.environ)
        assert done.returncode == 0, done.stderr
        for client in ("admin", "probe"):
            folder = tmp_path / f"client-{client}"
            written = write_files((tmp_path / f"silt-{client}.secret").read_text(), folder)
            assert written.returncode == 0, written.stderr
            properties = folder / "client.properties"
            properties.chmod(0o600)
            properties.write_text(properties.read_text().replace("/client/", f"{folder}/"))
        environ = {
            **os.environ,
            "SILTSTONE_BOOTSTRAP": dev.bootstrap,
            "SILTSTONE_METADATA_URL": dev.run["metadata_url"],
            "SILTSTONE_CLIENT_CONFIG": str(tmp_path / "client-admin" / "client.properties"),
        }
        # `siltstone dev --secure` has an administrator of this name, and a cluster on ECS has none
        done = typed(SILTSTONE + "ecs_siltstone users delete admin --direct --yes", tmp_path, environ)
        assert done.returncode == 0, done.stderr
        refused = typed(SILTSTONE + "ecs_siltstone topics list", tmp_path, environ)
        assert refused.returncode == 1
        # then the commands of the README work, in their order
        script = SILTSTONE + make_users.replace("/client/", f"{tmp_path}/client-admin/").replace("eval ", ": ")
        done = typed(script, tmp_path, environ)
        assert done.returncode == 0, done.stderr
        # and the probe may do what it must, and no more
        probe = {**environ, "SILTSTONE_CLIENT_CONFIG": str(tmp_path / "client-probe" / "client.properties")}
        done = typed(SILTSTONE + "ecs_siltstone probe --once", tmp_path, probe)
        assert done.returncode == 0, done.stderr
        refused = typed(SILTSTONE + "ecs_siltstone topics create others", tmp_path, probe)
        assert refused.returncode == 1


def test_each_file_of_a_secret_can_be_read_by_its_task_alone(tmp_path: Path) -> None:
    done = write_files(json.dumps({"client.properties": "a=b", "ca.pem": "c\n"}), tmp_path / "client")
    assert done.returncode == 0, done.stderr
    made = {path.name: (path.read_text(), path.stat().st_mode & 0o777) for path in (tmp_path / "client").iterdir()}
    assert made == {"client.properties": ("a=b", 0o400), "ca.pem": ("c\n", 0o400)}


@pytest.mark.parametrize(
    ("secret", "why"),
    [
        ({"ca.pem": "hunter2"}, "the secret has no client.properties"),
        ({"client.properties": "hunter2", "../x": "hunter2"}, "must be the name of a file"),
        ({"client.properties": {"hunter2": 1}}, "must be the name of a file"),
    ],
)
def test_a_secret_that_is_no_files_is_refused_and_not_shown(secret: object, why: str, tmp_path: Path) -> None:
    done = write_files(json.dumps(secret), tmp_path / "client")
    assert done.returncode == 1 and why in done.stderr and "hunter2" not in done.stderr
