"""The topics in a member's subscription, whatever the client wrote."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.groups.subscription import subscribed_topics
from tests.fixtures.group_machine import subscription


@given(st.frozensets(st.text(max_size=20), max_size=20), st.integers(0, 2**15 - 1), st.binary(max_size=30))
def test_the_topics_are_read_whatever_version_and_fields_follow(
    topics: frozenset[str], version: int, tail: bytes
) -> None:
    written = struct.pack(">h", version) + subscription(*topics)[2:-4] + tail
    assert subscribed_topics([written]) == topics


@given(st.binary(max_size=60))
def test_any_bytes_give_topics_or_nothing(junk: bytes) -> None:
    found = subscribed_topics([junk])
    assert found is None or all(isinstance(topic, str) for topic in found)


@pytest.mark.parametrize(
    ("what", "written"),
    [
        ("nothing", b""),
        ("a version alone", b"\0\0"),
        ("a version below zero", b"\xff\xff" + subscription("a")[2:]),
        ("a null list", struct.pack(">hi", 0, -1)),
        ("more topics than bytes", struct.pack(">hi", 0, 2**31 - 1)),
        ("a topic that is cut short", subscription("abc")[:-5]),
        ("a null topic", struct.pack(">hih", 0, 1, -1)),
        ("a topic missing", struct.pack(">hihh", 0, 3, 0, 0) + b"\0"),
        ("a topic that is no text", struct.pack(">hih", 0, 1, 2) + b"\xff\xfe"),
    ],
)
def test_what_is_no_subscription_names_no_topics(what: str, written: bytes) -> None:
    assert subscribed_topics([written]) is None, what


def test_more_names_than_are_read_in_one_turn_are_unknown_and_equal_ones_count_once() -> None:
    first, other = subscription("a", "b"), subscription("c", "d", "e")
    assert subscribed_topics([first, other], topics_max=5) == set("abcde")
    assert subscribed_topics([first, other], topics_max=4) is None
    # members of one program list the same topics, and own different partitions
    assert subscribed_topics([first + b"%d" % n for n in range(100)], topics_max=2) == set("ab")
