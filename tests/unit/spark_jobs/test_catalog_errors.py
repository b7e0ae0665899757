"""The errors when an Iceberg catalog, or the place of a table, is away or refuses."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pytest

from spark_jobs.tables.errors import BadTableError, CommitUnknownError, PlaceUnavailableError
from spark_jobs.tables.iceberg.catalog import CatalogPlace, CatalogUnavailableError, open_catalog, properties_of, shown
from spark_jobs.tables.iceberg.table import IcebergTable
from spark_jobs.tables.progress import Progress

NOBODY = "127.0.0.1:1"
COLUMNS = pa.schema([pa.field("id", pa.int64())])
PROGRESS = Progress(topic="t", topic_id="x", mode="log", values="raw", offsets={0: 1}, starts={0: 0})


@pytest.mark.parametrize("url", [f"postgresql://user:secret@{NOBODY}/silt", f"http://{NOBODY}/api?token=secret"])
def test_a_catalog_where_nobody_listens_does_not_answer(url: str, tmp_path: Path) -> None:
    with pytest.raises(CatalogUnavailableError, match=r"Iceberg catalog at .* does not answer: .*refused") as refused:
        open_catalog(CatalogPlace(url=url, warehouse=tmp_path.as_uri()))
    assert NOBODY in refused.value.message and "secret" not in refused.value.message
    assert "let us in" not in refused.value.message and "--catalog" in refused.value.remedy


class Refusing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"error": {"message": "no such warehouse", "type": "Forbidden", "code": 403}}'
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def refusing_url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        serving = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


def test_a_catalog_that_refuses_is_not_called_away(refusing_url: str) -> None:
    with pytest.raises(CatalogUnavailableError, match=r"refuses or fails: .*no such warehouse") as refused:
        open_catalog(CatalogPlace(url=refusing_url, warehouse="lake"))
    assert "--catalog-property" in refused.value.remedy


def test_a_postgres_that_refuses_the_user_is_said_to(postgres_url: str, tmp_path: Path) -> None:
    nobody = postgres_url.replace("siltstone:", "nobody:", 1)
    assert nobody != postgres_url
    with pytest.raises(CatalogUnavailableError, match=r"answered, but refused the connection: .*nobody") as refused:
        open_catalog(CatalogPlace(url=nobody, warehouse=tmp_path.as_uri()))
    assert "user, password" in refused.value.remedy


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    """A table that was just created."""
    place = CatalogPlace(url=f"sqlite:///{tmp_path}/catalog.db", warehouse=(tmp_path / "lake").as_uri())
    made = IcebergTable(open_catalog(place), "a.b")
    assert made.load() is None
    made.ensure(COLUMNS, COLUMNS, "t")
    return made


def forget_tables(folder: Path) -> None:
    with sqlite3.connect(folder / "catalog.db") as catalog:
        catalog.execute("DROP TABLE iceberg_tables")
    catalog.close()


def test_a_catalog_that_goes_away_under_an_export_is_told_as_one(table: IcebergTable, tmp_path: Path) -> None:
    forget_tables(tmp_path)
    with pytest.raises(CatalogUnavailableError, match=r"catalog.db refuses or fails: .*no such table") as refused:
        table.load()
    assert refused.value.retriable


def test_a_catalog_that_breaks_in_a_commit_leaves_its_outcome_unknown(table: IcebergTable, tmp_path: Path) -> None:
    forget_tables(tmp_path)
    with pytest.raises(CommitUnknownError, match=r"whether the commit to a\.b happened: .*no such table") as unknown:
        table.commit([], COLUMNS, PROGRESS, replaces=False)
    assert unknown.value.retriable and "run the export again" in unknown.value.remedy


def test_a_place_that_cannot_be_written_is_not_called_the_catalogs_fault(table: IcebergTable, tmp_path: Path) -> None:
    (tmp_path / "lake").rename(tmp_path / "elsewhere")
    (tmp_path / "lake").touch()
    with pytest.raises(PlaceUnavailableError, match=r"cannot be written to .*lake"):
        table.place.put("x.parquet", memoryview(b"x"))
    with pytest.raises(PlaceUnavailableError, match="files of the Iceberg table cannot be read or written"):
        table.load()


def test_passwords_are_in_properties_and_not_in_messages() -> None:
    place = CatalogPlace(url="postgresql://u:secret@db:5432/silt?sslmode=require", warehouse="s3://lake/tables")
    assert shown(place) == "the Iceberg catalog at postgresql://db:5432/silt"
    assert properties_of(place)["uri"] == (
        "postgresql+psycopg2://u:secret@db:5432/silt?sslmode=require&options=-csearch_path%3Dsiltstone_tables"
    )


@pytest.mark.parametrize(
    ("url", "more", "says"),
    [
        ("glue://", {}, "the Iceberg catalog in AWS Glue"),
        (
            "glue://eu-central-1",
            {"glue.region": "eu-central-1"},
            "the Iceberg catalog in AWS Glue, region eu-central-1",
        ),
        (
            "glue://us-gov-west-1/123456789012",
            {"glue.region": "us-gov-west-1", "glue.id": "123456789012"},
            "the Iceberg catalog in AWS Glue, region us-gov-west-1",
        ),
        (
            "glue:///123456789012:s3tablescatalog/lake",
            {"glue.id": "123456789012:s3tablescatalog/lake"},
            "the Iceberg catalog in AWS Glue",
        ),
    ],
)
def test_glue_has_its_region_and_the_catalogs_id_in_its_url(url: str, more: dict[str, str], says: str) -> None:
    place = CatalogPlace(url=url)
    assert properties_of(place) == {"type": "glue", **more}
    assert shown(place) == says


@pytest.mark.parametrize("url", ["glue://123456789012", "glue://eu_central_1/1", "glue://key:secret@eu-central-1"])
def test_a_glue_without_a_region_where_it_belongs_is_refused(url: str) -> None:
    with pytest.raises(BadTableError, match="is no AWS region") as refused:
        properties_of(CatalogPlace(url=url))
    assert "glue://REGION/CATALOG_ID" in refused.value.remedy and "secret" not in refused.value.message


def test_a_name_that_the_configuration_does_not_have_is_refused() -> None:
    with pytest.raises(BadTableError, match="'glue' is no URL, and no catalog in pyiceberg's configuration") as refused:
        open_catalog(CatalogPlace(url="glue"))
    assert ".pyiceberg.yaml" in refused.value.remedy
