"""`siltstone doctor --config` reads the certificates that an agent with these settings would show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from siltstone.cli import main
from tests.fixtures.certificates import EXPIRED, Authority, IdentityFiles, Validity

AUTHORITY = Authority()


def told(tmp_path: Path, files: IdentityFiles) -> list[tuple[str, str]]:
    """(verdict, detail) of the checks of the listener's certificate, of which each that is not ok has a remedy."""
    (tmp_path / "objects").mkdir(exist_ok=True)
    config = tmp_path / "agent.toml"
    config.write_text(
        f'super.users = "User:admin"\nobject.store.url = "{(tmp_path / "objects").as_uri()}"\n'
        '[listener.public]\naddress = "127.0.0.1:9092"\nadvertised = "agent-7.example.com:9092"\n'
        f'protocol = "SASL_SSL"\ntls.cert.file = "{files.cert}"\ntls.key.file = "{files.key}"\n'
    )
    ran = CliRunner().invoke(main, ["doctor", "--config", str(config), "--json"])
    found = [check for check in json.loads(ran.stdout) if check["name"] == "certificate public"]
    assert all(check["remedy"] or check["verdict"] == "ok" for check in found)
    assert ran.exit_code == any(check["verdict"] == "fail" for check in found), ran.output
    return [(check["verdict"], check["detail"]) for check in found]


def test_a_good_certificate_is_ok_and_each_fault_is_told(tmp_path: Path) -> None:
    names = ("agent-7.example.com",)
    good = AUTHORITY.server(names).write(tmp_path / "good")
    [(verdict, detail)] = told(tmp_path, good)
    assert verdict == "ok" and detail.startswith("good for ")
    for files, wanted, says in (
        (AUTHORITY.server(names, validity=EXPIRED).write(tmp_path / "expired"), "fail", "expired at"),
        (AUTHORITY.server(names, validity=Validity(-1, 2)).write(tmp_path / "soon"), "warn", "expires in"),
        (AUTHORITY.server(("other",)).write(tmp_path / "other"), "warn", "does not name agent-7.example.com"),
        (IdentityFiles(good.cert, tmp_path / "other.key"), "fail", "does not belong to the certificate"),
        (IdentityFiles(tmp_path / "none.cert", good.key), "fail", "no such file"),
    ):
        [(verdict, detail)] = told(tmp_path, files)
        assert verdict == wanted and says in detail


def test_a_key_that_everybody_may_read_is_told(tmp_path: Path) -> None:
    files = AUTHORITY.server(("agent-7.example.com",)).write(tmp_path / "good")
    files.key.chmod(0o644)
    [(verdict, detail)] = told(tmp_path, files)
    assert verdict == "warn" and "everybody on this machine may read the key" in detail


@pytest.mark.parametrize("kind", ["metrics", "zone"])
def test_the_other_certificates_of_an_agent_are_read_too(tmp_path: Path, kind: str) -> None:
    ca = AUTHORITY.write(tmp_path / "ca.pem")
    files = AUTHORITY.agent(("agents",), validity=EXPIRED).write(tmp_path / "expired")
    config = tmp_path / "agent.toml"
    parts = {"cert": files.cert, "key": files.key, "ca": ca}
    lines = [f'{kind}.tls.{part}.file = "{path}"' for part, path in parts.items()]
    listens = {
        "metrics": 'metrics.listen = "127.0.0.1:9644"',
        "zone": 'zone.listen = "127.0.0.1:9093"\nagent.zone = "a"',
    }
    config.write_text("\n".join([listens[kind], *lines]))
    (tmp_path / "objects").mkdir()
    words = ["doctor", "--config", str(config), "--object-store", (tmp_path / "objects").as_uri(), "--json"]
    ran = CliRunner().invoke(main, words)
    [check] = [check for check in json.loads(ran.stdout) if check["name"] == f"certificate {kind}.listen"]
    assert ran.exit_code == 1 and check["verdict"] == "fail" and "expired at" in check["detail"]
