"""InitProducerId, key 22: resuming with a known id and epoch from v3 (KIP-360)."""

from __future__ import annotations

from wire.schema import Message, field, int16, int32, int64, message, string


@message(api_key=22, kind="request", versions="0-5", flexible="2+")
class InitProducerIdRequest(Message):
    transactional_id: str | None = field(string, "0+", nullable="0+")
    transaction_timeout_ms: int = field(int32, "0+")
    producer_id: int = field(int64, "3+", default=-1)
    producer_epoch: int = field(int16, "3+", default=-1)


@message(api_key=22, kind="response", versions="0-5", flexible="2+")
class InitProducerIdResponse(Message):
    throttle_time_ms: int = field(int32, "0+", ignorable=True)
    error_code: int = field(int16, "0+")
    producer_id: int = field(int64, "0+", default=-1)
    producer_epoch: int = field(int16, "0+")
