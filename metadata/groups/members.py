"""The codec of `groups.members`: all members of a group as one value.

Byte 0x01, a count, then per member in order: member id, instance id, client id, client host, session timeout and
rebalance timeout in ms (i32), the protocols (a count, then name and subscription of each), the assignment. Counts are
u32, and so are the lengths in front of strings and bytes (0xFFFFFFFF: None). All numbers are big-endian. Strings are
UTF-8 that may hold lone surrogates.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from metadata.groups.contract import MemberRecord
from runtime.errors import BugError

VERSION = 1
_HEAD = struct.Struct(">BI")
_LENGTH = struct.Struct(">I")
_TIMEOUTS = struct.Struct(">ii")
_NONE = 0xFFFFFFFF


class BadMembersError(BugError):
    """The bytes were not made by `encode_members`."""


def encode_members(members: Sequence[MemberRecord]) -> bytes:
    parts = [_HEAD.pack(VERSION, len(members))]
    for member in members:
        for text in (member.member_id, member.instance_id, member.client_id, member.client_host):
            parts += _sized(None if text is None else _utf8(text))
        parts.append(_TIMEOUTS.pack(member.session_timeout_ms, member.rebalance_timeout_ms))
        parts.append(_LENGTH.pack(len(member.protocols)))
        for name, subscription in member.protocols:
            parts += _sized(_utf8(name))
            parts += _sized(subscription)
        parts += _sized(member.assignment)
    return b"".join(parts)


def decode_members(data: bytes) -> tuple[MemberRecord, ...]:
    """Raises BadMembersError."""
    reader = _Reader(data)
    try:
        version, count = reader.take(_HEAD)
        if version != VERSION:
            raise BadMembersError(f"stored group members have version {version}; this process reads version {VERSION}")
        members = tuple(reader.member() for _ in range(count))
    except (struct.error, UnicodeDecodeError) as error:
        raise BadMembersError(f"stored group members ({len(data)} bytes) cannot be read: {error}") from error
    if reader.position != len(data):
        raise BadMembersError(f"stored group members end at byte {reader.position} of {len(data)}")
    return members


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _sized(data: bytes | None) -> Iterator[bytes]:
    if data is None:
        yield _LENGTH.pack(_NONE)
    else:
        yield _LENGTH.pack(len(data))
        yield data


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def take(self, shape: struct.Struct) -> tuple[int, ...]:
        values = shape.unpack_from(self._data, self.position)
        self.position += shape.size
        return values

    def sized(self) -> bytes | None:
        (length,) = self.take(_LENGTH)
        if length == _NONE:
            return None
        start, self.position = self.position, self.position + length
        # A slice past the end would be cut short silently.
        if self.position > len(self._data):
            raise BadMembersError(
                f"stored group members are cut off: {length} bytes expected at byte {start} of {len(self._data)}"
            )
        return self._data[start : self.position]

    def octets(self) -> bytes:
        data = self.sized()
        if data is None:
            raise BadMembersError(f"stored group members lack a required value before byte {self.position}")
        return data

    def text(self) -> str:
        return self.octets().decode("utf-8", "surrogatepass")

    def member(self) -> MemberRecord:
        member_id = self.text()
        instance_id = self.sized()
        client_id, client_host = self.text(), self.text()
        session_timeout_ms, rebalance_timeout_ms = self.take(_TIMEOUTS)
        (protocols,) = self.take(_LENGTH)
        return MemberRecord(
            member_id=member_id,
            instance_id=None if instance_id is None else instance_id.decode("utf-8", "surrogatepass"),
            client_id=client_id,
            client_host=client_host,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            protocols=tuple((self.text(), self.octets()) for _ in range(protocols)),
            assignment=self.octets(),
        )
