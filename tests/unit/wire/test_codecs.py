"""The four codecs: the framings that Kafka's clients write and read, and the errors for other bytes."""

from __future__ import annotations

import gzip
import random
import struct
import threading
import time
import tracemalloc
import zlib

import cramjam
import lz4.frame
import pytest
import zstandard

from runtime.errors import SiltstoneError
from wire.codecs import (
    PIECES_MIN,
    Allowance,
    Codec,
    CodecError,
    DecompressedTooLargeError,
    TooManyPiecesError,
    compress,
    decompress,
    unfold,
)

MIB = 1 << 20
COMPRESSING = [codec for codec in Codec if codec is not Codec.NONE]
TEXT = b"".join(b"%d the quick brown fox jumps over the lazy dog " % n for n in range(5000))  # about 240 KiB
NOISE = random.Random(1).randbytes(100_000)
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("data", [b"", b"a", TEXT, NOISE], ids=["nothing", "a byte", "text", "noise"])
def test_what_is_compressed_unfolds_to_itself_from_any_kind_of_buffer(codec: Codec, data: bytes) -> None:
    for buffer in (data, bytearray(data), memoryview(b"##" + data)[2:]):
        compressed = compress(codec, buffer)
        for source in (compressed, bytearray(compressed), memoryview(b"#" + compressed)[1:]):
            assert decompress(codec, source, bytes_max=len(data)) == data


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_the_level_reaches_the_codec(codec: Codec) -> None:
    fast, slow = compress(codec, TEXT, level=1), compress(codec, TEXT, level=9)

    assert fast != slow
    assert decompress(codec, fast, bytes_max=MIB) == decompress(codec, slow, bytes_max=MIB) == TEXT


@pytest.mark.parametrize("codec", Codec)
def test_the_bound_is_exact(codec: Codec) -> None:
    compressed = compress(codec, TEXT)

    assert decompress(codec, compressed, bytes_max=len(TEXT)) == TEXT
    with pytest.raises(DecompressedTooLargeError, match=str(len(TEXT) - 1)):
        decompress(codec, compressed, bytes_max=len(TEXT) - 1)


def test_gzip_of_several_members_reads_as_one() -> None:
    assert decompress(Codec.GZIP, gzip.compress(b"one") + gzip.compress(b"two"), bytes_max=6) == b"onetwo"
    with pytest.raises(DecompressedTooLargeError):
        decompress(Codec.GZIP, gzip.compress(b"one") + gzip.compress(b"two"), bytes_max=5)


def test_many_small_gzip_members_cost_as_much_time_as_they_have_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    real, fed = zlib.decompressobj, [0]

    class Counting:
        """Counts the input bytes: zlib copies those of them that lie behind the end of the member."""

        def __init__(self, wbits: int) -> None:
            self._stream = real(wbits)

        def decompress(self, data: memoryview, max_length: int) -> bytes:
            fed[0] += len(data)
            return self._stream.decompress(data, max_length)

        def __getattr__(self, name: str) -> object:
            return getattr(self._stream, name)

    monkeypatch.setattr(zlib, "decompressobj", Counting)
    costs: list[int] = []
    for members in (500, 1000):
        fed[0] = 0
        assert decompress(Codec.GZIP, gzip.compress(b"") * members, bytes_max=0) == b""
        costs.append(fed[0])
    assert costs[1] < 2.1 * costs[0]


PIECES = {
    "gzip members": (Codec.GZIP, lambda count: gzip.compress(b"") * count),
    "xerial blocks": (Codec.SNAPPY, lambda count: xerial(*[bytes(cramjam.snappy.compress_raw(b""))] * count)),
    "zstd frames": (Codec.ZSTD, lambda count: compress(Codec.ZSTD, b"") * count),
    "zstd blocks": (Codec.ZSTD, lambda count: ZSTD_MAGIC + b"\x00\x38" + bytes(3) * count + b"\x01\x00\x00"),
}


