"""Options of `spark.read.format("siltstone")` and of `read_latest`: from text to values. Pure, and without PySpark.

Names and meanings are those of Spark's Kafka source if it has them. Names are case-insensitive, like all of Spark's. An
unknown name is refused with the one that was probably meant, because an option that is silently ignored reads the wrong
records. URLs that are not given come from the driver's environment, and travel from there.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import cast

from runtime.settings.loading import environment_name
from spark_jobs.scan.contract import (
    CHANGE,
    CHANGES_VIEW,
    COLUMNS,
    EARLIEST,
    LATEST,
    LATEST_VIEW,
    LOG,
    NAMED_COLUMNS,
    READ_COMMITTED,
    SLICE_BYTES,
    AtTimestamp,
    Edge,
    ScanOptions,
)
from spark_jobs.source.topics import SourceOptionError, TopicChoice, read_choice
from storage.urls import joined_url

NAMES = (
    "topic",
    "subscribe",
    "subscribePattern",
    "assign",
    "partitions",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "columns",
    "includeHeaders",
    "view",
    "isolation",
    "failOnDataLoss",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "sliceBytes",
    "pinTtl",
    "pushDownPredicate",
    "metadataUrl",
    "objectStoreUrl",
    "produceStoreUrl",
    "keepTombstones",
)
_KNOWN = {name.lower(): name for name in NAMES}

ELSEWHERE = {
    "path": "load() takes nothing here: name the topic by option('topic', ...)",
    "startingoffsetsbytimestamp": "write startingTimestamp",
    "endingoffsetsbytimestamp": "write endingTimestamp",
    "kafka.bootstrap.servers": "the object store is read, not a broker: write objectStoreUrl and metadataUrl",
    "kafka.isolation.level": "write isolation",
    "kafka.group.id": "there is no consumer group: offsets are kept in the query's checkpoint",
    "maxbytespertrigger": "write maxOffsetsPerTrigger",
}
"""Options of Spark's Kafka source and others that people try, and what to write instead."""

PIN_TTL_MS = 30 * 60_000
STREAM_PIN_TTL_MS = 2 * 60_000
"""Shorter than a batch query's: a stream's planner renews it as long as the query lives, and Spark ends that process
without notice."""
PIN_TTL_MS_MIN = 500
_KAFKA_EDGES = {-2: EARLIEST, -1: LATEST}
"""The numbers in Kafka's ListOffsets and in Spark's offsets JSON."""
_BYTES = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}
_MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_INT64_MAX = 2**63 - 1


_COLUMNS_BY_TEXT = {name.lower(): name for name in NAMED_COLUMNS}

