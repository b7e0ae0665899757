"""Patterns of transactional ids that clients send (KIP-1152), matched in time that grows with the text alone.

Kafka takes RE2's syntax, because a pattern with backtracking, as Python's, may take for ever, and the agent's loop with
it. Here a pattern becomes a small program whose states are all followed at once (Thompson). It knows of RE2's syntax:
characters, `.`, classes, `\\d \\w \\s` and their opposites, groups, `|`, `* + ? {n,m}`, `^` and `$`. Anything else is
refused. A pattern must match a whole id, as in Kafka.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from runtime.errors import BadInputError

PATTERN_CHARS_MAX = 1_000
STEPS_MAX = 2_000
"""Of one program: a counted repetition is written out."""
DEPTH_MAX = 50
"""Groups within groups."""
REPEATS_MAX = 1_000
"""As in RE2."""
STATES_PER_TURN = 10_000
"""States that are followed in one turn of the event loop: some milliseconds."""


class PatternError(BadInputError):
    """Answer INVALID_REGULAR_EXPRESSION."""


class Chars(NamedTuple):
    """A set of characters."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool = False

    def __contains__(self, char: object) -> bool:
        return any(low <= str(char) <= high for low, high in self.ranges) != self.negated


class Jump(NamedTuple):
    """Go on at all of these places."""

    to: tuple[int, ...]


class At(NamedTuple):
    """Go on only at the beginning (or the end) of the text."""

    end: bool


class Sequenced(NamedTuple):
    parts: tuple[Node, ...]


class Either(NamedTuple):
    parts: tuple[Node, ...]


class Repeated(NamedTuple):
    part: Node
    least: int
    most: int | None


Step: TypeAlias = Chars | Jump | At
Node: TypeAlias = Chars | At | Sequenced | Either | Repeated

_DIGITS: Final = (("0", "9"),)
_WORDS: Final = (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))
_SPACES: Final = (("\t", "\n"), ("\f", "\r"), (" ", " "))
_CLASSES: Final = {"d": _DIGITS, "w": _WORDS, "s": _SPACES}
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_SPECIAL: Final = "\\.+*?()|[]{}^$"
_ANY: Final = Chars((("\n", "\n"),), negated=True)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text, self._at, self._depth = text, 0, 0

    def whole(self) -> Node:
        node = self._either()
        if self._at < len(self._text):
            raise PatternError("a ) without its (")
        return node

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self, wanted: str = "") -> str:
        char = self._peek()
        if not char or (wanted and char != wanted):
            raise PatternError(f"the pattern ends early, or lacks a {wanted or 'character'} at {self._at}")
        self._at += 1
        return char

    def _either(self) -> Node:
        parts = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._atom()))
        return Sequenced(tuple(parts))

    def _repeated(self, node: Node) -> Node:
        repeats = False
        while (bounds := self._bounds()) is not None:
            if repeats:
                raise PatternError(f"nothing to repeat at {self._at}")
            node, repeats = Repeated(node, *bounds), True
            if self._peek() == "?":  # the shortest match: of whole texts there is only one
                self._at += 1
        return node

    def _bounds(self) -> tuple[int, int | None] | None:
        char = self._peek()
        if char in ("*", "+", "?") and char:
            self._at += 1
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        if char != "{":
            return None
        self._at += 1
        least = most = self._number()
        if self._peek() == ",":
            self._at += 1
            most = None if self._peek() == "}" else self._number()
        self._next("}")
        if least > REPEATS_MAX or (most is not None and not least <= most <= REPEATS_MAX):
            raise PatternError(f"a part cannot be repeated so often: {least} to {most}")
        return least, most

    def _number(self) -> int:
        digits = ""
        while self._peek() in _DIGIT_CHARS:
            digits += self._next()
        if not 0 < len(digits) <= len(str(REPEATS_MAX)):
            raise PatternError(f"no number of repetitions at {self._at}")
        return int(digits)

    def _atom(self) -> Node:
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return self._class()
        if char == ".":
            return _ANY
        if char in "^$":
            return At(end=char == "$")
        if char == "\\":
            return self._escaped()
        if char in "*+?{":
            raise PatternError(f"nothing to repeat at {self._at}")
        return Chars(((char, char),))

    def _group(self) -> Node:
        if self._text.startswith("?:", self._at):
            self._at += 2
        elif self._peek() == "?":
            raise PatternError("a group with flags or a name")
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise PatternError(f"more than {DEPTH_MAX} groups within each other")
        node = self._either()
        self._next(")")
        self._depth -= 1
        return node

    def _escaped(self) -> Chars:
        char = self._next()
        if char.lower() in _CLASSES:
            return Chars(_CLASSES[char.lower()], negated=char.isupper())
        if char in _CONTROLS:
            return Chars(((_CONTROLS[char], _CONTROLS[char]),))
        if char.isalnum() and char.isascii():
            raise PatternError(f"\\{char} is not known")
        return Chars(((char, char),))

    def _class(self) -> Chars:
        negated = self._peek() == "^"
        if negated:
            self._at += 1
        ranges: list[tuple[str, str]] = []
        first = True
        while first or self._peek() != "]":
            first = False
            low = self._class_member()
            if isinstance(low, tuple):
                ranges += low
                continue
            high: str | tuple[tuple[str, str], ...] = low
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("", "]"):
                self._at += 1
                high = self._class_member()
            if isinstance(high, tuple) or high < low:
                raise PatternError("a range of characters that is none")
            ranges.append((low, high))
        self._next("]")
        return Chars(tuple(ranges), negated)

    def _class_member(self) -> str | tuple[tuple[str, str], ...]:
        char = self._next()
        if char == "[" and self._peek() == ":":
            raise PatternError("a class by its name")
        if char != "\\":
            return char
        found = self._escaped()
        if found.negated:
            raise PatternError("the opposite of a class within a class")
        return found.ranges[0][0] if len(found.ranges) == 1 and found.ranges != _DIGITS else found.ranges


