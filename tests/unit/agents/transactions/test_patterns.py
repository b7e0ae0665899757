"""Patterns of transactional ids, beside Python's own, which takes the same syntax."""

from __future__ import annotations

import asyncio
import random
import re
import time

import pytest

from agents.transactions.patterns import PATTERN_CHARS_MAX, PatternError, compiled


async def matches(pattern: str, text: str) -> bool:
    return await compiled(pattern).matches(text)


CASES = [
    ("", ["", "a"]),
    ("abc", ["abc", "ab", "abcd", "xabc"]),
    ("a.c", ["abc", "a\nc", "ac"]),
    (r"a\.c", ["a.c", "abc"]),
    ("orders-.*", ["orders-1", "orders-", "order-1"]),
    ("(a|b)*c?", ["", "abab", "abc", "cc"]),
    ("a{2,3}", ["a", "aa", "aaa", "aaaa"]),
    ("a{2}b{1,}", ["aab", "aabbb", "ab"]),
    ("[a-c_-]+", ["a-b_c", "d"]),
    ("[^0-9]+", ["ab", "a1"]),
    (r"[\d.]+", ["1.2", "a"]),
    (r"\w+-\d\d\s?", ["tx_9-12", "tx-1", "tx-12 "]),
    (r"\D\W\S", ["a-b", "1-b", "a-\t"]),
    ("^(?:x|^y)$", ["x", "y", "xy"]),
    ("(|a)+", ["", "aaa", "b"]),
    ("(a*)*b", ["aaab", "b", "a"]),
    ("é[à-ü]", ["éü", "éa"]),
    ("a|", ["a", "", "b"]),
    ("[]a]+", ["]a", "b"]),
    ("a+?b", ["aab", "b"]),
]


@pytest.mark.parametrize(("pattern", "texts"), CASES)
async def test_a_pattern_matches_whole_ids_as_any_other_engine_says(pattern: str, texts: list[str]) -> None:
    for text in texts:
        assert await matches(pattern, text) == bool(re.fullmatch(pattern, text)), text


@pytest.mark.parametrize(
    "pattern",
    [
        *("[", "(", ")", "a)", "*", "a**", "a{", "a{3,2}", "a{1001}", "a{,3}", "{2}", "\\", "\\q", "[b-a]"),
        *("(?i)a", "(?P<x>a)", "(?=a)", "[[:alpha:]]", "\\p{L}", "((a{1000}){1000}){1000}", "(" * 60 + ")" * 60),
        "a" * (PATTERN_CHARS_MAX + 1),
    ],
)
def test_what_is_no_pattern_or_too_long_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        compiled(pattern)


async def test_random_patterns_match_what_another_engine_matches() -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)

    def drawn(depth: int) -> str:
        kind = chance.choice("lllldcrag" if depth else "lldc")
        match kind:
            case "d":
                return "."
            case "c":
                return chance.choice(["[ab]", "[^a]", "[b-c]"])
            case "r":
                return f"(?:{drawn(depth - 1)}){chance.choice(['*', '+', '?', '{2}', '{0,2}', '{1,}'])}"
            case "a":
                return f"(?:{drawn(depth - 1)}|{drawn(depth - 1)})"
            case "g":
                return f"({drawn(depth - 1)}{drawn(depth - 1)})"
            case _:
                return chance.choice("abc")

    for _ in range(400):
        pattern = "".join(drawn(3) for _ in range(chance.randint(0, 3)))
        program = compiled(pattern)
        for _ in range(10):
            text = "".join(chance.choice("abc") for _ in range(chance.randint(0, 6)))
            assert await program.matches(text) == bool(re.fullmatch(pattern, text)), (seed, pattern, text)


async def test_no_pattern_takes_for_ever_or_holds_up_the_loop() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    began = time.monotonic()
    assert not await matches("(a+)+b", "a" * 2_000)
    assert not await matches("(a|a|a|a|a|a)*" * 20 + "b", "a" * 2_000)
    counting.cancel()
    assert turns > 10
    assert time.monotonic() - began < 30
    compiled("(){1000}" * 10)
    compiled("((){1000}){1000}")
