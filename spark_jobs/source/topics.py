"""The topics that the options of a query choose: by name, by a pattern, or with their partitions. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from runtime.errors import BadInputError

CHOICES = ("topic", "subscribe", "subscribePattern", "assign")
_ONE = "write option('topic', 'flights'), or subscribe, subscribePattern or assign"


class SourceOptionError(BadInputError):
    """An option of `format("siltstone")` is not known, cannot be read, or does not go with another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChoice:
    names: tuple[str, ...] = ()
    """In order; () with a pattern."""
    pattern: str | None = None
    """A regular expression that matches whole names."""
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """The partitions that are read, by topic; all of a topic that is not in it."""

    @property
    def label(self) -> str:
        """A text for messages: `flights`, `a,b` or the pattern."""
        return ",".join(self.names) if self.pattern is None else self.pattern

    @property
    def is_one(self) -> bool:
        return len(self.names) == 1

    def takes(self, topic: str) -> bool:
        return topic in self.names if self.pattern is None else re.fullmatch(self.pattern, topic) is not None

    def among(self, existing: Iterable[str]) -> Sequence[str]:
        """The names of the chosen topics. Those that the options name may not exist."""
        return self.names if self.pattern is None else sorted(filter(self.takes, existing))


def read_choice(options: Mapping[str, str]) -> TopicChoice:
    """The choice that the options make. Raises SourceOptionError."""
    given = [name for name in CHOICES if name in options]
    if given == ["topic", "subscribe"] and _names(options["topic"]) == _names(options["subscribe"]):
        given = ["topic"]
    if len(given) > 1:
        raise SourceOptionError(f"{' and '.join(given)} name topics, but only one of them may", remedy=_ONE)
    text = options[given[0]].strip() if given else ""
    if not text:
        raise SourceOptionError("no topic is named", remedy=_ONE)
    if given[0] == "assign":
        return _assigned(text)
    if given[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise SourceOptionError(
                f"subscribePattern {text!r} is no regular expression: {error}",
                remedy="write one of Python's re, for example flights-.*",
            ) from None
        return TopicChoice(pattern=text)
    names = _names(text)
    if not all(names) or not names:
        raise SourceOptionError(f"{given[0]} {text!r} has an empty name in it", remedy="for example flights or a,b")
    return TopicChoice(names=names)


def _names(text: str) -> tuple[str, ...]:
    return tuple(sorted({name.strip() for name in text.split(",")}))


def _assigned(text: str) -> TopicChoice:
    remedy = 'for example {"flights": [0, 2], "delays": [0]}'
    try:
        document: object = json.loads(text)
    except ValueError:
        document = None
    by_topic = cast(Mapping[str, object], document if isinstance(document, dict) else {})
    if not by_topic or not all(map(_are_partitions, by_topic.values())):
        raise SourceOptionError(f"assign cannot be read: {text!r}", remedy=remedy)
    chosen = {topic: tuple(sorted(set(cast(Sequence[int], numbers)))) for topic, numbers in by_topic.items()}
    return TopicChoice(names=tuple(sorted(chosen)), partitions=chosen)


def _are_partitions(numbers: object) -> bool:
    if not isinstance(numbers, list) or not numbers:
        return False
    return all(type(each) is int and 0 <= each < 10**7 for each in cast("list[object]", numbers))
