"""The benchmark of rights, on a few ACLs."""

from __future__ import annotations

from bench.cases.security.acls import measure, some_acls
from security.acls.matcher import Matcher


def test_it_measures_judgements_by_acls_that_differ() -> None:
    assert Matcher(some_acls(300)).count == 300
    table = measure([30, 300], calls=50, request_us=60.0)
    assert [row[0] for row in table.rows] == [30, 300]
    assert all(isinstance(cell, int | float) and cell > 0 for row in table.rows for cell in row[3:])
