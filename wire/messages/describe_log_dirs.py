"""DescribeLogDirs, key 35 (KIP-113): an error of the whole answer from v3, sizes of volumes from v4 (KIP-827)."""

from __future__ import annotations

from wire.schema import (
    PARTITIONS_ELEMENTS_MAX,
    Message,
    Struct,
    array,
    boolean,
    field,
    int16,
    int32,
    int64,
    message,
    string,
    struct,
)


@struct
class DescribableLogDirTopic(Struct):
    topic: str = field(string, "0+")
    partitions: list[int] = field(array(int32), "0+")


@message(api_key=35, kind="request", versions="1-4", flexible="2+", elements_max=PARTITIONS_ELEMENTS_MAX)
class DescribeLogDirsRequest(Message):
    topics: list[DescribableLogDirTopic] | None = field(array(DescribableLogDirTopic), "0+", nullable="0+")


@struct
class DescribeLogDirsPartition(Struct):
    partition_index: int = field(int32, "0+")
    partition_size: int = field(int64, "0+")
    offset_lag: int = field(int64, "0+")
    is_future_key: bool = field(boolean, "0+")


@struct
class DescribeLogDirsTopic(Struct):
    name: str = field(string, "0+")
    partitions: list[DescribeLogDirsPartition] = field(array(DescribeLogDirsPartition), "0+")


@struct
class DescribeLogDirsResult(Struct):
    error_code: int = field(int16, "0+")
    log_dir: str = field(string, "0+")
    topics: list[DescribeLogDirsTopic] = field(array(DescribeLogDirsTopic), "0+")
    total_bytes: int = field(int64, "4+", default=-1, ignorable=True)
    usable_bytes: int = field(int64, "4+", default=-1, ignorable=True)


@message(api_key=35, kind="response", versions="1-4", flexible="2+")
class DescribeLogDirsResponse(Message):
    throttle_time_ms: int = field(int32, "0+")
    error_code: int = field(int16, "3+", ignorable=True)
    results: list[DescribeLogDirsResult] = field(array(DescribeLogDirsResult), "0+")
