"""The text of a call behind the gate: nothing in it may end a literal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metadata.contract.l0_commit import CommitL0
from metadata.contract.leases import WriterLease
from metadata.postgres.log.commit_calls import any_call, usual_call
from metadata.rules.usual_commit import usual_commit
from tests.contract.metadata_worlds import sent

REQUEST = CommitL0(
    lease=WriterLease(writer_id=1, epoch=0), seq=3, key="l0/a", size_bytes=5, crc32c=7, batches=[sent(9, 4, 0)]
)


def text(request: CommitL0) -> str:
    usual = usual_commit(request)
    assert usual is not None
    return usual_call(request, usual, lock_timeout_ms=None).behind_gate


def test_a_call_behind_the_gate_is_one_message_that_begins_with_the_gate() -> None:
    said = text(REQUEST)

    assert said.startswith("SET LOCAL lock_timeout = 4000; LOCK TABLE commit_gate IN EXCLUSIVE MODE; ")
    assert (
        "SELECT FROM commit_l0_v4('1'::integer, '0'::integer, '3'::bigint, convert_from('\\x6c302f61', 'UTF8'), "
        in said
    )
    assert "'{9}'::integer[], '{1}'::bigint[], '\\x" in said
    assert "BEGIN" not in said and "COMMIT" not in said


@pytest.mark.parametrize("key", ["l0/' ; DROP TABLE files; --", "l0/\\", "l0/\u00e9"])
def test_no_key_ends_its_literal(key: str) -> None:
    said = text(replace(REQUEST, key=key))

    assert key not in said
    assert f"convert_from('\\x{key.encode().hex()}', 'UTF8')" in said


def test_the_values_of_a_masked_batch_are_not_sent() -> None:
    call = any_call(replace(REQUEST, batches=[sent(9, 4, 2**40)]), {0}, producer_id_expiration_ms=1)

    assert str(2**40) not in call.alone
    ends = "'{}'::bigint[], '{}'::bigint[], '{}'::integer[], '{}'::integer[], '{-1}'::integer[], '{}'::bigint[])"
    assert call.alone.endswith(ends)