@pytest.mark.parametrize("name", PIECES)
def test_pieces_that_unfold_to_nothing_are_bounded(name: str) -> None:
    codec, make = PIECES[name]
    some, many = make(PIECES_MIN // 2 - 2), make(2_000_000)  # a zstd frame is a piece, and its one block another

    assert decompress(codec, some, bytes_max=0) == b""
    began = time.thread_time()
    with pytest.raises(TooManyPiecesError):
        decompress(codec, many, bytes_max=64 * MIB)
    assert time.thread_time() - began < 1, "all of them would take 2 s and more"


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_bound_of_pieces_leaves_room_for_what_clients_write(codec: Codec) -> None:
    plain = bytes(64 * MIB)
    assert len(decompress(codec, compress(codec, plain), bytes_max=len(plain))) == len(plain)
    # A writer that flushes after each record of 100 bytes.
    flushed = zstandard.ZstdCompressor().compressobj()
    blocks = [
        part
        for _ in range(10_000)
        for part in (flushed.compress(NOISE[:100]), flushed.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
    ]
    assert len(decompress(Codec.ZSTD, b"".join((*blocks, flushed.flush())), bytes_max=64 * MIB)) == 1_000_000


@pytest.mark.parametrize("codec", COMPRESSING)
def test_calls_that_share_an_allowance_get_no_more_together(codec: Codec) -> None:
    allowance = Allowance.of_bytes(2 * len(TEXT) + 1)
    compressed = compress(codec, TEXT)

    assert unfold(codec, compressed, allowance) == unfold(codec, compressed, allowance) == TEXT
    assert allowance.bytes_left == 1
    with pytest.raises(DecompressedTooLargeError):
        unfold(codec, compressed, allowance)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_what_was_unfolded_in_vain_counts(codec: Codec) -> None:
    """Else a client could have the same work done again and again, by batches whose last bytes are damaged."""
    plain = NOISE * 30
    damaged = bytearray(compress(codec, plain))
    damaged[-len(damaged) // 8] ^= 0xFF
    allowance = Allowance.of_bytes(8 * MIB)

    with pytest.raises(CodecError):
        unfold(codec, bytes(damaged[:-3]), allowance)

    assert allowance.bytes_left <= 8 * MIB - len(plain) // 2


def test_snappy_is_written_in_java_blocks_of_32_kib() -> None:
    compressed = compress(Codec.SNAPPY, NOISE)

    assert compressed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    position, plain = 16, []
    while position < len(compressed):
        (length,) = struct.unpack_from(">i", compressed, position)
        plain.append(bytes(cramjam.snappy.decompress_raw(compressed[position + 4 : position + 4 + length])))
        position += 4 + length
    assert [len(block) for block in plain] == [32768, 32768, 32768, 100_000 - 3 * 32768]
    assert b"".join(plain) == NOISE


@pytest.mark.parametrize("data", [b"", b"tiny", TEXT], ids=["nothing", "tiny", "text"])
def test_a_bare_snappy_block_as_librdkafka_writes_it_is_read(data: bytes) -> None:
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data)), bytes_max=len(data)) == data


def test_lz4_is_written_as_java_reads_it_with_independent_blocks_of_64_kib() -> None:
    info = lz4.frame.get_frame_info(compress(Codec.LZ4, TEXT))

    assert not info["block_linked"]
    assert info["block_size"] == 64 * 1024
    assert info["content_size"] == 0


@pytest.mark.parametrize("options", [{}, {"content_checksum": True, "block_checksum": True}, {"block_size": 7}])
def test_lz4_frames_of_other_writers_are_read(options: dict[str, int]) -> None:
    assert decompress(Codec.LZ4, lz4.frame.compress(TEXT, block_linked=False, **options), bytes_max=MIB) == TEXT


def test_an_lz4_frame_that_java_readers_refuse_is_refused() -> None:
    with pytest.raises(CodecError, match="depend on each other"):
        decompress(Codec.LZ4, lz4.frame.compress(TEXT, block_linked=True), bytes_max=MIB)
    good = bytearray(compress(Codec.LZ4, TEXT))
    for position, value, message in ((4, good[4] | 1, "dictionary"), (4, good[4] ^ 0xC0, "version"), (5, 0x30, "size")):
        edited = good.copy()
        edited[position] = value
        with pytest.raises(CodecError, match=message):
            decompress(Codec.LZ4, edited, bytes_max=MIB)


def test_zstd_frames_without_a_content_size_are_read() -> None:
    streamed = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compress(TEXT)

    assert zstandard.frame_content_size(streamed) == -1
    assert decompress(Codec.ZSTD, streamed, bytes_max=len(TEXT)) == TEXT
    with pytest.raises(DecompressedTooLargeError):
        decompress(Codec.ZSTD, streamed, bytes_max=len(TEXT) - 1)


def test_zstd_frames_in_a_row_read_as_one() -> None:
    frames = compress(Codec.ZSTD, b"one") + zstandard.ZstdCompressor(write_content_size=False).compress(b"two")

    assert decompress(Codec.ZSTD, frames, bytes_max=6) == b"onetwo"
    with pytest.raises(DecompressedTooLargeError):
        decompress(Codec.ZSTD, frames, bytes_max=5)


def test_what_lies_around_an_empty_zstd_frame_is_not_lost() -> None:
    empty, skipped = compress(Codec.ZSTD, b""), b"\x50\x2a\x4d\x18" + bytes(4)

    assert decompress(Codec.ZSTD, empty + compress(Codec.ZSTD, b"a"), bytes_max=1) == b"a"
    for data in (empty + b"a", skipped + empty, skipped):
        with pytest.raises(CodecError):
            decompress(Codec.ZSTD, data, bytes_max=1)


def test_zstd_frames_with_a_large_window_are_read() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    assert (
        decompress(Codec.ZSTD, zstandard.ZstdCompressor(compression_params=parameters).compress(TEXT), bytes_max=MIB)
        == TEXT
    )


