# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Loads and stores of neighbouring elements in global memory, and loads from shared memory.

Up to 16 bytes go in one instruction. The instructions are inline assembly that LLVM leaves where it
is: what may be loaded early is decided by the emitters, and a load under a condition is no branch.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir
from mlir.dialects import arith, llvm

from shapejit.passes.nvgpu import ptx
from shapejit.passes.nvgpu.builder import (
    Num,
    Type,
    Value,
    constant,
    i32,
    integer,
    or_,
    shl,
    shr,
    struct_of,
    value,
)
from shapejit.passes.nvgpu.memory import bytes_of
from shapejit.passes.nvgpu.problem import is_half

MAX_BYTES = 16

# PTX's name and LLVM's register constraint of words by their bytes; 1 byte is moved in 2.
_WORDS = {1: ("u8", "h"), 2: ("b16", "h"), 4: ("b32", "r"), 8: ("b64", "l")}


def _pieces(element: Type, count: int) -> list[tuple[int, int, int]]:
    """How so many elements are moved: offset in bytes, bytes of a word and words, a piece each."""
    total, width = count * bytes_of(element), bytes_of(element)
    found, start = [], 0
    while start < total:
        piece = min(MAX_BYTES, total - start)
        word = 8 if width == 8 else min(piece, 4)
        found.append((start, word, piece // word))
        start += piece
    return found


def load(
    address: Value, offset: int, element: Type, count: int, condition: Value | None = None
) -> list[Value]:
    """Neighbouring elements, in their compute type; zeros where the condition fails.

    Args:
        address: i64, in global memory, or i32, in shared memory; with the offset a multiple of all
            bytes, or of 16.
        offset: bytes further.
        element: their type.
        count: how many, a power of 2.
        condition: i1.
    """
    words: list[Value] = []
    for start, bytes_, number in _pieces(element, count):
        words += _load_words(address, offset + start, bytes_, number, condition)
    return [value for word in words for value in _unpacked(word, element, count)][:count]


def _load_words(
    address: Value, offset: int, bytes_: int, count: int, condition: Value | None
) -> list[Value]:
    name, register = _WORDS[bytes_]
    type_ = integer(max(8 * bytes_, 16))
    targets = [f"${number}" for number in range(count)]
    vector = f"{{{', '.join(targets)}}}" if count > 1 else targets[0]
    suffix = f".v{count}" if count > 1 else ""
    space, kind = ("shared", "r") if address.type == i32() else ("global", "l")
    text = f"ld.{space}{suffix}.{name} {vector}, [${count}+{offset}];"
    operands = [address]
    constraints = [f"={register}"] * count + [kind]
    if condition is not None:
        clear = " ".join(f"mov.b{type_.width} {target}, 0;" for target in targets)
        text = f"{clear} @${count + 1} {text}"
        constraints = [f"=&{register}"] * count + [kind, "b"]
        operands.append(condition)
    result = type_ if count == 1 else struct_of(type_, count)
    loaded = ptx.assembly(result, text, ",".join(constraints), operands, pure=False)
    if bytes_ == 1:
        return [arith.trunci(integer(8), loaded)]
    if count == 1:
        return [loaded]
    return [llvm.extractvalue(type_, loaded, [number]) for number in range(count)]


def fetch(address: Value, offset: int, bytes_: Num, condition: Value) -> None:
    """Has memory brought to the second-level cache if a condition holds; nothing waits for it.

    Args:
        address: i64, in global memory; with the offset a multiple of 16.
        offset: bytes further.
        bytes_: how many, i32, a multiple of 16 and not 0.
        condition: i1.
    """
    text = f"@$2 cp.async.bulk.prefetch.L2.global [$0+{offset}], $1;"
    operands = [address, value(bytes_), condition]
    ptx.assembly(None, text, "l,r,b", operands, pure=False)


def copy_to_shared(
    target: Value, address: Value, offset: int, bytes_: Num, barrier: Value, condition: Value
) -> None:
    """Starts a copy to shared memory if a condition holds; the bytes are counted on an mbarrier.

    Args:
        target: i32, in shared memory, a multiple of 16.
        address: i64, in global memory; with the offset a multiple of 16.
        offset: bytes further.
        bytes_: how many, i32, a multiple of 16 and not 0.
        barrier: i32, in shared memory.
        condition: i1.
    """
    name = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    text = f"@$4 {name} [$0], [$1+{offset}], $2, [$3];"
    operands = [target, address, value(bytes_), barrier, condition]
    ptx.assembly(None, text, "r,l,r,r,b,~{memory}", operands, pure=False)


def _unpacked(word: Value, element: Type, count: int) -> list[Value]:
    """The elements of a loaded word, in their compute type."""
    width, bits = bytes_of(element), int(word.type.width)
    if is_half(element):
        if bits == 32:
            return list(ptx.unpack_halves(word, element))
        if isinstance(element, ir.BF16Type):
            shifted = arith.shli(arith.extui(i32(), word), constant(16))
            return [arith.bitcast(ir.F32Type.get(), shifted)]
        return [arith.extf(ir.F32Type.get(), arith.bitcast(element, word))]
    parts = [word]
    if bits > 8 * width:
        type_ = integer(8 * width)
        parts = [arith.trunci(type_, shr(word, 8 * width * i)) for i in range(bits // 8 // width)]
    return [_computed(part, element) for part in parts]


def _computed(stored: Value, element: Type) -> Value:
    if not isinstance(element, ir.IntegerType):
        return arith.bitcast(element, stored)
    if element.width == 1:
        return arith.cmpi(arith.CmpIPredicate.ne, stored, constant(0, stored.type))
    return stored


def store(
    address: Value,
    offset: int,
    values: Sequence[Value],
    element: Type,
    condition: Value | None = None,
) -> None:
    """Stores neighbouring elements, rounded to nearest even; see `load`."""
    parts = _packed(values, element)
    done = 0
    for start, _, count in _pieces(element, len(values)):
        _store_words(address, offset + start, parts[done : done + count], condition)
        done += count


def _packed(values: Sequence[Value], element: Type) -> list[Value]:
    """Elements in their compute type as the words that `_pieces` moves."""
    width, count = bytes_of(element), len(values)
    if is_half(element):
        pairs = [
            ptx.pack_halves(values[i], values[min(i + 1, count - 1)], element)
            for i in range(0, count, 2)
        ]
        return pairs if count > 1 else [arith.trunci(integer(16), pairs[0])]
    stored = [_stored(each, element) for each in values]
    word = min(4, width * count)
    if width >= 4 or word == width:
        return stored
    each = word // width
    return [_joined(stored[i : i + each], integer(8 * word)) for i in range(0, count, each)]


def _stored(computed: Value, element: Type) -> Value:
    if not isinstance(element, ir.IntegerType):
        return arith.bitcast(integer(8 * bytes_of(element)), computed)
    return arith.extui(integer(8), computed) if element.width == 1 else computed


def _joined(parts: Sequence[Value], type_: Type) -> Value:
    """Small integers side by side, the first one lowest."""
    width = int(parts[0].type.width)
    word = arith.extui(type_, parts[0])
    for number, part in enumerate(parts[1:], 1):
        word = or_(word, shl(arith.extui(type_, part), width * number))
    return word


def _store_words(
    address: Value, offset: int, words: Sequence[Value], condition: Value | None
) -> None:
    bits = int(words[0].type.width)
    name, register = _WORDS[bits // 8]
    if bits == 8:
        words = [arith.extui(integer(16), word) for word in words]
    count = len(words)
    sources = [f"${number + 1}" for number in range(count)]
    vector = f"{{{', '.join(sources)}}}" if count > 1 else sources[0]
    suffix = f".v{count}" if count > 1 else ""
    guard = f"@${count + 1} " if condition is not None else ""
    text = f"{guard}st.global{suffix}.{name} [$0+{offset}], {vector};"
    operands = [address, *words, *([] if condition is None else [condition])]
    constraints = ["l", *[register] * count, *(["b"] if condition is not None else [])]
    ptx.assembly(None, text, ",".join([*constraints, "~{memory}"]), operands, pure=False)
