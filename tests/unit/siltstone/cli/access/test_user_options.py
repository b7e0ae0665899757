"""The options of `siltstone users`, as far as they need no server."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from siltstone.cli import main

NOBODY = ("--bootstrap", "127.0.0.1:1")


def run(*words: str, stdin: bytes | None = None) -> Result:
    return CliRunner(env={"SILTSTONE_DATA": None, "SILTSTONE_METADATA_URL": None}).invoke(
        main, ["users", *words], input=stdin
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"", "stdin held no password; nothing was done\nremedy: give --password-file FILE, or pipe it in"),
        (b"\n", "stdin held no password"),
        (b"x" * 4_097, "a password has 1 to 4,096 bytes"),
        (b"hunter2\nhunter3\n", "stdin has more than one line"),
        (b"hunter2\xff", "stdin is not UTF-8"),
        (b"hunter2\0", "the password holds a NUL"),
    ],
)
def test_a_password_that_cannot_be_one_is_refused_and_not_shown(given: bytes, said: str) -> None:
    for command in ("create", "set-password"):
        ran = run(command, "ann", *NOBODY, stdin=given)
        assert ran.exit_code == 1
        assert said in ran.stderr
        assert "hunter" not in ran.output and "remedy:" in ran.stderr


def test_a_good_password_goes_on_to_the_agent(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.touch(mode=0o600)
    for ending in (b"", b"\n", b"\r\n"):
        path.write_bytes(b"hunter2" + ending)
        for ran in (
            run("create", "ann", "--password-file", str(path), *NOBODY),
            run("create", "ann", "--password-file", "-", *NOBODY, stdin=path.read_bytes()),
        ):
            assert ran.exit_code == 1
            assert "127.0.0.1:1" in ran.stderr and "warning" not in ran.stderr and "hunter" not in ran.output
    path.write_bytes(b"\n")
    assert f"{path} held no password" in run("create", "ann", "--password-file", str(path), *NOBODY).stderr
    path.chmod(0o640)
    assert f"chmod 600 {path}" in run("create", "ann", "--password-file", str(path), *NOBODY).stderr


def test_a_password_on_the_command_line_is_no_option() -> None:
    assert run("create", "ann", "--password", "hunter2").exit_code == 2
    assert run("create", "ann", "hunter2").exit_code == 2


def test_a_name_that_cannot_be_one_is_refused() -> None:
    for name in ("", "x" * 1_025):
        assert "a user's name has 1 to 1,024 bytes" in run("create", name, *NOBODY, stdin=b"hunter2").stderr


def test_a_principal_is_no_name() -> None:
    ran = run("create", "User:bob", *NOBODY, stdin=b"hunter2")
    assert ran.exit_code == 2 and "the name is 'bob'; User: belongs to ACLs" in ran.stderr


def test_a_config_without_metadata_leads_to_no_other_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "siltstone-data" / "postgres").mkdir(parents=True)
    config = tmp_path / "agent.toml"
    config.touch()
    for words in (("list", "--direct"), ("export", "users.jsonl")):
        ran = run(*words, "--config", str(config))
        assert ran.exit_code == 1 and f"{config} sets no metadata.url" in ran.stderr
    assert "users of the Postgres in siltstone-data" in run("list", "--direct").stderr


def test_options_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.touch()
    assert run("list", "--config", str(config)).exit_code == 2
    both = "--data", str(tmp_path), "--config", str(config)
    assert run("list", "--direct", *both).exit_code == 2
    assert run("export", "users.jsonl", *both).exit_code == 2
    assert run("create", "ann", "--iterations", "4095", stdin=b"hunter2").exit_code == 2


def test_without_a_place_the_ways_to_name_one_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (("list", "--direct"), ("export", "users.jsonl")):
        ran = run(*words)
        assert ran.exit_code == 1 and "no option or setting says where the metadata is" in ran.stderr
    assert not (tmp_path / "users.jsonl").exists()
