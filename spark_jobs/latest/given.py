"""Options of `read_latest`: from Python values to the text that the source's parser reads. Pure, without PySpark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from numbers import Integral
from typing import cast

from spark_jobs.source.options import NAMES, SourceOptionError, SourceOptions, parse_options

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KNOWN = frozenset(name.lower() for name in NAMES)
_OFFSETS = ("startingoffsets", "endingoffsets")
_TIMES = ("startingtimestamp", "endingtimestamp")
_LISTS = ("partitions", "columns")


def read_options(given: Mapping[str, object], environ: Mapping[str, str]) -> SourceOptions:
    """Read the options. Raises SourceOptionError, and BadScanError for a combination that means nothing."""
    topic = next((value for name, value in given.items() if name.lower() in ("topic", "subscribe") and value), None)
    texts = {name: _text(name, value, topic) for name, value in given.items() if value is not None}
    return parse_options(texts, environ, streaming=False, by_key=True)


def _text(name: str, value: object, topic: object) -> str:
    known = name.lower()
    if isinstance(value, str) or known not in _KNOWN:
        return str(value)  # the parser refuses a name that is not known
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, datetime) and known in _TIMES:
        if value.tzinfo is None:
            # Spark gives rows times of the process's zone without one; most others mean UTC.
            raise SourceOptionError(
                f"{name} is a time without a zone: {value}",
                remedy="write value.astimezone() for one of this machine's zone, as rows of Spark have, or"
                " value.replace(tzinfo=UTC)",
            )
        # Rounded up: the first record at or after this time.
        return str(-((_EPOCH - value) // timedelta(milliseconds=1)))
    if isinstance(value, Mapping) and known in _OFFSETS:
        return _offsets(cast("Mapping[object, object]", value), topic)
    if isinstance(value, Iterable) and known in _LISTS and not isinstance(value, bytes | Mapping):
        return ",".join(str(each) for each in cast("Iterable[object]", value))
    raise SourceOptionError(f"{name} cannot be {value!r}", remedy="write its text, as in option(...) of spark.read")


def _offsets(value: Mapping[object, object], topic: object) -> str:
    """`{0: 23}` as `{"flights": {"0": 23}}`. What means nothing is left for the parser to refuse."""
    if any(isinstance(each, Mapping) for each in value.values()):
        return json.dumps(value)  # names its topic
    return json.dumps({str(topic): {str(key): _plain(each) for key, each in value.items()}})


def _plain(value: object) -> int | str:
    """A whole number, also one of numpy, which JSON does not take; else the text of the value, which is refused."""
    if value is True or value is False or not isinstance(value, Integral):
        return str(value)
    return int(value)
