"""The rounds of SHA-512/256 (FIPS 180-4) for kernels: over a block of one message, and over a block of each of several.

Several messages lie in the lanes of the processor's vectors: message i in lane i, one vector for each variable of the
algorithm. The 80 rounds are emitted as one straight run of LLVM code over such vectors, which LLVM turns into AVX-512,
AVX2, SSE2 or NEON instructions; a compiler does not find that form in a loop over messages. SHA-512/256 is SHA-512 with
other starting values, cut to four words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.kernels.compiled import compiled, cpu_features, inlined, intrinsic
from wire.kernels.memory import ir, pointer_to, types

BLOCK_WORDS = 16
BLOCK_BYTES = 128
STATE_WORDS = 8
DIGEST_WORDS = 4
ROUNDS = 80
_WORD_MASK = 2**64 - 1

STARTS = (
    0x22312194FC2BF72C,
    0x9F555FA3C84C64C2,
    0x2393B86B6F53B151,
    0x963877195940EABD,
    0x96283EE2A88EFFE3,
    0xBE5E1E2553863992,
    0x2B0199FC2C85B8AA,
    0x0EB72DDC81C52CA2,
)
"""The starting values of SHA-512/256 (FIPS 180-4, 5.3.6.2)."""


def _cube_root_fractions(count: int) -> tuple[int, ...]:
    """The first 64 bits of the fractional parts of the cube roots of the first primes (FIPS 180-4, 4.2.3)."""
    primes: list[int] = []
    number = 2
    while len(primes) < count:
        if all(number % prime for prime in primes):
            primes.append(number)
        number += 1
    return tuple(_cube_root(prime << 192) & _WORD_MASK for prime in primes)


def _cube_root(number: int) -> int:
    """The largest integer whose cube is not above `number`."""
    low, high = 0, 1 << (number.bit_length() // 3 + 1)
    while low < high:
        middle = (low + high + 1) // 2
        if middle**3 <= number:
            low = middle
        else:
            high = middle - 1
    return low


ROUND_CONSTANTS = _cube_root_fractions(ROUNDS)


def _lanes() -> int:
    """The number of messages at once that is quickest on this processor (docs/decisions/0010-numba-kernels.md)."""
    features = cpu_features()
    return 8 if "avx512f" in features else 4 if "avx2" in features else 2


LANES = _lanes()


# Several messages


class _Vectors:
    """The algorithm's functions over vectors, emitted where `builder` stands."""

    def __init__(self, builder: Any, lanes: int) -> None:
        self.builder = builder
        self.kind = ir.VectorType(ir.IntType(64), lanes)
        self._lanes = lanes
        # The name is spelled out because llvmlite does not know that of a vector.
        rotate = ir.FunctionType(self.kind, [self.kind] * 3)
        name = f"llvm.fshr.v{lanes}i64"
        self._rotate = builder.module.globals.get(name) or ir.Function(builder.module, rotate, name)

    def constant(self, value: int) -> Any:
        return ir.Constant(self.kind, [value] * self._lanes)

    def sum(self, *terms: Any) -> Any:
        total = terms[0]
        for term in terms[1:]:
            total = self.builder.add(total, term)
        return total

    def _rotated(self, word: Any, bits: int) -> Any:
        return self.builder.call(self._rotate, [word, word, self.constant(bits)])

    def rotations(self, word: Any, first: int, second: int, third: int) -> Any:
        xor = self.builder.xor
        return xor(xor(self._rotated(word, first), self._rotated(word, second)), self._rotated(word, third))

    def rotations_and_shift(self, word: Any, first: int, second: int, shift: int) -> Any:
        xor, shifted = self.builder.xor, self.builder.lshr(word, self.constant(shift))
        return xor(xor(self._rotated(word, first), self._rotated(word, second)), shifted)

    def choice(self, which: Any, one: Any, other: Any) -> Any:
        # The same as (which & one) | (~which & other), with one operation less.
        return self.builder.xor(other, self.builder.and_(which, self.builder.xor(one, other)))

    def majority(self, one: Any, two: Any, three: Any) -> Any:
        either = self.builder.and_(three, self.builder.or_(one, two))
        return self.builder.or_(self.builder.and_(one, two), either)