OffsetsByTopic = Mapping[str, Mapping[int, "int | Edge"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    scan: ScanOptions
    """The scan of the one topic that is chosen. With several, `scan_of` makes that of each from it."""
    topics: TopicChoice
    starting: OffsetsByTopic | None = None
    """Offsets by topic, if they are given so."""
    ending: OffsetsByTopic | None = None
    metadata_url: str = field(repr=False)
    object_store_url: str
    slice_bytes: int = SLICE_BYTES
    """The size of a Spark task, about."""
    min_partitions: int = 1
    """The least number of Spark tasks, if there are enough records."""
    max_offsets_per_trigger: int | None = None
    takes_predicates: bool = False
    """Spark 4.1 to 4.3 keep one plan for all uses of a DataFrame. With predicates in the plan, any other use of the
    same DataFrame would miss records. So they are taken only where the user says that the DataFrame has one use."""
    keep_tombstones: bool = False
    """For `read_latest`: deleted keys are rows with a null value."""
    pin_ttl_ms: int = PIN_TTL_MS
    """The time for which files of a snapshot are kept after planning, or after a reading task last renewed its pin."""

    def scan_of(self, topic: str) -> ScanOptions:
        """The scan of one of the topics."""
        scan = replace(self.scan, topic=topic, partitions=self.topics.partitions.get(topic))
        if self.starting is not None:
            scan = replace(scan, starting=self.starting.get(topic, {}))
        return scan if self.ending is None else replace(scan, ending=self.ending.get(topic, {}))

    def names_offsets_of(self, topic: str) -> bool:
        return topic in (self.starting or {}) or topic in (self.ending or {})

    def check_offsets(self, topics: Collection[str]) -> None:
        """Refuse offsets of a topic that is not among these, which are all that are read. Raises SourceOptionError.

        Spark's Kafka source refuses them too. It also refuses offsets that leave out a partition, which are taken here.
        """
        for name, offsets in (("startingOffsets", self.starting), ("endingOffsets", self.ending)):
            if strange := sorted((offsets or {}).keys() - set(topics)):
                close = difflib.get_close_matches(strange[0], topics, 1)
                raise SourceOptionError(
                    f"{name} names topic {strange[0]!r}, which does not exist",
                    remedy=f"did you mean {close[0]!r}?" if close else "leave it out, or create it before",
                )


def parse_options(
    given: Mapping[str, str], environ: Mapping[str, str], *, streaming: bool | None, by_key: bool = False
) -> SourceOptions:
    """Read the options. With `streaming` None, the mode is not known yet, so options that mean something in only one
    mode are not checked. `by_key`: they are those of `read_latest`, whose scan is that of the log.

    Raises SourceOptionError, and BadScanError for a combination that means nothing.
    """
    options = _known_options(given)
    topics = _topics(options)
    keep_tombstones = _by_key(options, topics) if by_key else _not_by_key(options)
    if streaming is not None:
        _check_mode(options, streaming=streaming)
    starting = _edge(options, "starting", topics, default=LATEST if streaming else EARLIEST)
    ending = _edge(options, "ending", topics, default=LATEST)
    scan = ScanOptions(
        topic=topics.label,
        starting=starting if isinstance(starting, Edge | AtTimestamp) else EARLIEST,
        ending=ending if isinstance(ending, Edge | AtTimestamp) else LATEST,
        columns=_columns(options),
        isolation=options.get("isolation", READ_COMMITTED).strip().lower(),
        view=_view(options),
        fail_on_data_loss=_boolean(options, "failOnDataLoss", default=True),
    )
    pin_ttl_ms = STREAM_PIN_TTL_MS if streaming else PIN_TTL_MS
    if "pinTtl" in options:
        pin_ttl_ms = _duration_ms(options["pinTtl"])
    if pin_ttl_ms < PIN_TTL_MS_MIN:
        raise SourceOptionError(f"pinTtl must be {PIN_TTL_MS_MIN} ms or more, not {options['pinTtl']!r}")
    limited = "maxOffsetsPerTrigger" in options
    found = SourceOptions(
        scan=scan,
        topics=topics,
        starting=None if isinstance(starting, Edge | AtTimestamp) else starting,
        ending=None if isinstance(ending, Edge | AtTimestamp) else ending,
        metadata_url=_url(options, "metadataUrl", "metadata.url", environ),
        object_store_url=_place(options, environ),
        slice_bytes=_size(options["sliceBytes"]) if "sliceBytes" in options else SLICE_BYTES,
        min_partitions=_count(options, "minPartitions") if "minPartitions" in options else 1,
        max_offsets_per_trigger=_count(options, "maxOffsetsPerTrigger") if limited else None,
        takes_predicates=_boolean(options, "pushDownPredicate", default=False),
        keep_tombstones=keep_tombstones,
        pin_ttl_ms=pin_ttl_ms,
    )
    return replace(found, scan=found.scan_of(topics.names[0])) if topics.is_one else found


def _known_options(given: Mapping[str, str]) -> dict[str, str]:
    """The options by their names as in the documentation."""
    options: dict[str, str] = {}
    for name, value in given.items():
        known = _KNOWN.get(name.lower())
        if known is None:
            # The message would otherwise show a name that the user has not written.
            told = " (Spark hands names on in lower case)" if name.islower() else ""
            raise SourceOptionError(f"there is no option {name!r}{told}", remedy=_meant(name.lower()))
        options[known] = value
    return options


def _meant(name: str) -> str:
    if name in ELSEWHERE:
        return ELSEWHERE[name]
    close = difflib.get_close_matches(name.removeprefix("kafka."), _KNOWN, 1)
    return f"did you mean {_KNOWN[close[0]]!r}?" if close else f"options are {', '.join(NAMES)}"


def _topics(options: Mapping[str, str]) -> TopicChoice:
    topics = read_choice(options)
    if "partitions" not in options:
        return topics
    if not topics.is_one or topics.partitions:
        raise SourceOptionError(
            "partitions goes with one topic that is named by topic or subscribe",
            remedy='name partitions by assign: {"flights": [0, 2], "delays": [0]}',
        )
    return replace(topics, partitions={topics.names[0]: _partitions(options["partitions"])})


def _by_key(options: dict[str, str], topics: TopicChoice) -> bool:
    """Whether `read_latest` keeps tombstones. Takes the view out of the options."""
    if not topics.is_one:
        raise SourceOptionError(f"read_latest reads one topic, not {topics.label!r}", remedy="call it for each")
    view = options.pop("view", LATEST_VIEW)
    if view.strip().lower() != LATEST_VIEW:
        raise SourceOptionError(
            f"read_latest reads the latest view, not {view!r}", remedy="leave out view; spark.read reads the log"
        )
    if "pushDownPredicate" in options:
        raise SourceOptionError(
            "read_latest takes no predicates, so pushDownPredicate means nothing to it",
            remedy="leave it out; partitions names those to read",
        )
    return _boolean(options, "keepTombstones", default=False)


def _not_by_key(options: Mapping[str, str]) -> bool:
    if "keepTombstones" in options:
        raise SourceOptionError(
            "keepTombstones is an option of read_latest", remedy="from pyspark_siltstone import read_latest"
        )
    return False


def _check_mode(options: Mapping[str, str], *, streaming: bool) -> None:
    """Refuse options that mean nothing in a batch query, or in a stream."""
    if not streaming:
        if "maxOffsetsPerTrigger" in options:
            raise SourceOptionError(
                "maxOffsetsPerTrigger is for streams", remedy="a batch query ends at endingOffsets or endingTimestamp"
            )
        return
    if "pushDownPredicate" in options:
        raise SourceOptionError("pushDownPredicate is for batch queries", remedy="leave it out: Spark filters a stream")
    for name in ("endingOffsets", "endingTimestamp"):
        if name in options:
            raise SourceOptionError(
                f"a stream has no end, so {name} means nothing in it",
                remedy="trigger(availableNow=True) stops at the present end; a batch query takes an end",
            )
    if _view(options) == LATEST_VIEW:
        raise SourceOptionError(
            "the latest view is for batch queries: a stream has no last record of a key",
            remedy="view=changes has the last one of each batch; spark.read takes view=latest",
        )


def _edge(
    options: Mapping[str, str], side: str, topics: TopicChoice, *, default: Edge
) -> Edge | AtTimestamp | OffsetsByTopic:
    offsets, timestamp = f"{side}Offsets", f"{side}Timestamp"
    if timestamp in options:
        if offsets in options:
            raise SourceOptionError(f"{offsets} and {timestamp} exclude each other", remedy="give one of them")
        return AtTimestamp(_time_ms(timestamp, options[timestamp]))
    text = options.get(offsets, default.value).strip()
    if text.lower() in (EARLIEST.value, LATEST.value):
        return Edge(text.lower())
    found = _offsets(offsets, text, topics)
    for topic, by_partition in found.items():
        outside = sorted(set(by_partition) - set(topics.partitions.get(topic, by_partition)))
        if outside:
            raise SourceOptionError(
                f"{offsets} names partition {outside[0]} of topic {topic!r}, which is not among those that are read",
                remedy="leave it out, or name it in partitions or assign too",
            )
    return found


def _offsets(name: str, text: str, topics: TopicChoice) -> OffsetsByTopic:
    """Read `{"flights": {"0": 23, "1": -1}}`; -2 is the earliest, -1 the latest."""
    example = topics.names[0] if topics.names else "flights"
    remedy = f'write earliest, latest, or {{"{example}": {{"0": 23}}}}; -2 is the earliest, -1 the latest'
    try:
        document: object = json.loads(text)
    except ValueError:
        raise SourceOptionError(f"{name} cannot be read: {text!r}", remedy=remedy) from None
    by_topic: Mapping[str, object] = cast(Mapping[str, object], document) if isinstance(document, dict) else {}
    strange = [topic for topic in by_topic if not topics.takes(topic)]
    if strange or not by_topic:
        wrong = f"names topic {strange[0]!r}, which is not read" if strange else "names no topic"
        raise SourceOptionError(f"{name} {wrong}: {text!r}", remedy=remedy)
    return {topic: _by_partition(name, offsets, remedy) for topic, offsets in by_topic.items()}


def _by_partition(name: str, given: object, remedy: str) -> Mapping[int, int | Edge]:
    offsets: dict[int, int | Edge] = {}
    by_text = cast(Mapping[str, object], given if isinstance(given, dict) else {})
    for partition, offset in by_text.items():
        # JSON's `true` would otherwise be taken for offset 1, since bool is an int in Python.
        is_offset = isinstance(offset, int) and not isinstance(offset, bool) and -2 <= offset <= _INT64_MAX
        # re.ASCII here and below, because `\d` and int() also take the digits of other scripts.
        if re.fullmatch(r"\d{1,7}", partition, re.ASCII) is None or not is_offset:
            raise SourceOptionError(f"{name} has {partition!r}: {offset!r}", remedy=remedy)
        offsets[int(partition)] = _KAFKA_EDGES.get(cast(int, offset), cast(int, offset))
    if not offsets:
        raise SourceOptionError(f"{name} names no partition: {given!r}", remedy=remedy)
    return offsets


def _time_ms(name: str, text: str) -> int:
    """Milliseconds since 1970, as in the Kafka source, or an ISO time (UTC if it names no zone)."""
    plain = text.strip()
    if re.fullmatch(r"\d{1,18}", plain, re.ASCII):
        return int(plain)
    try:
        time = datetime.fromisoformat(plain)
        return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise SourceOptionError(
            f"{name} {text!r} is not a time", remedy="milliseconds since 1970, or for example 2026-01-31T12:00:00Z"
        ) from None


def _partitions(text: str) -> tuple[int, ...]:
    numbers: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,7})(?:\s*-\s*(\d{1,7}))?\s*", part, re.ASCII)
        if found is None or (found[2] is not None and int(found[2]) < int(found[1])):
            raise SourceOptionError(f"partitions {text!r} cannot be read", remedy="for example 0 or 0,2,5-7")
        numbers.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return tuple(sorted(numbers))


