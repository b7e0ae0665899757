"""When is a file full: by size, by linger, or early because writers wait."""

from __future__ import annotations

import gc
from dataclasses import replace
from uuid import UUID

import pytest

from agents.sender import Sender
from agents.write.buffer import SealOptions, SealReason, WriteBuffer
from agents.write.submission import PendingBatch, Submission
from wire.batch import read_header
from wire.records import NewRecord, build_batch

OPTIONS = SealOptions(
    linger_ms=250,
    file_bytes=8000,
    file_batches=100,
    early_bytes=1000,
    early_idle_ms=3,
    early_per_second=2,
    early_free_bytes=5000,
    early_tokens_max=1,
)
TOPIC = UUID(int=7)


class Promise:
    def done(self) -> bool:
        return False

    def set_result(self, result: object, /) -> None:
        raise AssertionError("nothing here is ever answered")


def submission(size: int, sender: Sender | None = None) -> Submission:
    batch = memoryview(build_batch([NewRecord(0, None, bytes(max(size - 70, 0)))]))
    pending = PendingBatch(1, TOPIC, 0, batch, read_header(batch), False)
    return Submission([pending], Promise(), sender=sender)


@pytest.fixture
def buffer() -> WriteBuffer:
    return WriteBuffer(OPTIONS)


def test_an_empty_buffer_is_never_due(buffer: WriteBuffer) -> None:
    assert buffer.due(1e9) is None
    assert buffer.next_due_ms(1e9) is None


def test_a_few_bytes_wait_for_the_linger_counted_from_the_oldest(buffer: WriteBuffer) -> None:
    buffer.add(submission(100), 0.0)
    buffer.add(submission(100), 200.0)
    assert buffer.due(249.9) is None
    assert buffer.next_due_ms(200.0) == 250
    assert buffer.due(250.0) is SealReason.LINGER


def test_a_full_buffer_is_due_at_once(buffer: WriteBuffer) -> None:
    buffer.add(submission(8100), 0.0)
    assert buffer.due(0.0) is SealReason.SIZE


def test_an_idle_buffer_with_enough_bytes_is_sealed_early(buffer: WriteBuffer) -> None:
    buffer.add(submission(1200), 10.0)
    assert buffer.due(12.9) is None
    assert buffer.due(13.0) is SealReason.EARLY
    buffer.add(submission(100), 12.95)
    assert buffer.due(13.0) is None, "somebody still writes"
    assert buffer.next_due_ms(13.0) == pytest.approx(15.95)


def take(buffer: WriteBuffer, now_ms: float) -> None:
    """A file that is answered at once."""
    buffer.take(SealReason.EARLY, now_ms)
    buffer.answered([], now_ms)


def test_an_early_seal_waits_until_the_budget_can_pay_for_it(buffer: WriteBuffer) -> None:
    buffer.add(submission(1200), 0.0)
    assert buffer.due(3.0) is SealReason.EARLY
    take(buffer, 3.0)
    buffer.add(submission(2500), 10.0)
    assert buffer.due(13.0) is None, "it costs half a token, and two come back in a second"
    assert buffer.next_due_ms(13.0) == pytest.approx(133, abs=1)
    assert buffer.due(134.0) is SealReason.EARLY
    take(buffer, 134.0)
    buffer.add(submission(5000), 140.0)
    assert buffer.due(143.0) is SealReason.EARLY, "large enough to cost nothing"


def test_a_small_file_is_not_sealed_early_while_two_wait_for_their_commits() -> None:
    buffer = WriteBuffer(replace(OPTIONS, early_per_second=1000, early_tokens_max=1000))
    for now_ms in (0.0, 5.0):
        buffer.add(submission(1200), now_ms)
        assert buffer.due(now_ms + 3) is SealReason.EARLY
        buffer.take(SealReason.EARLY, now_ms + 3)
    buffer.add(submission(1200), 10.0)
    assert (buffer.due(20.0), buffer.next_due_ms(20.0)) == (None, 260.0)
    buffer.add(submission(4000), 21.0)
    assert buffer.due(24.0) is SealReason.EARLY, "large enough to be worth a file of its own"
    buffer.take(SealReason.EARLY, 24.0)
    buffer.add(submission(1200), 30.0)
    buffer.answered([], 31.0)
    assert buffer.due(33.0) is None, "two are left"
    buffer.answered([], 34.0)
    assert buffer.due(34.0) is SealReason.EARLY