def _emit_rounds(vectors: _Vectors, words: Sequence[Any]) -> list[Any]:
    """The eight variables after all rounds over a block of 16 words, added to the starts."""
    schedule = list(words)
    starts = [vectors.constant(value) for value in STARTS]
    a, b, c, d, e, f, g, h = starts
    for at in range(ROUNDS):
        if at >= BLOCK_WORDS:
            near = vectors.rotations_and_shift(schedule[at - 2], 19, 61, 6)
            far = vectors.rotations_and_shift(schedule[at - 15], 1, 8, 7)
            schedule.append(vectors.sum(near, schedule[at - 7], far, schedule[at - 16]))
        keyed = vectors.sum(schedule[at], vectors.constant(ROUND_CONSTANTS[at]))
        first = vectors.sum(h, keyed, vectors.choice(e, f, g), vectors.rotations(e, 14, 18, 41))
        second = vectors.sum(vectors.rotations(a, 28, 34, 39), vectors.majority(a, b, c))
        a, b, c, d, e, f, g, h = vectors.sum(first, second), a, b, c, vectors.sum(d, first), e, f, g
    return [vectors.sum(after, start) for after, start in zip((a, b, c, d, e, f, g, h), starts, strict=True)]


def _hashes(words: int, digests: int) -> None: ...


def rounds_over(lanes: int) -> Any:
    """An intrinsic (address of words, address of digests) -> None over `lanes` blocks, one of each message.

    It reads word j of message i at [j * lanes + i] of 16 * lanes numbers of 64 bits in the machine's order, and writes
    word j of its digest likewise, of 4.
    """

    @intrinsic(_hashes)
    def rounds(typing_context: Any, words: Any, digests: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            vectors = _Vectors(builder, lanes)
            read, written = (pointer_to(builder, address, vectors.kind) for address in arguments)

            def at(start: Any, index: int) -> Any:
                return builder.gep(start, [ir.Constant(ir.IntType(64), index)], source_etype=vectors.kind)

            block = [builder.load(at(read, index), align=8) for index in range(BLOCK_WORDS)]
            for index, word in enumerate(_emit_rounds(vectors, block)[:DIGEST_WORDS]):
                builder.store(word, at(written, index), align=8)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return rounds


hash_blocks = rounds_over(LANES)
"""One block of each of `LANES` messages, as `rounds_over` says; only kernels can call it."""


# One message

_STARTS: NDArray[np.uint64] = np.array(STARTS, dtype=np.uint64)
_ROUND_CONSTANTS: NDArray[np.uint64] = np.array(ROUND_CONSTANTS, dtype=np.uint64)


@inlined
def _rotated(word: np.uint64, bits: int) -> np.uint64:
    return word >> np.uint64(bits) | word << np.uint64(64 - bits)


@compiled
def start(state: NDArray[np.uint64]) -> None:
    """Set `state`, eight words, to that of an empty message."""
    for at in range(STATE_WORDS):
        state[at] = _STARTS[at]


@compiled
def hash_block(block: NDArray[np.uint64], state: NDArray[np.uint64]) -> None:
    """Add one more block of a message, 16 words, to its state; the block is overwritten."""
    a, b, c, d = state[0], state[1], state[2], state[3]
    e, f, g, h = state[4], state[5], state[6], state[7]
    for at in range(ROUNDS):
        # The schedule needs only the last 16 words, so it runs around in the block.
        place = at & 15
        if at >= BLOCK_WORDS:
            near, far = block[(at - 2) & 15], block[(at - 15) & 15]
            near = _rotated(near, 19) ^ _rotated(near, 61) ^ near >> np.uint64(6)
            far = _rotated(far, 1) ^ _rotated(far, 8) ^ far >> np.uint64(7)
            block[place] += near + block[(at - 7) & 15] + far
        choice = g ^ (e & (f ^ g))
        majority = (a & b) | (c & (a | b))
        first = h + block[place] + _ROUND_CONSTANTS[at] + choice
        first += _rotated(e, 14) ^ _rotated(e, 18) ^ _rotated(e, 41)
        second = (_rotated(a, 28) ^ _rotated(a, 34) ^ _rotated(a, 39)) + majority
        a, b, c, d, e, f, g, h = first + second, a, b, c, d + first, e, f, g
    state[0] += a
    state[1] += b
    state[2] += c
    state[3] += d
    state[4] += e
    state[5] += f
    state[6] += g
    state[7] += h