@pytest.mark.parametrize("codec", COMPRESSING)
def test_input_cut_short_anywhere_is_an_error(codec: Codec) -> None:
    compressed = compress(codec, TEXT[:3000])

    for length in range(len(compressed)):
        if codec is Codec.SNAPPY and length == 16:
            continue  # a xerial header and no block: the form of an empty batch
        with pytest.raises(CodecError):
            decompress(codec, compressed[:length], bytes_max=MIB)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD, Codec.SNAPPY])
def test_bytes_after_the_end_are_an_error(codec: Codec) -> None:
    with pytest.raises(CodecError):
        decompress(codec, compress(codec, TEXT) + b"\x00trailing", bytes_max=MIB)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_damaged_input_is_an_error_of_ours_or_unfolds_within_the_bound(codec: Codec) -> None:
    chance = random.Random(codec)
    compressed = compress(codec, TEXT[:20_000])
    for _ in range(1500):
        damaged = bytearray(compressed)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(min(len(damaged), chance.choice((20, len(damaged)))))] = chance.randrange(256)
        try:
            assert len(decompress(codec, damaged, bytes_max=40_000)) <= 40_000
        except CodecError as error:
            assert isinstance(error, SiltstoneError)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_noise_is_an_error(codec: Codec) -> None:
    with pytest.raises(CodecError):
        decompress(codec, NOISE, bytes_max=MIB)


def zstd_run_blocks(count: int) -> bytes:
    """A frame without content size, of `count` blocks of 128 KiB that repeat one byte: four bytes of input per
    block.
    """
    window = bytes([0x00, 7 << 3])  # no content size, window of 128 KiB
    blocks = [(128 * 1024 << 3 | 1 << 1 | (n == count - 1)).to_bytes(3, "little") + b"z" for n in range(count)]
    return ZSTD_MAGIC + window + b"".join(blocks)


def xerial(*blocks: bytes) -> bytes:
    return compress(Codec.SNAPPY, b"") + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


ZEROS = bytes(64 * MIB)
BOMBS = {
    "gzip": (Codec.GZIP, lambda: compress(Codec.GZIP, ZEROS, level=1)),
    "gzip members": (Codec.GZIP, lambda: compress(Codec.GZIP, ZEROS[:MIB]) * 64),
    "snappy blocks": (Codec.SNAPPY, lambda: xerial(*[bytes(cramjam.snappy.compress_raw(ZEROS[:MIB]))] * 64)),
    "snappy that claims 4 GiB": (Codec.SNAPPY, lambda: b"\xff\xff\xff\xff\x0f" + bytes(100)),
    "xerial that claims 4 GiB": (Codec.SNAPPY, lambda: xerial(b"\xff\xff\xff\xff\x0f" + bytes(100))),
    "lz4": (Codec.LZ4, lambda: compress(Codec.LZ4, ZEROS)),
    "lz4 that says how much": (Codec.LZ4, lambda: lz4.frame.compress(ZEROS, block_linked=False)),
    "zstd that says how much": (Codec.ZSTD, lambda: compress(Codec.ZSTD, ZEROS)),
    "zstd that does not": (Codec.ZSTD, lambda: zstandard.ZstdCompressor(write_content_size=False).compress(ZEROS)),
    "zstd of run blocks": (Codec.ZSTD, lambda: zstd_run_blocks(4096)),
    "zstd frames": (Codec.ZSTD, lambda: compress(Codec.ZSTD, ZEROS[:MIB]) * 64),
    "zstd that claims 2^63 bytes": (Codec.ZSTD, lambda: ZSTD_MAGIC + b"\xe0" + b"\x00" * 7 + b"\x80\x01\x00\x00"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_stops_at_the_bound_and_memory_with_it(name: str) -> None:
    codec, make = BOMBS[name]
    bomb = make()

    tracemalloc.start()
    try:
        with pytest.raises(DecompressedTooLargeError):
            decompress(codec, bomb, bytes_max=2 * MIB)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 8 * MIB + len(bomb)


def test_run_blocks_within_the_bound_are_read() -> None:
    assert decompress(Codec.ZSTD, zstd_run_blocks(16), bytes_max=2 * MIB) == b"z" * 2 * MIB


def test_a_lie_about_the_size_within_the_bound_is_an_error() -> None:
    lying = ZSTD_MAGIC + b"\xa0" + struct.pack("<I", MIB) + b"\x09\x00\x00x"  # a MiB announced, one byte held
    with pytest.raises(CodecError):
        decompress(Codec.ZSTD, lying, bytes_max=2 * MIB)


def test_threads_do_not_share_contexts() -> None:
    plain = [bytes([n]) * 50_000 + NOISE[: 1000 * n] for n in range(4)]
    wrong: list[int] = []

    def work(n: int) -> None:
        for _ in range(100):
            streamed = zstandard.ZstdCompressor(write_content_size=False).compress(plain[n])
            for source in (compress(Codec.ZSTD, plain[n]), streamed):
                wrong.extend([n] * (decompress(Codec.ZSTD, source, bytes_max=MIB) != plain[n]))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