def test_no_early_seal_where_the_rate_is_zero() -> None:
    buffer = WriteBuffer(
        replace(OPTIONS, linger_ms=50, early_bytes=1, early_idle_ms=0, early_per_second=0, early_free_bytes=1)
    )
    buffer.add(submission(500), 0.0)
    assert buffer.due(49.0) is None
    assert buffer.due(50.0) is SealReason.LINGER


def test_take_gives_the_oldest_up_to_a_file_and_at_least_one(buffer: WriteBuffer) -> None:
    sent = [submission(9000), submission(4000), submission(3000), submission(2000)]
    for each in sent:
        buffer.add(each, 0.0)
    assert buffer.take(SealReason.SIZE, 0.0) == sent[:1]
    assert buffer.take(SealReason.SIZE, 0.0) == sent[1:3]
    assert buffer.bytes == sent[3].bytes
    assert buffer.take(SealReason.SIZE, 0.0) == sent[3:]
    assert buffer.bytes == 0
    assert len(buffer) == 0


def test_many_small_batches_fill_a_file_by_their_number() -> None:
    buffer = WriteBuffer(replace(OPTIONS, file_bytes=1 << 20, file_batches=3, early_bytes=1 << 20))
    sent = [submission(80) for _ in range(7)]
    for each in sent:
        buffer.add(each, 0.0)
    assert buffer.due(0.0) is SealReason.SIZE
    assert [len(buffer.take(SealReason.SIZE, 0.0)) for _ in range(3)] == [3, 3, 1]
    assert (buffer.batches, buffer.bytes) == (0, 0)


def blocked(buffer: WriteBuffer, now_ms: float) -> tuple[Sender, float]:
    """A connection that always sends two requests, waits, and comes back at once; and the time of its next round."""
    sender = Sender()
    for _ in range(3):
        buffer.add(submission(100, sender), now_ms)
        buffer.add(submission(100, sender), now_ms)
        buffer.take(SealReason.LINGER, now_ms + 250)
        buffer.answered([sender, sender], now_ms + 251)
        now_ms += 252
    assert sender.is_blocked
    return sender, now_ms


def test_a_client_with_bytes_left_behind_by_a_full_file_still_waits(buffer: WriteBuffer) -> None:
    # given: its two requests are too much for one file
    sender, now_ms = blocked(buffer, 0.0)
    buffer.add(submission(5100, sender), now_ms)
    buffer.add(submission(5100, sender), now_ms)
    assert buffer.due(now_ms) is SealReason.SIZE
    # when the first leaves
    assert len(buffer.take(SealReason.SIZE, now_ms)) == 1
    # then the second does not wait for the linger: no more can come
    assert buffer.due(now_ms) is SealReason.EARLY


def senders_in_memory() -> list[Sender]:
    gc.collect()
    # By `type`: `isinstance` would ask weak proxies of other tests for their object, which may be gone.
    return [each for each in gc.get_objects() if type(each) is Sender]


def test_connections_that_are_answered_and_never_come_back_are_forgotten() -> None:
    buffer = WriteBuffer(replace(OPTIONS, early_tokens_max=1000))
    # Held here: another test's senders may go at any time, and their ids would be given out again.
    others, now_ms = senders_in_memory(), 0.0
    for _ in range(20):
        _, now_ms = blocked(buffer, now_ms)
    # when others write, who are not known to wait
    for _ in range(2):
        buffer.add(submission(100, Sender()), now_ms)
        buffer.take(SealReason.LINGER, now_ms + 250)
        buffer.answered([], now_ms + 251)
        now_ms += 252
    assert {id(each) for each in senders_in_memory()} <= {id(each) for each in others}
