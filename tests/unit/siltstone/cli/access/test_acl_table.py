"""ACLs as a table and as JSON: the same words in both, which are Kafka's."""

from __future__ import annotations

import pytest

from security.acls.values import Permission
from siltstone.cli.access import acls
from tests.fixtures.acls import an_acl


def test_the_table_says_permission_allow_and_deny_as_the_json_does(capsys: pytest.CaptureFixture[str]) -> None:
    given = [an_acl(), an_acl(principal="User:eve", permission=Permission.DENY)]
    acls._print(given)
    header, *rows = [line.split() for line in capsys.readouterr().out.splitlines() if "User:" in line or "host" in line]
    at = header.index("permission")
    assert [row[at] for row in rows] == ["allow", "deny"] == [acls._json(each)["permission"] for each in given]
