"""Whether an erasure removed a record, told by its marks."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import replace

from metadata.erasures.contract import Erasure, ErasureStage, KeyMark
from siltstone.ops.hint_options import NO_HINT_OPTIONS
from siltstone.ops.record_erasure import (
    Covering,
    later_text,
    maybe_text,
    removed_by,
    removed_text,
    removes_later,
)

DONE = Erasure(
    erasure_id=7,
    topic_id=uuid.UUID(int=1),
    topic_name="visits",
    stage=ErasureStage.DONE,
    stamp=3,
    erases_tombstones=False,
    partitions={0: 10},
    keys=1,
    tombstones=0,
    created_ms=0,
    next_ms=0,
    begin_ms=0,
    deadline_ms=60_000,
    done_ms=30_000,
    secret=b"",
)
OPEN = replace(DONE, erasure_id=8, stage=ErasureStage.ERASING, done_ms=None)
WAITING = replace(OPEN, erasure_id=9, stage=ErasureStage.WAITING, stamp=None)


def covering(erasure: Erasure, key: bytes = b"ada") -> Covering:
    key_hash = hashlib.new("sha512_256", key).digest()
    return Covering(erasure, {key_hash: KeyMark(key_hash, 5)})


def test_in_a_plain_topic_the_offset_tells_that_an_erasure_removed_the_record() -> None:
    found = [covering(DONE), covering(OPEN), covering(WAITING)]
    # the waiting one removed nothing
    assert removed_by(found, None, is_known=False, is_deduped=False) == [DONE, OPEN]


def test_in_a_compacted_topic_only_the_key_of_the_record_tells() -> None:
    found = [covering(DONE), covering(OPEN, b"bea")]
    assert removed_by(found, None, is_known=False, is_deduped=True) == []
    assert removed_by(found, b"ada", is_known=True, is_deduped=True) == [DONE]
    assert removed_by(found, b"eve", is_known=True, is_deduped=False) == []
    assert maybe_text(found) == "Or an erasure removed it: 7, 8 erased keys here below a later offset"
    assert maybe_text([covering(WAITING)]) == ""


def test_a_record_that_is_there_is_told_to_go_while_the_erasure_of_its_key_is_open() -> None:
    found = [covering(DONE), covering(WAITING)]
    assert removes_later(found, b"ada") == WAITING
    assert removes_later(found, b"eve") is None and removes_later(found, None) is None
    assert removes_later([covering(DONE)], b"ada") is None


def test_sentences_name_the_erasure_and_the_command_that_says_more() -> None:
    assert removed_text([DONE], NO_HINT_OPTIONS) == (
        "by erasure 7, requested at 1970-01-01T00:00:00.000Z and done at 1970-01-01T00:00:30.000Z"
    )
    assert "which is not done yet (`siltstone erase status 8` says" in removed_text([OPEN], NO_HINT_OPTIONS)
    assert removed_text([DONE, OPEN], NO_HINT_OPTIONS) == "by one of the erasures 7, 8"
    assert later_text(OPEN, NO_HINT_OPTIONS) == (
        "erasure 8 is going to remove it by 1970-01-01T00:01:00.000Z"
        " (`siltstone erase status 8` says what it waits for)"
    )
