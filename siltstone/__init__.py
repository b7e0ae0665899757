"""The front door: commands, processes, embedded stack, Kafka client, `read_topic` and `topic_dataset`.

Imports nothing eagerly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metadata.contract.topics import UnknownTopicError as UnknownTopicError
    from runtime.errors import BadInputError as BadInputError
    from runtime.errors import SiltstoneError as SiltstoneError
    from runtime.errors import UnavailableError as UnavailableError
    from siltstone.api import read_topic as read_topic
    from siltstone.api import topic_dataset as topic_dataset
    from siltstone.reading.open_topic import NotOpenError as NotOpenError
    from spark_jobs.scan.contract import BadScanError as BadScanError
    from spark_jobs.scan.contract import DataLossError as DataLossError
    from spark_jobs.scan.contract import OffsetOutOfRangeError as OffsetOutOfRangeError
    from spark_jobs.scan.contract import PinLostError as PinLostError
    from spark_jobs.scan.contract import UnknownPartitionError as UnknownPartitionError

_HOMES = {
    "BadInputError": "runtime.errors",
    "BadScanError": "spark_jobs.scan.contract",
    "DataLossError": "spark_jobs.scan.contract",
    "OffsetOutOfRangeError": "spark_jobs.scan.contract",
    "PinLostError": "spark_jobs.scan.contract",
    "SiltstoneError": "runtime.errors",
    "UnavailableError": "runtime.errors",
    "UnknownPartitionError": "spark_jobs.scan.contract",
    "UnknownTopicError": "metadata.contract.topics",
    "NotOpenError": "siltstone.reading.open_topic",
    "read_topic": "siltstone.api",  # loads pyarrow and the kernels
    "topic_dataset": "siltstone.api",
}
__all__ = [
    "BadInputError",
    "BadScanError",
    "DataLossError",
    "NotOpenError",
    "OffsetOutOfRangeError",
    "PinLostError",
    "SiltstoneError",
    "UnavailableError",
    "UnknownPartitionError",
    "UnknownTopicError",
    "read_topic",
    "topic_dataset",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