def _view(options: Mapping[str, str]) -> str:
    return options.get("view", LOG).strip().lower()


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    if "columns" in options:
        if "includeHeaders" in options:
            raise SourceOptionError("columns and includeHeaders exclude each other", remedy="name headers in columns")
        given = [name.strip() for name in options["columns"].split(",")]
        return tuple(_COLUMNS_BY_TEXT.get(name.lower(), name) for name in given)
    columns = (*COLUMNS, CHANGE) if _view(options) == CHANGES_VIEW else COLUMNS
    has_headers = _boolean(options, "includeHeaders", default=True)
    return columns if has_headers else tuple(name for name in columns if name != "headers")


def _boolean(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise SourceOptionError(f"{name} must be true or false, not {options[name]!r}")
    return text == "true"


def _count(options: Mapping[str, str], name: str) -> int:
    text = options[name].strip()
    if re.fullmatch(r"\d{1,18}", text, re.ASCII) is None or int(text) < 1:
        raise SourceOptionError(f"{name} must be 1 or more, not {options[name]!r}")
    return int(text)


def _size(text: str) -> int:
    """A size in bytes, in Spark's spelling: 134217728, 128m, 1g."""
    found = re.fullmatch(r"(\d{1,15})\s*([a-z]*)", text.strip().lower(), re.ASCII)
    if found is None or found[2] not in _BYTES or int(found[1]) < 1:
        raise SourceOptionError(f"sliceBytes {text!r} is not a size", remedy="for example 134217728, 128m or 1g")
    return int(found[1]) * _BYTES[found[2]]


def _duration_ms(text: str) -> int:
    """A time in Spark's spelling: 90s, 30m, 2h."""
    found = re.fullmatch(r"(\d{1,12})\s*([a-z]+)", text.strip().lower(), re.ASCII)
    if found is None or found[2] not in _MILLISECONDS:
        raise SourceOptionError(f"pinTtl {text!r} is not a duration", remedy="for example 90s, 30m or 2h")
    return int(found[1]) * _MILLISECONDS[found[2]]


def _place(options: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """The object store, with the second one in it if the agents have one."""
    second = options.get("produceStoreUrl", "").strip() or environ.get(environment_name("produce.store.url"), "")
    # A source writes nothing, so where new L0 files go is no matter here.
    return joined_url(_url(options, "objectStoreUrl", "object.store.url", environ), second.strip(), writes=True)


def _url(options: Mapping[str, str], name: str, setting: str, environ: Mapping[str, str]) -> str:
    variable = environment_name(setting)
    url = options.get(name, "").strip() or environ.get(variable, "").strip()
    if not url:
        raise SourceOptionError(
            f"{name} is not set", remedy=f"write option({name!r}, ...), or set {variable} before Spark starts"
        )
    return url
