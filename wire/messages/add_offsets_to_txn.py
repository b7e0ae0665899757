"""AddOffsetsToTxn, key 25: PRODUCER_FENCED may be answered from v2, TRANSACTION_ABORTABLE from v4 (KIP-890)."""

from __future__ import annotations

from wire.schema import Message, field, int16, int32, int64, message, string


@message(api_key=25, kind="request", versions="0-4", flexible="3+")
class AddOffsetsToTxnRequest(Message):
    transactional_id: str = field(string, "0+")
    producer_id: int = field(int64, "0+")
    producer_epoch: int = field(int16, "0+")
    group_id: str = field(string, "0+")


@message(api_key=25, kind="response", versions="0-4", flexible="3+")
class AddOffsetsToTxnResponse(Message):
    throttle_time_ms: int = field(int32, "0+")
    error_code: int = field(int16, "0+")