_DIGIT_CHARS: Final = tuple("0123456789")


@dataclass(slots=True)
class Pattern:
    """A compiled pattern."""

    steps: list[Step] = field(default_factory=list[Step])
    """The text matches if the end of this list is reached at its end."""

    async def matches(self, text: str) -> bool:
        """Whether it matches the whole text. Gives the event loop its turns."""
        states = self._reached([0], at_begin=True, at_end=not text)
        left = STATES_PER_TURN
        for at, char in enumerate(text, start=1):
            following = [state + 1 for state in states if _takes(self.steps, state, char)]
            states = self._reached(following, at_begin=False, at_end=at == len(text))
            if not states:
                return False
            left -= len(states) + 1
            if left < 0:
                left = STATES_PER_TURN
                await asyncio.sleep(0)
        return len(self.steps) in states

    def _reached(self, states: Iterable[int], *, at_begin: bool, at_end: bool) -> Sequence[int]:
        """All states that can be reached from these without a character."""
        found: dict[int, None] = {}
        waiting = list(states)
        while waiting:
            state = waiting.pop()
            if state in found:
                continue
            found[state] = None
            step = self.steps[state] if state < len(self.steps) else None
            if isinstance(step, Jump):
                waiting += step.to
            elif isinstance(step, At) and (at_end if step.end else at_begin):
                waiting.append(state + 1)
        return list(found)


def _takes(steps: Sequence[Step], state: int, char: str) -> bool:
    step = steps[state] if state < len(steps) else None
    return isinstance(step, Chars) and char in step


def compiled(pattern: str) -> Pattern:
    """Raises PatternError."""
    if len(pattern) > PATTERN_CHARS_MAX:
        raise PatternError(f"the pattern has more than {PATTERN_CHARS_MAX} characters")
    program = Pattern()
    _write(program.steps, _Parser(pattern).whole())
    return program


def _write(steps: list[Step], node: Node) -> None:
    if len(steps) > STEPS_MAX:
        raise PatternError(f"the pattern is longer than {STEPS_MAX} steps with its repetitions written out")
    match node:
        case Sequenced(parts):
            for part in parts:
                _write(steps, part)
        case Either(parts):
            _write_either(steps, parts)
        case Repeated(part, least, most):
            for _ in range(least):
                before = len(steps)
                _write(steps, part)
                if len(steps) == before:
                    return  # of nothing, any number is nothing
            if most is None:
                _write_any_number(steps, part)
            else:
                _write_optional(steps, part, most - least)
        case _:
            steps.append(node)


def _write_either(steps: list[Step], parts: Sequence[Node]) -> None:
    fork = len(steps)
    steps.append(Jump(()))
    begins: list[int] = []
    ends: list[int] = []
    for part in parts:
        begins.append(len(steps))
        _write(steps, part)
        ends.append(len(steps))
        steps.append(Jump(()))
    steps[fork] = Jump(tuple(begins))
    for end in ends:
        steps[end] = Jump((len(steps),))


def _write_any_number(steps: list[Step], part: Node) -> None:
    fork = len(steps)
    steps.append(Jump(()))
    _write(steps, part)
    steps.append(Jump((fork,)))
    steps[fork] = Jump((fork + 1, len(steps)))


def _write_optional(steps: list[Step], part: Node, times: int) -> None:
    forks: list[int] = []
    for _ in range(times):
        if forks and len(steps) == forks[-1] + 1:
            break  # the part is nothing
        forks.append(len(steps))
        steps.append(Jump(()))
        _write(steps, part)
    for fork in forks:
        steps[fork] = Jump((fork + 1, len(steps)))
