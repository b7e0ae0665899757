"""ListTransactions, key 66 (KIP-664): a least duration from v1 (KIP-994), a pattern of transactional ids from v2
(KIP-1152)."""

from __future__ import annotations

from wire.schema import (
    PARTITIONS_ELEMENTS_MAX,
    Message,
    Struct,
    array,
    field,
    int16,
    int32,
    int64,
    message,
    string,
    struct,
)


@message(api_key=66, kind="request", versions="0-2", flexible="0+", elements_max=PARTITIONS_ELEMENTS_MAX)
class ListTransactionsRequest(Message):
    state_filters: list[str] = field(array(string), "0+")
    producer_id_filters: list[int] = field(array(int64), "0+")
    duration_filter: int = field(int64, "1+", default=-1)
    transactional_id_pattern: str | None = field(string, "2+", nullable="2+", default=None)


@struct
class TransactionState(Struct):
    transactional_id: str = field(string, "0+")
    producer_id: int = field(int64, "0+")
    transaction_state: str = field(string, "0+")


@message(api_key=66, kind="response", versions="0-2", flexible="0+")
class ListTransactionsResponse(Message):
    throttle_time_ms: int = field(int32, "0+")
    error_code: int = field(int16, "0+")
    unknown_state_filters: list[str] = field(array(string), "0+")
    transaction_states: list[TransactionState] = field(array(TransactionState), "0+")
