"""Cuts a stream of bytes into frames, without I/O; made for `asyncio.BufferedProtocol`.

A frame is a big-endian int32 length and that many bytes. Bytes arrive in a landing buffer, which all connections of an
event loop may share because nothing stays in it: every whole frame, and the beginning of one that is not whole, is
copied into memory of its own. The bytes are still in the processor's cache then, so this costs less than reading in
smaller pieces. A frame above 16 KiB that is not whole gets a buffer of its own, into which the socket reads directly. A
length is only a claim: that buffer holds at most 64 KiB, or sixteen times the bytes that have arrived (while that is at
most 1 MiB), or twice what has arrived. So a length of 100 MiB followed by silence costs 64 KiB.

Frames never change after they are handed out: a caller may keep one for as long as it likes.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Final, cast

from wire.errors import FrameTooLargeError, MalformedFrameError

FRAME_BYTES_MAX: Final = 104_857_600
"""Kafka's `socket.request.max.bytes`."""

LANDING_BYTES: Final = 262_144
_CLAIM_BYTES: Final = 65_536
_COPIED_FRAME_BYTES_MAX: Final = 16_384
_EAGER_BYTES_MAX: Final = 1_048_576
_EAGER_FACTOR: Final = 16

_LENGTH: Final = struct.Struct(">i")
HTTP_STARTS: Final = (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"DELE", b"PATC", b"PRI ")
_TLS_HANDSHAKE: Final = b"\x16\x03"

_new_bytearray = ctypes.pythonapi.PyByteArray_FromStringAndSize
_new_bytearray.restype = ctypes.py_object
_new_bytearray.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)


class FrameReader:
    """The receiving half of one connection.

    The caller reads from the socket into `get_buffer()` and reports with `buffer_updated(n)` how much it read. Nothing
    else may use the landing buffer between the two calls; asyncio makes them in one go. After an error the stream
    cannot be cut any more: close the connection.
    """

    __slots__ = ("_landing", "_large", "_large_end", "_large_size", "_start", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX, landing: memoryview | None = None) -> None:
        """`landing` must be writable and at least 64 KiB; None makes one for this reader."""
        self.frame_bytes_max = frame_bytes_max
        """May be changed between two reads; it counts for the frames that begin after that."""
        self._landing = memoryview(bytearray(LANDING_BYTES)) if landing is None else landing
        self._start = b""  # the beginning of a small frame, or of one whose length is not all here
        self._large: memoryview | None = None  # the buffer of the large frame that is arriving
        self._large_end = 0
        self._large_size = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes held for a frame that is not whole yet, its length prefix included."""
        return len(self._start) if self._large is None else self._large_end + _LENGTH.size

    @property
    def missing_bytes(self) -> int:
        """Bytes that a large frame still lacks; 0 if none is arriving."""
        return 0 if self._large is None else self._large_size - self._large_end

    def get_buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._large is None:
            if not self._start:
                return self._landing
            # Put back before each read: other connections used the buffer since.
            self._landing[: len(self._start)] = self._start
            return self._landing[len(self._start) :]
        if self._large_end == len(self._large):
            self._large = self._grown(self._large)
        return self._large[self._large_end :]

    def buffer_updated(self, received_bytes: int) -> list[memoryview]:
        """Take in bytes that were read into `get_buffer()`; returns the frames they complete, without length prefix.

        Raises MalformedFrameError or FrameTooLargeError; frames before the bad one in the same bytes are lost.
        """
        if self._large is not None:
            self._large_end += received_bytes
            if self._large_end < self._large_size:
                return []
            frame, self._large = self._large, None
            # The buffer never holds more than this frame: what follows it is still in the socket.
            return [frame.toreadonly()]
        return self._cut_landing(len(self._start) + received_bytes)

    def _cut_landing(self, end: int) -> list[memoryview]:
        frames: list[memoryview] = []
        start, landing = 0, self._landing
        while end - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(landing, start)
            # Refused before any memory is taken for it.
            if not 0 <= size <= self.frame_bytes_max:
                raise self._refusal(size, bytes(landing[start : start + _LENGTH.size]))
            stop = start + _LENGTH.size + size
            if stop > end:
                if size > _COPIED_FRAME_BYTES_MAX:
                    self._begin_large(size, landing[start + _LENGTH.size : end])
                    start = end
                break
            # Copied out: the landing buffer belongs to the next connection as soon as this call returns.
            frames.append(memoryview(bytes(landing[start + _LENGTH.size : stop])))
            start = stop
        self._start = bytes(landing[start:end])
        return frames

    def _begin_large(self, size: int, arrived: memoryview) -> None:
        self._large_size = size
        self._large_end = 0
        capacity = min(size, max(_CLAIM_BYTES, min(_EAGER_FACTOR * len(arrived), _EAGER_BYTES_MAX)))
        self._large = _unfilled(capacity)
        self._large[: len(arrived)] = arrived
        self._large_end = len(arrived)

    def _grown(self, full: memoryview) -> memoryview:
        arrived = len(full)
        capacity = min(self._large_size, max(2 * arrived, min(_EAGER_FACTOR * arrived, _EAGER_BYTES_MAX)))
        # A new buffer, not a resized one: the transport may still hold a view of the old.
        grown = _unfilled(capacity)
        grown[:arrived] = full
        return grown

    def _refusal(self, size: int, prefix: bytes) -> MalformedFrameError:
        hint = ""
        if prefix in HTTP_STARTS:
            hint = "this looks like HTTP; this port speaks the Kafka protocol"
        elif prefix.startswith(_TLS_HANDSHAKE):
            hint = "this looks like TLS; this port speaks the Kafka protocol without TLS"
        if size < 0:
            return MalformedFrameError(f"frame length {size} is negative", remedy=hint)
        return FrameTooLargeError(
            f"a frame of {size} bytes is above the limit of {self.frame_bytes_max} bytes", remedy=hint
        )


def _unfilled(size_bytes: int) -> memoryview:
    """A buffer with any bytes in it. Zeroes would cost 0.05 ms a MB and more, and the frame overwrites all of them
    before anybody sees it.
    """
    return memoryview(cast(bytearray, _new_bytearray(None, size_bytes)))
