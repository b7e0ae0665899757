"""The four compressions of record batch v2. The reader bounds how far a batch unfolds, not its sender.

`decompress` never holds much more than `bytes_max` bytes of output, whatever the input claims. Where a format declares
a size, it is compared with the bound before anything is allocated; where none is declared (gzip, lz4 frames, zstd
frames of streaming writers), output is taken in steps. Time is linear in input and output. *Pieces* that this code, not
a library, goes through one by one (gzip members, xerial blocks, zstd frames and blocks) are bounded too, because one
takes some microseconds and may be three bytes that unfold to nothing. The framings that are written and read:

- gzip: one member is written; several are read, as Java's GZIPInputStream does.
- snappy: Java's *xerial* framing is written (magic, two versions, then length-prefixed raw blocks of at most 32 KiB).
  Xerial, or one bare raw block (librdkafka, franz-go), is read; the magic tells them apart.
- lz4: a frame with independent 64 KiB blocks and no content size is written, as Java does. Frames that Java consumers
  refuse (dependent blocks, a dictionary, another version) are refused here too.
- zstd: a frame with its content size is written; frames with or without it, and several in a row, are read.

Zstd contexts are expensive to make and not safe to share, so each thread keeps its own.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol, cast

import cramjam
import lz4.frame  # pyright: ignore[reportMissingTypeStubs] -- lz4 ships no types; `_Lz4Stream` and casts stand in
import zstandard

from runtime.errors import SiltstoneError
from wire.crc import Body


class Codec(IntEnum):
    """Bits 0-2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CodecError(SiltstoneError):
    """The compressed bytes are cut short, damaged, or not of the codec they claim."""


class DecompressedTooLargeError(CodecError):
    """The bytes unfold to more than the caller allows."""


class TooManyPiecesError(DecompressedTooLargeError):
    """The bytes consist of more pieces than the caller allows."""


PIECES_MIN, PIECE_BYTES = 1024, 4096
"""`Allowance.of_bytes` allows PIECES_MIN pieces and one more for each PIECE_BYTES. Java's writers make pieces of 16 KiB
and more (xerial blocks of 32 KiB, zstd blocks of at least what is flushed at a time), and one gzip member. At 3 us
each, the pieces of 64 MiB take some 50 ms."""


