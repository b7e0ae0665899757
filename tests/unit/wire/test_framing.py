"""Frames from a stream, whatever the pieces in which it arrives."""

from __future__ import annotations

import asyncio
import struct
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fixtures.chance import examples
from wire.errors import FrameTooLargeError, MalformedFrameError
from wire.framing import LANDING_BYTES, FrameReader


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def feed(reader: FrameReader, stream: bytes, piece_bytes: int = 1 << 30) -> list[memoryview]:
    """Hand over the stream as a socket would: at most `piece_bytes` at once, never more than the buffer takes."""
    frames: list[memoryview] = []
    left = memoryview(stream)
    while left:
        buffer = reader.get_buffer()
        taken = min(len(buffer), len(left), piece_bytes)
        assert taken > 0
        buffer[:taken] = left[:taken]
        frames += reader.buffer_updated(taken)
        left = left[taken:]
    return frames


SIZES = (
    st.integers(0, 40) | st.integers(0, 20_000) | st.sampled_from([16_384, 16_385, 65_532, 65_533, 200_000, 1_500_000])
)


@settings(deadline=None, max_examples=examples(80))
@example(sizes=[10, 16_384, 30], piece_bytes=1000, tail=3)  # the rest of a read begins a frame that stays small
@given(sizes=st.lists(SIZES, min_size=2, max_size=8), piece_bytes=st.integers(500, 300_000), tail=st.integers(0, 3))
def test_every_frame_comes_out_once_in_order_however_the_stream_is_cut(
    sizes: list[int], piece_bytes: int, tail: int
) -> None:
    bodies = [bytes([index + 1]) * size for index, size in enumerate(sizes)]
    reader = FrameReader()

    frames = feed(reader, framed(*bodies) + bytes(tail), piece_bytes)

    assert [bytes(frame) for frame in frames] == bodies
    assert reader.buffered_bytes == tail


def test_one_byte_at_a_time_is_enough() -> None:
    reader = FrameReader()

    frames = feed(reader, framed(b"first", b"", b"x" * 20_000), piece_bytes=1)

    assert [bytes(frame) for frame in frames] == [b"first", b"", b"x" * 20_000]


def test_a_frame_that_was_handed_out_never_changes() -> None:
    reader = FrameReader()
    small, large = b"s" * 100, b"l" * 300_000

    kept = feed(reader, framed(small, large, small))
    feed(reader, framed(b"z" * 100, b"z" * 300_000, b"z" * 60_000))

    assert [bytes(frame) for frame in kept] == [small, large, small]
    assert all(frame.readonly for frame in kept)


def test_a_large_frame_is_read_into_its_own_memory_and_not_beyond_its_end() -> None:
    reader = FrameReader()
    feed(reader, framed(b"x" * 500_000)[:400_000])

    assert len(reader.get_buffer()) == 500_000 + 4 - 400_000
    assert reader.buffered_bytes == 400_000


def test_connections_may_share_the_memory_in_which_bytes_land() -> None:
    landing = memoryview(bytearray(65_536))
    readers = [FrameReader(landing=landing) for _ in range(3)]
    bodies = [[bytes([10 * number + each]) * size for each, size in enumerate((7, 20_000, 900))] for number in range(3)]
    streams = [framed(*each) for each in bodies]
    frames: list[list[memoryview]] = [[], [], []]

    for position in range(0, max(map(len, streams)), 1001):
        for number, reader in enumerate(readers):
            frames[number] += feed(reader, streams[number][position : position + 1001])

    assert [[bytes(frame) for frame in each] for each in frames] == bodies


def test_a_length_without_bytes_behind_it_costs_64_kib() -> None:
    reader = FrameReader()
    tracemalloc.start()
    try:
        feed(reader, struct.pack(">i", 100 << 20))
        reader.get_buffer()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 70_000


def test_the_buffer_of_a_large_frame_is_never_much_larger_than_what_has_arrived() -> None:
    reader = FrameReader()
    stream, arrived = framed(bytes(20 << 20)), 0
    while arrived < len(stream):
        buffer = reader.get_buffer()
        assert len(buffer) <= (16 * arrived or LANDING_BYTES)
        if arrived > 1 << 20:
            assert len(buffer) <= 2 * arrived
        taken = min(len(buffer), 50_000)
        buffer[:taken] = stream[arrived : arrived + taken]
        reader.buffer_updated(taken)
        arrived += taken


@pytest.mark.parametrize(
    ("prefix", "hint"),
    [
        (b"GET ", "looks like HTTP"),
        (b"POST", "looks like HTTP"),
        (b"\x16\x03\x01\x02", "looks like TLS"),
        (b"\x7f\xff\xff\xff", "2147483647 bytes is above the limit of 104857600"),
    ],
)
def test_a_length_above_the_limit_is_refused_and_other_protocols_are_named(prefix: bytes, hint: str) -> None:
    with pytest.raises(FrameTooLargeError, match=hint):
        feed(FrameReader(), prefix)


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(MalformedFrameError, match="-1 is negative"):
        feed(FrameReader(), b"\xff\xff\xff\xff")


def test_the_limit_itself_is_allowed() -> None:
    reader = FrameReader(frame_bytes_max=50)

    assert [len(frame) for frame in feed(reader, framed(bytes(50)))] == [50]
    with pytest.raises(FrameTooLargeError, match="frame of 51 bytes is above the limit of 50 bytes"):
        feed(reader, framed(bytes(51)))


async def test_it_serves_a_buffered_protocol_of_asyncio() -> None:
    bodies = [b"a" * 10, b"b" * 700_000, b"c" * 20_000, b"d"]
    received: list[memoryview] = []
    done = asyncio.Event()

    class Receiver(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.reader = FrameReader()

        def get_buffer(self, sizehint: int) -> memoryview:
            return self.reader.get_buffer()

        def buffer_updated(self, nbytes: int) -> None:
            received.extend(self.reader.buffer_updated(nbytes))

        def connection_lost(self, exc: Exception | None) -> None:
            done.set()

    loop = asyncio.get_running_loop()
    server = await loop.create_server(Receiver, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(framed(*bodies))
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    await asyncio.wait_for(done.wait(), 10)
    server.close()
    await server.wait_closed()

    assert [bytes(frame) for frame in received] == bodies
