"""Ways into a REST catalog, with secrets from where pyiceberg reads them: the environment or a file, not a command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs

import pytest
from click.testing import CliRunner

from siltstone.cli import main
from siltstone.embedded.run_file import RunFile, started_ticks, write_run_file
from tests.fixtures.s3 import ROOT

TOKEN, CREDENTIAL = "t0ken", "exporter:s3cret"
SIGNED = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/"
OPEN = (
    "import sys\n"
    "from spark_jobs.tables.iceberg.catalog import CatalogPlace, open_catalog\n"
    "print(open_catalog(CatalogPlace(url=sys.argv[1], warehouse='lake')).properties['told'])\n"
)


class Guarded(BaseHTTPRequestHandler):
    """It tells its configuration to holders of the token, or of a signature for S3 Tables in eu-central-1."""

    def do_GET(self) -> None:
        given = self.headers.get("Authorization", "")
        is_signed = given.startswith(SIGNED) and "/eu-central-1/s3tables/aws4_request" in given
        if given == f"Bearer {TOKEN}" or is_signed:
            told = {"told": f"{'signed' if is_signed else 'token'} {self.path.partition('?')[2]}"}
            self._answer(200, {"defaults": told, "overrides": {}})
        else:
            self._answer(401, {"error": {"message": "who are you", "type": "NotAuthorizedException", "code": 401}})

    def do_POST(self) -> None:
        asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        if f"{asked['client_id'][0]}:{asked['client_secret'][0]}" == CREDENTIAL and asked["scope"] == ["lake:write"]:
            self._answer(200, {"access_token": TOKEN, "token_type": "bearer"})
        else:
            self._answer(401, {"error": "invalid_client"})

    def _answer(self, code: int, told: object) -> None:
        body = json.dumps(told).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture(scope="module")
def guarded_url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Guarded) as server:
        serving = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


def opened(url: str, place: Path, environ: Mapping[str, str]) -> str:
    """The answer of the catalog to a process with this environment, or its error."""
    environ = {**os.environ, "PYICEBERG_HOME": str(place), "PYTHONPATH": str(ROOT), **environ}
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", OPEN, url], env=environ, capture_output=True, text=True, timeout=60
    )
    return ran.stdout.strip() or ran.stderr.strip().splitlines()[-1]


def test_a_token_a_credential_and_a_signature_come_from_the_environment(guarded_url: str, tmp_path: Path) -> None:
    oauth = {"OAUTH2_SERVER_URI": f"{guarded_url}/oauth", "CREDENTIAL": CREDENTIAL, "SCOPE": "lake:write"}
    signing = {"REST__SIGV4_ENABLED": "true", "REST__SIGNING_NAME": "s3tables", "REST__SIGNING_REGION": "eu-central-1"}
    chain = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "s3cret"}
    cases: list[tuple[Mapping[str, str], Mapping[str, str], str]] = [
        ({"TOKEN": TOKEN, "OAUTH2_SERVER_URI": f"{guarded_url}/oauth"}, {}, "token warehouse=lake"),
        (oauth, {}, "token warehouse=lake"),
        ({**oauth, "CREDENTIAL": "exporter:wrong"}, {}, "invalid_client"),
        (signing, chain, "signed warehouse=lake"),
    ]
    for named, plain, says in cases:
        told = {f"PYICEBERG_CATALOG__SILTSTONE__{name}": value for name, value in named.items()}
        found = opened(guarded_url, tmp_path, {**told, **plain})
        assert says in found and "s3cret" not in found


def test_a_token_comes_from_a_file_and_none_is_printed(guarded_url: str, tmp_path: Path) -> None:
    secrets = f"catalog:\n  siltstone:\n    token: {TOKEN}\n    oauth2-server-uri: {guarded_url}/oauth\n"
    (tmp_path / ".pyiceberg.yaml").write_text(secrets)
    assert opened(guarded_url, tmp_path, {}) == "token warehouse=lake"
    printed = CliRunner().invoke(main, ["tables", "catalog", "--catalog", guarded_url, "--warehouse", "lake"])
    assert guarded_url in printed.stdout and TOKEN not in printed.output


def test_tables_lie_in_the_data_directory_only_if_the_catalog_has_no_place_of_its_own(tmp_path: Path) -> None:
    # given a `siltstone dev`
    ticks = started_ticks(os.getpid())
    assert ticks is not None
    run = RunFile(
        pid=os.getpid(),
        started_ticks=ticks,
        bootstrap="127.0.0.1:1",
        metadata_url="postgresql://silt@127.0.0.1:1/silt",
        object_store_url=(tmp_path / "objects").as_uri(),
        metrics_url="",
        metrics_urls=(),
    )
    write_run_file(tmp_path, run)
    asked = ["tables", "catalog", "--json", "--data", str(tmp_path), "--catalog"]
    # when its catalog is of each kind
    places: dict[str, str | None] = {}
    for catalog in ("https://catalog.example/api", "glue://eu-central-1", "sqlite:///catalog.db"):
        printed = CliRunner().invoke(main, [*asked, catalog])
        places[catalog.partition(":")[0]] = json.loads(printed.stdout).get("warehouse")
    # then only one of SQL, which knows no place for files, gets that of the directory
    assert places == {"https": None, "glue": None, "sqlite": (tmp_path / "tables").as_uri()}
