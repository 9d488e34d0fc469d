# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Neighbouring elements of global memory, loaded and stored at once under a condition.

A predicated access is no branch, so those of a whole tile are on their way together, and threads
beyond the edges of an image touch nothing. Not by ``ld.global.nc``: a kernel that starts early runs
while what it will read is written.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir
from mlir.dialects import arith, llvm

from shapejit.passes.nvgpu import ptx
from shapejit.passes.nvgpu.builder import Type, Value, f32, i32, struct_of
from shapejit.passes.nvgpu.memory import bytes_of
from shapejit.passes.nvgpu.problem import is_half

_WORD, _MOST_WORDS = 4, 4


def load_numbers(
    address: Value, offset: int, count: int, element: Type, condition: Value | None = None
) -> list[Value]:
    """Some elements, f16, bf16 or f32, in f32; zeros where the condition fails.

    Args:
        address: i64.
        offset: bytes further, part of the instruction.
        count: 1, 2, 4 or 8; the address is a multiple of their bytes, or of 16.
        condition: i1; None holds always.
    """
    return numbers_in(load_words(address, offset, count, element, condition), count, element)


def load_words(
    address: Value, offset: int, count: int, element: Type, condition: Value | None = None
) -> list[Value]:
    """The same as i32, of which each has two elements of 16 bits; a single one is the low half."""
    bytes_ = count * bytes_of(element)
    if bytes_ < _WORD:
        return [_load(address, offset, 1, "u16", condition)]
    words: list[Value] = []
    for first in range(0, bytes_ // _WORD, _MOST_WORDS):
        part = min(bytes_ // _WORD - first, _MOST_WORDS)
        loaded = _load(address, offset + _WORD * first, part, "b32", condition)
        if part == 1:
            return [loaded]
        words += [llvm.extractvalue(i32(), loaded, [number]) for number in range(part)]
    return words


def numbers_in(words: Sequence[Value], count: int, element: Type) -> list[Value]:
    """The elements in words, in f32."""
    if not is_half(element):
        return [arith.bitcast(f32(), word) for word in words]
    numbers = [each for word in words for each in ptx.unpack_halves(word, element)]
    return numbers[:count]


def _load(address: Value, offset: int, count: int, kind: str, condition: Value | None) -> Value:
    """Words of a type of PTX, no wider than the registers; a struct if there are several."""
    outs = [f"${number}" for number in range(count)]
    target = outs[0] if count == 1 else f"{{{', '.join(outs)}}}"
    vector = f"v{count}." if count > 1 else ""
    text = f"ld.global.{vector}{kind} {target}, [${count}+{offset}];"
    operands = [address]
    if condition is None:
        constraints = ["=r"] * count + ["l"]
    else:
        zeros = " ".join(f"mov.b32 {out}, 0;" for out in outs)
        text = f"{zeros} @${count + 1} {text}"
        constraints = ["=&r"] * count + ["l", "b"]
        operands.append(condition)
    made = i32() if count == 1 else struct_of(i32(), count)
    return ptx.assembly(made, text, ",".join(constraints), operands, pure=False)


def store_numbers(
    address: Value,
    offset: int,
    numbers: Sequence[Value],
    element: Type,
    condition: Value | None = None,
) -> None:
    """Stores some f32 as f16, bf16 (rounded to nearest even) or f32 where the condition holds.

    Args:
        address, offset, condition: as of `load_numbers`.
        numbers: 1, 2, 4 or 8.
    """
    if not is_half(element):
        words = [arith.bitcast(i32(), number) for number in numbers]
    elif len(numbers) == 1:
        word = ptx.pack_halves(numbers[0], numbers[0], element)
        _store(address, offset, [word], "b16", condition)
        return
    else:
        words = [
            ptx.pack_halves(numbers[number], numbers[number + 1], element)
            for number in range(0, len(numbers), 2)
        ]
    for first in range(0, len(words), _MOST_WORDS):
        part = words[first : first + _MOST_WORDS]
        _store(address, offset + _WORD * first, part, "b32", condition)


def _store(
    address: Value, offset: int, words: Sequence[Value], kind: str, condition: Value | None
) -> None:
    """Stores i32 words, or the lower half of one."""
    count = len(words)
    names = [f"${1 + number}" for number in range(count)]
    source = names[0] if count == 1 else f"{{{', '.join(names)}}}"
    vector = f"v{count}." if count > 1 else ""
    text = f"st.global.{vector}{kind} [$0+{offset}], {source};"
    constraints, operands = ["l", *["r"] * count], [address, *words]
    if condition is not None:
        text = f"@${1 + count} {text}"
        constraints.append("b")
        operands.append(condition)
    ptx.assembly(None, text, ",".join([*constraints, "~{memory}"]), operands, pure=False)


def is_float(element: Type) -> bool:
    """Whether `load_numbers` and `store_numbers` take a type."""
    return is_half(element) or isinstance(element, ir.F32Type)
