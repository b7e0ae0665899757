"""The frames between neighbours: what was sent is what is read, and nothing else is taken."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agents.read.cache import BLOCK_BYTES
from agents.zone.frames import (
    AGE_MS_MAX,
    ANSWER_HEAD_BYTES,
    LENGTH_MAX,
    REQUEST_HEAD_BYTES,
    AnswerHead,
    BadFrameError,
    Outcome,
    Pool,
    Request,
    answer_crc,
    decode_answer_head,
    decode_request,
    decode_request_head,
    encode_answer,
    encode_request,
)
from storage.keys import KEY_BYTES_MAX
from tests.fixtures.chance import examples

ASKED = Request(
    cluster_id="c", key="l0/a/b", pool=Pool.HOT, file_bytes=3_000_000, start=BLOCK_BYTES, length=BLOCK_BYTES
)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    blocks = draw(st.integers(1, 9))
    start = draw(st.integers(0, 1 << 20)) * BLOCK_BYTES
    length = blocks * BLOCK_BYTES - draw(st.integers(0, BLOCK_BYTES - 1))
    whole = length % BLOCK_BYTES == 0
    return Request(
        cluster_id=draw(st.text(max_size=60)),
        key=draw(st.text(min_size=1, max_size=200)),
        pool=draw(st.sampled_from(Pool)),
        file_bytes=start + length + (draw(st.integers(0, 1 << 30)) if whole else 0),
        start=start,
        length=length,
    )


def encodable(text: str) -> bool:
    with contextlib.suppress(UnicodeEncodeError):
        return bool(text.encode()) or True
    return False


@settings(max_examples=examples(400))
@given(requests())
def test_a_request_reads_as_it_was_written(request: Request) -> None:
    assume(encodable(request.key) and encodable(request.cluster_id))
    data = encode_request(request)
    head = decode_request_head(data[:REQUEST_HEAD_BYTES])
    assert len(data) == REQUEST_HEAD_BYTES + head.rest_bytes
    assert decode_request(head, memoryview(data)[REQUEST_HEAD_BYTES:]) == request


@settings(max_examples=examples(600))
@given(st.binary(min_size=REQUEST_HEAD_BYTES, max_size=REQUEST_HEAD_BYTES), st.booleans(), st.binary(max_size=300))
def test_any_bytes_are_a_request_within_the_limits_or_refused(data: bytes, ours: bool, rest: bytes) -> None:
    data = encode_request(ASKED)[:6] + data[6:] if ours else data
    with contextlib.suppress(BadFrameError):
        head = decode_request_head(data)
        assert 0 < head.key_bytes <= KEY_BYTES_MAX and 0 < head.length <= LENGTH_MAX
        assert head.start % BLOCK_BYTES == 0 and head.start + head.length <= head.file_bytes
        decode_request(head, rest)


@pytest.mark.parametrize(
    "changes",
    [
        {"start": 1},
        {"length": 0},
        {"length": BLOCK_BYTES - 1},
        {"length": LENGTH_MAX + BLOCK_BYTES, "file_bytes": 1 << 40},
        {"start": 4 * BLOCK_BYTES},
        {"key": ""},
        {"key": "k" * (KEY_BYTES_MAX + 1)},
        {"cluster_id": "c" * 256},
        {"file_bytes": 1 << 60},
    ],
)
def test_what_is_not_whole_blocks_of_a_file_is_not_asked_for(changes: dict[str, object]) -> None:
    with pytest.raises(BadFrameError):
        encode_request(replace(ASKED, **changes))


@pytest.mark.parametrize("at", range(4))
def test_another_protocol_or_version_is_refused(at: int) -> None:
    request = bytearray(encode_request(ASKED)[:REQUEST_HEAD_BYTES])
    answer = bytearray(encode_answer(AnswerHead(outcome=Outcome.BUSY)))
    request[at] += 1
    answer[at] += 1
    with pytest.raises(BadFrameError):
        decode_request_head(request)
    with pytest.raises(BadFrameError):
        decode_answer_head(answer, ASKED)


@settings(max_examples=examples(400))
@given(st.binary(min_size=ANSWER_HEAD_BYTES, max_size=ANSWER_HEAD_BYTES), st.booleans())
def test_an_answer_is_as_long_as_was_asked_or_empty(data: bytes, ours: bool) -> None:
    data = encode_answer(AnswerHead(outcome=Outcome.SERVED))[:4] + data[4:] if ours else data
    with contextlib.suppress(BadFrameError):
        head = decode_answer_head(data, ASKED)
        assert head.length == (ASKED.length if head.outcome is Outcome.SERVED else 0)


def test_every_answer_reads_as_it_was_written() -> None:
    for head in (
        AnswerHead(outcome=Outcome.SERVED, age_ms=AGE_MS_MAX, length=ASKED.length, crc=0xFFFFFFFF),
        *(AnswerHead(outcome=each) for each in (Outcome.BUSY, Outcome.FAILED, Outcome.STRANGER)),
    ):
        assert decode_answer_head(encode_answer(head), ASKED) == head


@pytest.mark.parametrize(
    "other",
    [
        replace(ASKED, start=0),
        replace(ASKED, key="l0/a/c"),
        replace(ASKED, length=2 * BLOCK_BYTES),
        replace(ASKED, file_bytes=3_000_001),
    ],
)
def test_right_bytes_of_another_place_have_another_crc(other: Request) -> None:
    data = b"x" * 100
    crc = answer_crc(ASKED, 5, [data])
    assert crc == answer_crc(ASKED, 5, [data[:33], memoryview(data)[33:]])
    assert crc != answer_crc(other, 5, [data])
    assert crc != answer_crc(ASKED, 6, [data])
    assert crc != answer_crc(ASKED, 5, [data[:-1] + b"y"])
