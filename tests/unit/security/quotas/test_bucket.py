"""The bucket holds a client to its rate, whatever it asks for and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from security.quotas.bucket import BURST_S, SHARES_MAX, Bucket, Buckets
from security.quotas.precedence import Limit, Share


def test_a_silent_client_may_take_ten_seconds_at_once() -> None:
    bucket = Bucket(100, 0)
    assert bucket.take(100 * BURST_S, 100, 0) == 0
    assert bucket.take(50, 100, 0) == 500
    assert bucket.take(0, 100, 500) == 0


def test_what_is_owed_is_bounded() -> None:
    bucket = Bucket(100, 0)
    assert bucket.take(1e12, 100, 0) == BURST_S * 1000
    assert bucket.take(0, 100, BURST_S * 1000) == 0


def test_no_limit_is_too_small_to_be_shared_nor_too_large() -> None:
    for per_second in (5e-324, 1e-300, 1e300, 1.7e308):
        for part in (1.0, 0.5, 1 / 2_000):
            for owed_s_max in (BURST_S, float("inf")):
                bucket = Bucket(per_second, 0, part)
                waits_ms = [
                    bucket.take(1, per_second, 0, owed_s_max),
                    bucket.take(1, per_second, 1_000, owed_s_max),
                    bucket.wait_ms(1_500),
                ]
                # a small one makes wait, a large one never does, and both go on
                assert all(wait_ms > 0 for wait_ms in waits_ms) == (per_second < 1), (per_second, part, waits_ms)
                assert all(0 <= wait_ms < float("inf") for wait_ms in waits_ms)
                bucket.beat(0.5, 2_000)
                assert bucket.demand == (1.0 if per_second < 1 else 0.0)
                bucket.divide(0.25, 3_000)
                bucket.take(0, 10.0, 4_000)
                assert bucket.take(0, 10.0, 60_000) == 0


def test_a_new_limit_counts_from_now_on() -> None:
    bucket = Bucket(100, 0)
    bucket.take(1_000, 100, 0)
    assert bucket.take(100, 1_000, 0) == 100
    # A clock that goes back brings nothing and takes nothing.
    assert bucket.take(0, 1_000, -5_000) == 100


@given(
    st.floats(0.5, 1e9),
    st.lists(st.tuples(st.floats(0, 5_000), st.floats(0.001, 2.0)), min_size=1, max_size=50),
)
def test_a_client_that_waits_as_told_keeps_to_its_rate(per_second: float, steps: list[tuple[float, float]]) -> None:
    bucket, now_ms, taken = Bucket(per_second, 0), 0.0, 0.0
    for pause_ms, seconds_worth in steps:
        now_ms += pause_ms
        amount = per_second * seconds_worth
        taken += amount
        now_ms += bucket.take(amount, per_second, now_ms)
        assert taken <= per_second * (now_ms / 1000 + BURST_S) * 1.000001


def test_the_least_recently_used_share_is_forgotten() -> None:
    buckets = Buckets()
    first = Limit(Share(client_id="first"), 1.0)
    assert buckets.take(first, BURST_S + 1, 0) == 1000
    for number in range(SHARES_MAX - 1):
        buckets.take(Limit(Share(client_id=str(number)), 1.0), 1, 0)
    assert buckets.take(first, 0, 0) == 1000
    for number in range(SHARES_MAX):
        buckets.take(Limit(Share(client_id=str(number)), 1.0), 1, 0)
    assert buckets.take(first, 0, 0) == 0


def test_a_share_that_comes_back_while_demands_are_summed_up_is_summed_up_with_the_next_beat() -> None:
    # given a share at rest, and a walk that has not come to it yet
    buckets = Buckets(counts_demand=True)
    first, ann = Limit(Share(user="first"), 10.0), Limit(Share(user="ann"), 10.0)
    buckets.take(first, 1, 0)
    buckets.take(ann, 0, 0)
    walk = buckets.beat(1.0, 0)
    assert next(walk)[0] == first.share
    # when so many others come that it is forgotten, and then it comes back
    for number in range(SHARES_MAX):
        buckets.take(Limit(Share(client_id=str(number)), 10.0), 1, 0)
    buckets.take(ann, 5, 0)
    assert list(walk) == []
    # then it counts
    assert buckets.of(ann.share).demand == 0
    assert ann.share in dict(buckets.beat(1.0, 0))
    assert len(buckets._active) <= SHARES_MAX
