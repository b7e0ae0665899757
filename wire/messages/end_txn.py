"""EndTxn, key 26: from v5 the producer goes on with the id and epoch of the answer (KIP-890).

PRODUCER_FENCED may be answered from v2, TRANSACTION_ABORTABLE from v4.
"""

from __future__ import annotations

from wire.schema import Message, boolean, field, int16, int32, int64, message, string


@message(api_key=26, kind="request", versions="0-5", flexible="3+")
class EndTxnRequest(Message):
    transactional_id: str = field(string, "0+")
    producer_id: int = field(int64, "0+")
    producer_epoch: int = field(int16, "0+")
    committed: bool = field(boolean, "0+")


@message(api_key=26, kind="response", versions="0-5", flexible="3+")
class EndTxnResponse(Message):
    throttle_time_ms: int = field(int32, "0+")
    error_code: int = field(int16, "0+")
    producer_id: int = field(int64, "5+", default=-1, ignorable=True)
    producer_epoch: int = field(int16, "5+", default=-1, ignorable=True)
