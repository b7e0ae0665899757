"""Reads and writes at addresses, for kernels. Nothing here checks a bound: every caller has checked its own.

Numbers are big-endian, as on the wire, unless the name says `le`. Numbers of up to 32 bits come as int64, those of 64
bits as they are, because numba makes a float of the sum of an int64 and a uint64. Addresses are int64 and need no
alignment. Arguments are converted to the types named here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir as _untyped_ir  # pyright: ignore[reportMissingTypeStubs] -- ships no types
from numba.core import types as _untyped_types  # pyright: ignore[reportMissingTypeStubs]

from wire.kernels.compiled import inlined, intrinsic

ir = cast(Any, _untyped_ir)
types = cast(Any, _untyped_types)

Emit = Callable[..., Any]

_LITTLE_ENDIAN_HOST = np.little_endian


@inlined
def to_int(number: np.integer[Any]) -> int:
    """An int64 of the same bits, for sums with other int64."""
    return np.int64(number)  # pyright: ignore[reportReturnType] -- what numba calls an int


def swapped(builder: Any, value: Any) -> Any:
    """The bytes of an integer in the other order."""
    if value.type.width == 8:
        return value
    swap = builder.module.declare_intrinsic("llvm.bswap", [value.type])
    return builder.call(swap, [value])


def pointer_to(builder: Any, address: Any, element: Any) -> Any:
    return builder.inttoptr(address, element.as_pointer())


def _load(bits: int, result: Any, *, signed: bool = False, big_endian: bool = True) -> Emit:
    def emit(typing_context: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = builder.load(pointer_to(builder, arguments[0], ir.IntType(bits)), align=1)
            if big_endian == _LITTLE_ENDIAN_HOST:
                value = swapped(builder, value)
            if bits == 64:
                return value
            return (builder.sext if signed else builder.zext)(value, ir.IntType(64))

        return result(types.int64), codegen

    return emit


def _store(bits: int, taken: Any, *, big_endian: bool = True) -> Emit:
    def emit(typing_context: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            stored = arguments[1] if bits == 64 else builder.trunc(arguments[1], ir.IntType(bits))
            if big_endian == _LITTLE_ENDIAN_HOST:
                stored = swapped(builder, stored)
            builder.store(stored, pointer_to(builder, arguments[0], ir.IntType(bits)), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, taken), codegen

    return emit


def _reads(address: int) -> int: ...  # pyright: ignore[reportReturnType] -- a signature


def _reads_u64(address: int) -> np.uint64: ...  # pyright: ignore[reportReturnType] -- a signature


def _writes(address: int, value: int) -> None: ...


def _writes_u64(address: int, value: np.uint64) -> None: ...


def _touches(address: int) -> None: ...


def _copies(target: int, source: int, bytes_count: int) -> None: ...


load_u8 = intrinsic(_reads)(_load(8, types.int64))
load_i16 = intrinsic(_reads)(_load(16, types.int64, signed=True))
load_i32 = intrinsic(_reads)(_load(32, types.int64, signed=True))
load_u32 = intrinsic(_reads)(_load(32, types.int64))
load_i64 = intrinsic(_reads)(_load(64, types.int64))
load_u64 = intrinsic(_reads_u64)(_load(64, types.uint64))
load_u32_le = intrinsic(_reads)(_load(32, types.int64, big_endian=False))
load_i64_le = intrinsic(_reads)(_load(64, types.int64, big_endian=False))
load_u64_le = intrinsic(_reads_u64)(_load(64, types.uint64, big_endian=False))

store_u8 = intrinsic(_writes)(_store(8, types.int64))
store_i16 = intrinsic(_writes)(_store(16, types.int64))
store_i32 = intrinsic(_writes)(_store(32, types.int64))
store_i64 = intrinsic(_writes)(_store(64, types.int64))
store_u32_le = intrinsic(_writes)(_store(32, types.int64, big_endian=False))
store_u64_le = intrinsic(_writes_u64)(_store(64, types.uint64, big_endian=False))


def _prefetch(*, for_writing: bool) -> Emit:
    def emit(typing_context: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            byte, number = ir.IntType(8), ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), number, number, number])
            call = builder.module.declare_intrinsic("llvm.prefetch", [byte.as_pointer()], kind)
            written, keep_near, data = number(int(for_writing)), number(3), number(1)
            builder.call(call, [pointer_to(builder, arguments[0], byte), written, keep_near, data])
            return context.get_dummy_value()

        return types.void(types.int64), codegen

    return emit


prefetch = intrinsic(_touches)(_prefetch(for_writing=True))
"""Prefetch the cache line of an address that will be written soon; harmless whatever the address."""
prefetch_read = intrinsic(_touches)(_prefetch(for_writing=False))
"""Prefetch the cache line of an address that will be read soon."""


@intrinsic(_copies)
def copy_bytes(typing_context: Any, target: Any, source: Any, bytes_count: Any) -> Any:
    """memmove: the two may overlap."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, size = ir.IntType(8), ir.IntType(64)
        pointer = byte.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, pointer, size, ir.IntType(1)])
        call = builder.module.declare_intrinsic("llvm.memmove", [pointer, pointer, size], kind)
        to, at, count = arguments
        places = [pointer_to(builder, place, byte) for place in (to, at)]
        builder.call(call, [*places, count, ir.IntType(1)(0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen
