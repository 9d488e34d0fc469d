# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The PTX that only products of float32 need, each instruction a function; see `nvgpu.ptx`."""

from __future__ import annotations

from collections.abc import Sequence

from mlir.dialects import arith, llvm

from shapejit.passes.nvgpu.builder import Num, Type, Value, i32, integer, struct_of
from shapejit.passes.nvgpu.ptx import assembly

_WIDE, _SINGLE = 16, 4


def copy_elements(target: Value, offset: int, source: Value, bytes_: Value, width: int) -> None:
    """Starts to copy f32 of global memory to shared memory.

    Args:
        target: shared address, i32; the copy goes ``offset`` bytes further.
        source: address, i64, a multiple of the width; not looked at when no bytes are read.
        bytes_: how many are read, i32; the rest is zero.
        width: bytes that are written: 16, past the first-level cache, or 4.
    """
    way = {_WIDE: "cg", _SINGLE: "ca"}[width]
    text = f"cp.async.{way}.shared.global [$0+{offset}], [$1], {width}, $2;"
    assembly(None, text, "r,l,r,~{memory}", [target, source, bytes_], pure=False)


# PTX's name and LLVM's register constraint of an element of so many bits.
_WORDS = {16: ("b16", "h"), 32: ("b32", "r")}


def _tests(at_once: str, singly: str) -> list[str]:
    """Predicates: ``w`` for all four, ``s0`` to ``s3`` for each."""
    lines = ["{ .reg .pred w, s0, s1, s2, s3;", f"setp.ge.s32 w, {at_once}, 4;"]
    return [*lines, *(f"setp.gt.s32 s{i}, {singly}, {i};" for i in range(4))]


def load_four(type_: Type, address: Num, at_once: Value, singly: Value) -> list[Value]:
    """Four neighbours of global memory, 0 where they are not asked for.

    Predicated, without a branch, so that loads of several quads are on their way together.

    Args:
        type_: of 16 or 32 bits.
        address: i64.
        at_once: i32; from 4 on, all are loaded by one instruction, for which the address is
            aligned.
        singly: i32; how many of them are loaded one by one.
    """
    bits = int(type_.width)
    name, constraint = _WORDS[bits]
    words = [f"${i}" for i in range(4)]
    lines = [f"mov.{name} {word}, 0;" for word in words]
    lines += _tests("$5", "$6")
    lines.append(f"@w ld.global.v4.{name} {{{', '.join(words)}}}, [$4];")
    lines += [
        f"@s{i} ld.global.{name} {word}, [$4+{i * bits // 8}];" for i, word in enumerate(words)
    ]
    constraints = ",".join([f"=&{constraint}"] * 4 + ["l", "r", "r", "~{memory}"])
    struct = struct_of(integer(bits), 4)
    text = " ".join([*lines[4:5], *lines[:4], *lines[5:], "}"])
    loaded = assembly(struct, text, constraints, [address, at_once, singly], pure=False)
    found = [llvm.extractvalue(integer(bits), loaded, [i]) for i in range(4)]
    return found if type_ == integer(bits) else [arith.bitcast(type_, word) for word in found]


def store_four(address: Value, words: Sequence[Value], at_once: Value, singly: Value) -> None:
    """Stores four neighbours, i16 or i32, to global memory; see `load_four`."""
    bits = int(words[0].type.width)
    name, constraint = _WORDS[bits]
    places = [f"${i}" for i in range(1, 5)]
    lines = _tests("$5", "$6")
    lines.append(f"@w st.global.v4.{name} [$0], {{{', '.join(places)}}};")
    lines += [
        f"@s{i} st.global.{name} [$0+{i * bits // 8}], {word};" for i, word in enumerate(places)
    ]
    constraints = ",".join(["l", *[constraint] * 4, "r", "r", "~{memory}"])
    operands = [address, *words, at_once, singly]
    assembly(None, " ".join([*lines, "}"]), constraints, operands, pure=False)


def as_words(numbers: Sequence[Value]) -> list[Value]:
    """f32 as i32."""
    return [arith.bitcast(i32(), number) for number in numbers]
