"""Heartbeat, key 12: static members from v3 (KIP-345)."""

from __future__ import annotations

from wire.schema import Message, field, int16, int32, message, string


@message(api_key=12, kind="request", versions="0-4", flexible="4+")
class HeartbeatRequest(Message):
    group_id: str = field(string, "0+")
    generation_id: int = field(int32, "0+")
    member_id: str = field(string, "0+")
    group_instance_id: str | None = field(string, "3+", nullable="3+", default=None)


@message(api_key=12, kind="response", versions="0-4", flexible="4+")
class HeartbeatResponse(Message):
    throttle_time_ms: int = field(int32, "1+", ignorable=True)
    error_code: int = field(int16, "0+")