@dataclass(slots=True)
class Allowance:
    """The bytes that may still be unfolded. `unfold` takes its work from it, also if it fails: work that was done in
    vain counts, or a client could have any amount of it done.
    """

    bytes_left: int
    pieces_left: int

    @classmethod
    def of_bytes(cls, bytes_max: int) -> Allowance:
        return cls(bytes_max, PIECES_MIN + bytes_max // PIECE_BYTES)

    def take_piece(self, codec: Codec) -> None:
        """Raises TooManyPiecesError."""
        if self.pieces_left <= 0:
            raise TooManyPiecesError(f"{codec.name.lower()} data unfolds from too many small pieces")
        self.pieces_left -= 1


GZIP_LEVEL = 6
LZ4_LEVEL = 0
ZSTD_LEVEL = 3
"""Defaults of zlib, lz4 and zstd, as in Kafka 4.x (`compression.<codec>.level`)."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_I32 = struct.Struct(">i")
_GZIP_WBITS = 16 + zlib.MAX_WBITS
_GZIP_WINDOW_BYTES = 256
"""Input for a later gzip member at first; it doubles until the member ends. zlib copies the input behind the end of a
member, so windows that held all of the rest would make many small members cost quadratic time."""
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_STEP_BYTES = 1 << 20
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_RLE_BLOCK = 1
_ZSTD_WINDOW_KEPT_BYTES = 8 << 20
"""The largest window of a context that is kept for the next frame: a context holds the window of its last frame for
good."""


class _Contexts(threading.local):
    def __init__(self) -> None:
        self.zstd_compressors: dict[int, zstandard.ZstdCompressor] = {}
        self.zstd_decompressor = zstandard.ZstdDecompressor()


_contexts = _Contexts()


def compress(codec: Codec, data: Body, level: int | None = None) -> bytes:
    """Compress `data` in the framing that Kafka's clients read. `level` None is the codec's default; snappy has no
    levels.
    """
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            stream = zlib.compressobj(GZIP_LEVEL if level is None else level, zlib.DEFLATED, _GZIP_WBITS)
            return stream.compress(data) + stream.flush()
        case Codec.SNAPPY:
            return _compress_xerial(data)
        case Codec.LZ4:
            return _compress_lz4(data, LZ4_LEVEL if level is None else level)
        case Codec.ZSTD:
            return _zstd_compressor(ZSTD_LEVEL if level is None else level).compress(data)


def decompress(codec: Codec, data: Body, *, bytes_max: int) -> bytes:
    """Decompress `data` to at most `bytes_max` bytes, from at most as many pieces as `Allowance.of_bytes` allows.

    Raises DecompressedTooLargeError (a CodecError; TooManyPiecesError if it is for the pieces) as soon as it knows that
    there would be more, and CodecError when the input is cut short, damaged, or has bytes behind it that belong to
    nothing.
    """
    return unfold(codec, data, Allowance.of_bytes(bytes_max))


def unfold(codec: Codec, data: Body, allowance: Allowance) -> bytes:
    """As `decompress`, within an allowance that several calls may share."""
    match codec:
        case Codec.NONE:
            if len(data) > allowance.bytes_left:
                raise _too_large(codec, allowance.bytes_left)
            allowance.bytes_left -= len(data)
            return bytes(data)
        case Codec.GZIP:
            return _decompress_gzip(data, allowance)
        case Codec.SNAPPY:
            return _decompress_snappy(data, allowance)
        case Codec.LZ4:
            return _decompress_lz4(data, allowance)
        case Codec.ZSTD:
            return _decompress_zstd(data, allowance)


def _too_large(codec: Codec, bytes_max: int) -> DecompressedTooLargeError:
    return DecompressedTooLargeError(f"{codec.name.lower()} data unfolds to more than {bytes_max} bytes")


# gzip


def _decompress_gzip(data: Body, allowance: Allowance) -> bytes:
    view = memoryview(data)
    parts: list[bytes] = []
    bytes_max = allowance.bytes_left
    position, end = 0, len(view)
    # The first member, which as a rule is the only one, gets all of the input at once.
    stream, window_bytes = zlib.decompressobj(_GZIP_WBITS), end
    allowance.take_piece(Codec.GZIP)
    while position < end or not stream.eof:
        if stream.eof:
            stream, window_bytes = zlib.decompressobj(_GZIP_WBITS), _GZIP_WINDOW_BYTES
            allowance.take_piece(Codec.GZIP)
        if position == end:
            raise CodecError("gzip data is cut short")
        piece = view[position : position + window_bytes]
        left = allowance.bytes_left
        # Taken before, given back after: nobody knows how far zlib got when it found damage.
        allowance.bytes_left = 0
        try:
            # One byte more than is allowed tells "just fits" from "too much". zlib grows its buffer as output comes,
            # so a large bound costs nothing by itself.
            part = stream.decompress(piece, left + 1)
        except zlib.error as error:
            raise CodecError(f"gzip data is damaged: {error}") from error
        if len(part) > left:
            raise _too_large(Codec.GZIP, bytes_max)
        parts.append(part)
        allowance.bytes_left = left - len(part)
        position += len(piece) - len(stream.unused_data)
        window_bytes *= 2
    return parts[0] if len(parts) == 1 else b"".join(parts)


# snappy


def _compress_xerial(data: Body) -> bytes:
    view = memoryview(data)
    parts: list[bytes] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_I32.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: Body, allowance: Allowance) -> bytes:
    view = memoryview(data)
    bytes_max = allowance.bytes_left
    if len(view) < len(_XERIAL_HEADER) or bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _decompress_snappy_block(view, allowance, bytes_max)
    blocks: list[bytes] = []
    position, end = len(_XERIAL_HEADER), len(view)
    while position < end:
        if end - position < _I32.size:
            raise CodecError("snappy data is cut short inside a block length")
        (length,) = _I32.unpack_from(view, position)
        position += _I32.size
        if not 0 < length <= end - position:
            raise CodecError(f"a snappy block says it has {length} bytes, but only {end - position} are left")
        blocks.append(_decompress_snappy_block(view[position : position + length], allowance, bytes_max))
        position += length
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def _decompress_snappy_block(block: memoryview, allowance: Allowance, bytes_max: int) -> bytes:
    allowance.take_piece(Codec.SNAPPY)
    try:
        claimed = cramjam.snappy.decompress_raw_len(block)  # the block's own claim; the decoder holds it to that
        if claimed > allowance.bytes_left:
            raise _too_large(Codec.SNAPPY, bytes_max)
        allowance.bytes_left -= claimed
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CodecError(f"snappy data is damaged: {error}") from error


# lz4


class _Lz4Stream(Protocol):
    """The methods of `lz4.frame.LZ4FrameDecompressor` that are used here; the library has no types."""

    eof: bool
    needs_input: bool
    unused_data: bytes | None

    def decompress(self, data: Body, max_length: int = -1) -> bytes: ...


_lz4_compress = cast("Callable[..., bytes]", lz4.frame.compress)  # pyright: ignore[reportUnknownMemberType]
_lz4_stream = cast("Callable[[], _Lz4Stream]", lz4.frame.LZ4FrameDecompressor)
_LZ4_BLOCK_64_KIB = 4


def _compress_lz4(data: Body, level: int) -> bytes:
    return _lz4_compress(
        data, compression_level=level, block_size=_LZ4_BLOCK_64_KIB, block_linked=False, store_size=False
    )


def _check_lz4_frame(view: memoryview) -> None:
    """Refuse the frames that Java's Lz4BlockInputStream refuses; the library verifies the checksums."""
    if len(view) < 7 or bytes(view[:4]) != _LZ4_MAGIC:
        raise CodecError("lz4 data does not begin with a frame")
    flags, block_code = view[4], view[5] >> 4 & 0x07
    if flags >> 6 != 1:
        raise CodecError(f"lz4 frame version {flags >> 6} is not known")
    if not flags & 0x20:
        raise CodecError("lz4 blocks depend on each other, which Kafka's readers refuse")
    if flags & 0x01:
        raise CodecError("lz4 data needs a dictionary")
    if block_code < 4:
        raise CodecError(f"lz4 block size code {block_code} is not assigned")


def _decompress_lz4(data: Body, allowance: Allowance) -> bytes:
    view = memoryview(data)
    _check_lz4_frame(view)
    stream = _lz4_stream()
    steps: list[bytes] = []
    bytes_max = allowance.bytes_left
    rest: Body = view
    try:
        while True:
            left = allowance.bytes_left
            # Taken before, given back after, as for gzip.
            allowance.bytes_left = max(left - _LZ4_STEP_BYTES, 0)
            step = stream.decompress(rest, max_length=min(left + 1, _LZ4_STEP_BYTES))
            if len(step) > left:
                raise _too_large(Codec.LZ4, bytes_max)
            allowance.bytes_left = left - len(step)
            steps.append(step)
            if stream.eof:
                break
            if stream.needs_input:
                raise CodecError("lz4 data is cut short")
            # The library keeps the input that it has not used; given again, it would be read twice.
            rest = b""
    except (RuntimeError, EOFError) as error:
        raise CodecError(f"lz4 data is damaged: {error}") from error
    if stream.unused_data:
        raise CodecError("bytes follow the lz4 frame")
    return steps[0] if len(steps) == 1 else b"".join(steps)


# zstd


def _zstd_compressor(level: int) -> zstandard.ZstdCompressor:
    compressor = _contexts.zstd_compressors.get(level)
    if compressor is None:
        compressor = _contexts.zstd_compressors[level] = zstandard.ZstdCompressor(level=level)
    return compressor


def _decompress_zstd(data: Body, allowance: Allowance) -> bytes:
    bytes_max = allowance.bytes_left
    whole = _one_zstd_frame(data, bytes_max)
    if not isinstance(whole, int):
        allowance.bytes_left -= len(whole)
        return whole
    try:
        return _decompress_zstd_frames(memoryview(data), allowance, bytes_max)
    except CodecError:
        allowance.bytes_left = min(allowance.bytes_left, bytes_max - whole)
        raise


def _decompress_zstd_frames(view: memoryview, allowance: Allowance, bytes_max: int) -> bytes:
    frames: list[bytes] = []
    while True:
        try:
            frame = _zstd_frame(view, allowance)
            content = _decompress_zstd_frame(frame, allowance)
        except zstandard.ZstdError as error:
            raise CodecError(f"zstd data is damaged: {error}") from error
        if content is None:
            raise _too_large(Codec.ZSTD, bytes_max)
        frames.append(content)
        view = view[frame.pieces[-1][1] :]
        if not view:
            return frames[0] if len(frames) == 1 else b"".join(frames)


def _one_zstd_frame(data: Body, bytes_max: int) -> bytes | int:
    """The content of `data` if it is one frame that tells its size, as producers write it.

    A number stands for everything else, errors too, of which the walk over blocks finds the reason: how many bytes were
    unfolded in vain, at most.
    """
    # The library takes the size of a frame that is to be skipped for a size of content.
    if bytes(data[:4]) != _ZSTD_MAGIC:
        return 0
    said = 0
    try:
        parameters = zstandard.get_frame_parameters(data)
        # An unknown size is above every bound. Of a frame without content the library looks at the header only.
        if not 0 < parameters.content_size <= bytes_max or parameters.window_size > _ZSTD_WINDOW_KEPT_BYTES:
            return 0
        said = parameters.content_size
        # The library refuses content that differs from the size, and, asked to, bytes behind the frame.
        return _contexts.zstd_decompressor.decompress(data, allow_extra_data=False)
    except zstandard.ZstdError:
        return said


class _ZstdFrame(NamedTuple):
    view: memoryview
    pieces: list[tuple[int, int]]
    """(start, end) of each block, the first with the frame's header, the last with its checksum."""
    window_bytes: int
    content_bytes: int
    """-1 when the frame does not say."""


def _zstd_frame(view: memoryview, allowance: Allowance) -> _ZstdFrame:
    """Find the blocks of the first frame in `view` (RFC 8878 section 3.1.1), so that the caller can feed one at a time:
    one block unfolds to 128 KiB at most, but a kibibyte of input may hold 256 of them.
    """
    allowance.take_piece(Codec.ZSTD)
    if bytes(view[:4]) != _ZSTD_MAGIC:
        raise CodecError("zstd data does not begin with a frame")
    parameters = zstandard.get_frame_parameters(view)
    position, end = zstandard.frame_header_size(view), len(view)
    pieces: list[tuple[int, int]] = []
    start, is_last = 0, False
    while not is_last:
        allowance.take_piece(Codec.ZSTD)
        if end - position < 3:
            raise CodecError("zstd data is cut short")
        block_header = view[position] | view[position + 1] << 8 | view[position + 2] << 16
        is_last, kind, size = block_header & 1 == 1, block_header >> 1 & 3, block_header >> 3
        # A run-length block has one byte of input, whatever size it unfolds to.
        position += 3 + (1 if kind == _ZSTD_RLE_BLOCK else size)
        # The checksum goes to the decoder with the last block, or it would wait for more input.
        if is_last and parameters.has_checksum:
            position += 4
        if position > end:
            raise CodecError("zstd data is cut short")
        pieces.append((start, position))
        start = position
    content_bytes: int = zstandard.frame_content_size(view)
    return _ZstdFrame(view, pieces, parameters.window_size, content_bytes)


def _decompress_zstd_frame(frame: _ZstdFrame, allowance: Allowance) -> bytes | None:
    """The frame's content, or None when it is larger than what is left."""
    # Only a claim, but the library refuses content that differs from it, so it is enough to look here.
    if frame.content_bytes > allowance.bytes_left:
        return None
    context = (
        zstandard.ZstdDecompressor() if frame.window_bytes > _ZSTD_WINDOW_KEPT_BYTES else _contexts.zstd_decompressor
    )
    if frame.content_bytes >= 0:
        allowance.bytes_left -= frame.content_bytes
        return context.decompress(frame.view[: frame.pieces[-1][1]])
    stream = context.decompressobj()
    steps: list[bytes] = []
    for start, end in frame.pieces:
        step = stream.decompress(frame.view[start:end])
        if len(step) > allowance.bytes_left:
            allowance.bytes_left = 0
            return None
        allowance.bytes_left -= len(step)
        steps.append(step)
    if not stream.eof:
        raise CodecError("zstd data is cut short")
    return b"".join(steps)
