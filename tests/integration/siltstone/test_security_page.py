"""Every command of docs/security.md, run unchanged in a shell, in order, against the `siltstone dev` that it starts.

Only the ports are the test's.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.settings.loading import load_settings
from tests.fixtures.dev import running_dev

PAGE = Path(__file__).resolve().parents[3] / "docs" / "security.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PEOPLE, PROGRAMS, ANY = "127.0.0.1:9092", "127.0.0.1:9093", "127.0.0.1:0"
DATA = "siltstone-data"
COMMAND_S_MAX = 200


def blocks() -> list[tuple[str, str]]:
    """(language, text)"""
    return FENCE.findall(PAGE.read_text(encoding="utf-8"))


def shell(text: str, folder: Path) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SILTSTONE_")}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=COMMAND_S_MAX,
        check=False,
    )
    assert ran.returncode == 0, f"{text}\n{ran.stdout}{ran.stderr}"
    return ran.stdout


@pytest.mark.timeout(600)
def test_a_reader_gets_from_nothing_to_users_certificates_and_acls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks()
    started = [language for language, _ in found].index("bash")
    for language, text in found[:started]:
        if language == "sh":
            shell(text.replace(PROGRAMS, ANY), tmp_path)
    words = shlex.split(found[started][1])
    assert words[:2] == ["siltstone", "dev"]
    compared = ran = 0
    with running_dev(tmp_path / DATA, *words[2:], "--compactors", "0", "--set", "produce.linger.ms=5") as dev:
        log = (tmp_path / f"{DATA}.log").read_text()
        (programs,) = re.findall(r"\bprograms=([\d.:]+)", log)
        output = ""
        for language, text in found[started + 1 :]:
            if language == "sh":
                output = shell(text.replace(PEOPLE, dev.bootstrap).replace(PROGRAMS, programs), tmp_path)
                ran += 1
            elif language == "text":
                assert output == text
                compared += 1
    assert (ran, compared) == (5, 2)
    assert "TOPIC_AUTHORIZATION_FAILED" in (tmp_path / "denied.txt").read_text()


def test_the_settings_of_real_agents_are_settings(tmp_path: Path) -> None:
    (text,) = [text for language, text in blocks() if language == "toml"]
    config = tmp_path / "agent.toml"
    config.write_text(text)
    settings = load_settings(config, {}, {})
    (listener,) = settings.listeners
    assert (listener.name, listener.authenticates, settings.super_users) == ("public", True, "User:admin")
