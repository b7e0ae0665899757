"""The bill of `bench costs`: requests from the log of a proxy, the lines of the bill, and the page that shows them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import pytest

from bench.cases.together.costs import COLUMNS, GIB, Run, costs_table, parts_of, requests_table
from bench.measures.price import MIB, Asked
from bench.measures.requests import Request, asked, parse_requests
from bench.servers.quick_compactor import tuning

ROOT = Path(__file__).parents[3]
LOG = """\
PUT /bench/data/l0/ab/0001 200 700 0
PUT /bench/data/l1/ab/1?partNumber=1&uploadId=x 200 8388608 0
POST /bench/data/l1/ab/1?uploads= 200 0 300
POST /bench/data/l1/ab/1?uploadId=x 200 120 250
POST /bench/data?delete= 200 500 100
DELETE /bench/data/l0/ab/0001 204 0 0
GET /bench?list-type=2&prefix=data%2Fcatalog%2Fincrements%2F 200 0 900
GET /bench/data/l0/ab/0001 206 0 70
HEAD /bench/data/l0/ab/0001 404 0 0
PUT /bench/data/catalog/snapshots/1/manifest.json 503 10 0
GET /bench/data/cluster.json 200 0 99
PUT /bench/data/l0/half wri"""


def test_a_log_of_requests_is_read_as_a_bill_reads_it() -> None:
    requests = parse_requests(LOG)
    assert [(each.place, each.kind) for each in requests] == [
        ("l0", "PUT"),
        ("l1", "part"),
        ("l1", "begin"),
        ("l1", "complete"),
        ("other", "DELETE"),
        ("l0", "DELETE"),
        ("catalog/increments", "LIST"),
        ("l0", "GET"),
        ("l0", "HEAD"),
        ("catalog/snapshots", "PUT"),
        ("other", "GET"),
    ]
    # Deletions are free; what failed is billed; a line that is half written is not there yet.
    assert asked(requests) == Asked(puts=6, gets=3, written_bytes=700 + 8388608 + 120 + 10, read_bytes=70 + 99)


def some(place: str, kind: str, count: int, bytes_each: int = 0) -> list[Request]:
    sent, received = (0, bytes_each) if kind in ("GET", "HEAD") else (bytes_each, 0)
    return [Request(kind=kind, place=place, status=200, sent_bytes=sent, received_bytes=received)] * count


def counted() -> Run:
    """2 GiB in, in files of 4 MiB; half of the runs of L1 are merged to L2."""
    files = 2 * GIB // (4 * MIB)
    compactor = [
        *some("l0", "GET", files, 4 * MIB),
        *[each for kind in ("begin", "complete") for each in some("l1", kind, 4)],
        *some("l1", "part", 256, 8 * MIB),
        *some("l1", "GET", 64, 16 * MIB),
        *[each for kind in ("begin", "complete") for each in some("l2", kind, 1)],
        *some("l2", "part", 128, 8 * MIB),
        *some("catalog/increments", "LIST", 6),
        *some("catalog/increments", "PUT", 10, 100),
    ]
    return Run(
        bytes_in=2 * GIB,
        seconds=60,
        writing={
            "agent-0": some("l0", "PUT", files + 8, 4 * MIB),
            "agent-1": [*some("l0", "GET", 4 * files, MIB), *some("other", "LIST", 2)],
            "compactor": compactor,
        },
        replaying=some("l2", "GET", 256, 8 * MIB),
        wal_in=20 * MIB,
        wal_replay=0,
        objects={"l0": [4 * MIB] * files, "l1": [GIB // 2] * 4, "l2": [GIB]},
        merged_l1=[GIB // 2] * 2,
        live_bytes=2 * GIB,
        snapshot_requests=20,
    )


def test_each_line_of_the_bill_is_for_one_gib_and_beside_its_floor() -> None:
    rows = {str(row[0]): dict(zip((c.title for c in COLUMNS), row, strict=True)) for row in costs_table(counted()).rows}
    assert list(rows) == [
        "in: L0 files",
        "in: merges to L1",
        "in: merges to L2",
        "in: metadata backup",
        "in: others",
        "in: all",
        "a month: stored",
        "out: the tail, one group",
        "out: a replay",
    ]
    assert rows["in: L0 files"]["PUT class (1/GiB)"] == 260
    assert rows["in: L0 files"]["of floor (x)"] == pytest.approx(520 / 512)
    assert rows["in: L0 files"]["WAL (MiB/GiB)"] == pytest.approx(10)
    assert rows["in: merges to L1"]["of floor (x)"] == pytest.approx(1)
    # Half of the bytes are in L2, and the line is for 1 GiB of those.
    assert rows["in: merges to L2"]["PUT class (1/GiB)"] == 130
    assert rows["in: merges to L2"]["of floor (x)"] == pytest.approx(1)
    assert rows["in: metadata backup"]["PUT class (1/GiB)"] == 8
    assert rows["in: others"]["PUT class (1/GiB)"] == 1
    assert rows["a month: stored"]["price ($/GiB)"] == pytest.approx(0.023)
    assert rows["out: the tail, one group"]["of floor (x)"] == pytest.approx(1)
    assert rows["out: a replay"]["GET class (1/GiB)"] == 128


def test_no_request_is_left_out_and_none_is_counted_twice() -> None:
    run = counted()
    # Merges to L2 are for 1 GiB of L2, the other lines for the 2 GiB that came in.
    weights = {"in: merges to L2": 1}
    requests = sum((part.asked.puts + part.asked.gets) * weights.get(part.what, 2) for part in parts_of(run))
    billed = sum(len(each) for each in run.writing.values()) + len(run.replaying)
    assert requests == pytest.approx(billed)
    assert sum(int(str(row[3])) for row in requests_table(run).rows) == billed


def test_the_page_has_the_columns_and_the_lines_of_the_benchmark() -> None:
    lines = (ROOT / "docs" / "costs.md").read_text().splitlines()
    start = lines.index("### What 1 GiB costs")
    table = [line.strip("| ").split(" | ") for line in lines[start:] if line.startswith("|")][: 2 + 9]
    assert table[0] == [column.title for column in COLUMNS]
    assert [row[0] for row in table[2:]] == [str(row[0]) for row in costs_table(counted()).rows]


def test_a_quick_compactor_differs_from_that_of_production_in_its_sizes_alone() -> None:
    assert tuning(32).plan.l0_bytes_min == 32 * MIB
    assert tuning(32).plan.output_bytes == GIB


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(b"")

    def do_GET(self) -> None:
        self._answer(b"x" * 70)

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def serving() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def test_a_proxy_notes_every_request_that_passes_it(tmp_path: Path) -> None:
    log = tmp_path / "requests"
    with serving() as port:
        command = [sys.executable, "-m", "bench.servers.latency_proxy", str(port), "0", "0", str(log)]
        proxy = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
        assert proxy.stdin is not None and proxy.stdout is not None
        try:
            address = f"http://127.0.0.1:{int(proxy.stdout.readline())}"
            with urlopen(HttpRequest(f"{address}/b/data/l0/1", data=b"12345", method="PUT")) as answer:
                answer.read()
            with urlopen(f"{address}/b/data/l2/9") as answer:
                answer.read()
        finally:
            proxy.communicate(timeout=10)
    put, get = parse_requests(log.read_text())
    assert (put.kind, put.place, put.sent_bytes, get.kind, get.place, get.received_bytes) == (
        ("PUT", "l0", 5, "GET", "l2", 70)
    )
