"""UnregisterBroker, key 64 (KIP-500)."""

from __future__ import annotations

from wire.schema import Message, field, int16, int32, message, string


@message(api_key=64, kind="request", versions="0", flexible="0+")
class UnregisterBrokerRequest(Message):
    broker_id: int = field(int32, "0+")


@message(api_key=64, kind="response", versions="0", flexible="0+")
class UnregisterBrokerResponse(Message):
    throttle_time_ms: int = field(int32, "0+")
    error_code: int = field(int16, "0+")
    error_message: str | None = field(string, "0+", nullable="0+")
