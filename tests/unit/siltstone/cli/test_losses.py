"""Whether a change of retention removes records, and which part of a topic's configs says so."""

from __future__ import annotations

from siltstone.cli.topics.losses import Policy, expired_offsets, is_shorter, policy_of

NO_LIMIT = -1


def test_a_limit_is_shorter_when_it_removes_what_the_old_one_kept() -> None:
    for new, old, shorter in (
        (1, 2, True),
        (2, 2, False),
        (3, 2, False),
        (0, 1, True),
        (0, 0, False),
        # any limit removes more than none
        (5, NO_LIMIT, True),
        (0, NO_LIMIT, True),
        (NO_LIMIT, 5, False),
        (NO_LIMIT, 0, False),
        (NO_LIMIT, NO_LIMIT, False),
    ):
        assert is_shorter(new, old) is shorter, (new, old)


def test_a_topic_that_does_not_delete_has_no_limits() -> None:
    limits = {"retention.ms": "1000", "retention.bytes": "2000"}
    assert policy_of(limits) == Policy(compacts=False, retention_ms=1_000, retention_bytes=2_000)
    assert policy_of({**limits, "cleanup.policy": "compact"}) == Policy(True, NO_LIMIT, NO_LIMIT)
    assert policy_of({**limits, "cleanup.policy": "compact,delete"}) == Policy(True, 1_000, 2_000)
    assert policy_of({}) == Policy(False, NO_LIMIT, NO_LIMIT)
    assert policy_of({"retention.ms": "soon"}) is None


def test_offsets_without_a_record_are_not_lost() -> None:
    nothing = -1
    assert expired_offsets(first=nothing, kept=nothing, end=7) == 0
    assert expired_offsets(first=5, kept=nothing, end=7) == 2
    assert expired_offsets(first=2, kept=6, end=7) == 4
    assert expired_offsets(first=3, kept=3, end=7) == 0
