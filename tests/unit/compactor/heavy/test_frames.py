"""Objects of frames: what was written is read, in whole or in part, and nothing else is taken for it."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.heavy.plan.frames import (
    FIRST_READ_BYTES,
    FRAMES_MAX,
    FramesError,
    directory_bytes,
    encode_frames,
    fingerprint_of,
    piece,
    read_directory,
)
from compactor.heavy.stored import Frames
from runtime.clock import ManualClock
from storage.memory import MemoryStore
from wire.crc import crc32c

KEY = "jobs/1/" + "ab" * 16 + "/keys/p1"
MANY = [b'{"slice":%d}' % number for number in range(4_000)]


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__(ManualClock(0))
        self.read_bytes: list[int] = []

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        found = await super().get_range(key, start, length)
        self.read_bytes.append(len(found))
        return found


async def stored(body: bytes) -> CountingStore:
    store = CountingStore()
    await store.put_if_absent(KEY, body, crc32c=crc32c(body))
    return store


@given(st.binary(min_size=1), st.lists(st.binary(min_size=1), max_size=5))
def test_head_and_frames_are_read_as_they_were_written(head: bytes, frames: list[bytes]) -> None:
    body = encode_frames(head, frames)
    directory = read_directory(body)
    assert directory.head.body(piece(body, directory.head)) == head
    assert [frame.body(piece(body, frame)) for frame in directory.frames] == frames
    assert directory.fingerprint == fingerprint_of(body) == fingerprint_of(body[: directory_bytes(body)])


@given(st.lists(st.binary(min_size=1), min_size=1, max_size=3), st.data())
def test_any_changed_byte_is_noticed(frames: list[bytes], data: st.DataObject) -> None:
    body = encode_frames(b"{}", frames)
    at = data.draw(st.integers(0, len(body) - 1))
    damaged = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
    with pytest.raises(FramesError):
        directory = read_directory(damaged)
        if directory.fingerprint != fingerprint_of(body):
            raise FramesError("another fingerprint")
        for frame in (directory.head, *directory.frames):
            frame.body(piece(damaged, frame))


@pytest.mark.parametrize("body", [b"", b"SILTFRMS", b"x" * 100, encode_frames(b"{}", [b"a"])[:40]])
def test_what_is_cut_off_or_something_else_is_refused(body: bytes) -> None:
    with pytest.raises(FramesError):
        read_directory(body)


def test_another_version_and_an_impossible_number_of_frames_are_refused() -> None:
    body = encode_frames(b"{}", [])
    with pytest.raises(FramesError, match="version 2"):
        read_directory(body[:8] + struct.pack(">H", 2) + body[10:])
    with pytest.raises(FramesError, match=f"up to {FRAMES_MAX}"):
        read_directory(body[:12] + struct.pack(">I", FRAMES_MAX + 1) + body[16:])


async def test_a_small_object_takes_one_read() -> None:
    store = await stored(encode_frames(b"{}", [b"a", b"b", b"c"]))
    frames = await Frames.read(store, KEY)
    bodies = await frames.bodies([2, 0])
    assert {number: frames.directory.frames[number].body(body) for number, body in bodies.items()} == {0: b"a", 2: b"c"}
    assert len(store.read_bytes) == 1


async def test_of_a_large_object_the_beginning_and_the_wanted_frames_are_read() -> None:
    body = encode_frames(b'"%s"' % (b"x" * 100), MANY)
    assert directory_bytes(body) > FIRST_READ_BYTES
    store = await stored(body)
    frames = await Frames.read(store, KEY)
    before = len(store.read_bytes)
    bodies = await frames.bodies([3_999, 7, 8])
    assert {number: frames.directory.frames[number].body(each) for number, each in bodies.items()} == {
        number: MANY[number] for number in (7, 8, 3_999)
    }
    assert len(store.read_bytes) - before == 2  # neighbours together
    assert sum(store.read_bytes[before:]) < 200
    with pytest.raises(IndexError):
        await frames.bodies([4_000])
