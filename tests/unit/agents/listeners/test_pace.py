"""How fast connections are accepted."""

from __future__ import annotations

import pytest

from agents.listeners.pace import BURST_S, TokenBucket


def taken(bucket: TokenBucket, now_ms: float) -> int:
    count = 0
    while not bucket.wait_ms(now_ms):
        bucket.take()
        count += 1
    return count


def test_a_burst_comes_at_once_and_then_so_many_a_second() -> None:
    bucket = TokenBucket(200, now_ms=5_000)
    assert taken(bucket, 5_000) == 200 * BURST_S
    assert bucket.wait_ms(5_000) == pytest.approx(5)
    assert sum(taken(bucket, 5_000 + passed_ms) for passed_ms in range(10, 1_010, 10)) == pytest.approx(200, abs=1)
    assert taken(bucket, 10**9) == 200 * BURST_S, "no more than a burst is saved up"


def test_after_the_time_it_names_there_is_a_token() -> None:
    for per_second in (1, 3, 7, 200, 1_000):
        bucket = TokenBucket(per_second, now_ms=0)
        taken(bucket, 0)
        now_ms = 0.0
        for _ in range(20):
            now_ms += bucket.wait_ms(now_ms) + 1e-6
            assert bucket.wait_ms(now_ms) == 0
            bucket.take()


def test_a_clock_that_goes_back_gives_no_tokens_twice() -> None:
    bucket = TokenBucket(1, now_ms=0)
    taken(bucket, 0)
    assert taken(bucket, 1_000) == 1
    assert taken(bucket, 500) == 0
    assert taken(bucket, 1_000) == 0
