# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""wgmma as inline assembly, with sums in plain registers and maybe a factor in registers.

NVVM's op has its sums in a struct and both factors in shared memory. Here they are registers, so
that arithmetic works on some while the tensor cores have others. `await_products` ties the
registers in and out, so that nothing that reads them is moved before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir
from mlir.dialects import llvm

from shapejit.passes.nvgpu.builder import Type, Value, f32, struct_of
from shapejit.passes.nvgpu.ptx import assembly, half_name
from shapejit.passes.nvgpu.wgmma import DEPTH, ROWS

# Elements of K that a product of tf32 takes.
_TF32_DEPTH = 8


def _registers(first: int, count: int) -> str:
    return "{" + ",".join(f"${number}" for number in range(first, first + count)) + "}"


def _unpack(sums: Value, count: int) -> list[Value]:
    return [llvm.extractvalue(f32(), sums, [i]) for i in range(count)]


def _block(lines: Sequence[str]) -> str:
    """Products that are started together."""
    head = (
        "{ .reg .b64 a, b; .reg .b32 t; .reg .pred zero, one;"
        " setp.ne.b32 zero, 0, 0; setp.eq.b32 one, 0, 0;"
    )
    fence, commit = "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned; }"
    return "\n".join([head, fence, *lines, commit])


def _descriptor(name: str, low: int, offset: int, high: int) -> str:
    """A descriptor of two operands: offsets are added to the lower half, see `ptx.join_words`."""
    return f"add.u32 t, ${low}, {offset}; mov.b64 {name}, {{t, ${high}}};"


def multiply_shared(
    element: Type,
    columns: int,
    rows: tuple[Value, Value],
    other: tuple[Value, Value],
    offsets: Sequence[tuple[int, int]],
) -> list[Value]:
    """Starts a product of 64 rows by ``columns``, both in shared memory with K contiguous.

    Args:
        element: bf16 or f16.
        columns: N.
        rows, other: lower and upper halves of the descriptors, i32.
        offsets: of every 16 elements of K, what is added to the lower halves.

    Returns:
        The sums, f32, of a fragment (see `wgmma.Fragment`), to be awaited.
    """
    count, half = columns // 2, half_name(element)
    name = f"wgmma.mma_async.sync.aligned.m{ROWS}n{columns}k{DEPTH}.f32.{half}.{half}"
    lines = []
    for number, (a, b) in enumerate(offsets):
        lines.append(_descriptor("a", count, a, count + 1))
        lines.append(_descriptor("b", count + 2, b, count + 3))
        start = "one" if number else "zero"
        lines.append(f"{name} {_registers(0, count)}, a, b, {start}, 1, 1, 0, 0;")
    constraints = ",".join(["=f"] * count + ["r"] * 4)
    type_ = struct_of(f32(), count)
    sums = assembly(type_, _block(lines), constraints, [*rows, *other], pure=False)
    return _unpack(sums, count)


def multiply_registers(
    element: Type,
    sums: Sequence[Value],
    factors: Sequence[Value],
    other: tuple[Value, Value],
    step: int,
) -> list[Value]:
    """Starts to add a product of 64 rows in registers by columns in shared memory, N contiguous.

    Args:
        element: bf16 or f16.
        sums: f32, two a column; they are added to.
        factors: pairs of elements, i32: four a thread for every 16 elements of K.
        other: lower and upper half of the descriptor of the columns, i32.
        step: what 16 elements of K add to the lower half.

    Returns:
        The sums, to be awaited.
    """
    count, pairs, half = len(sums), len(factors), half_name(element)
    name = f"wgmma.mma_async.sync.aligned.m{ROWS}n{2 * count}k{DEPTH}.f32.{half}.{half}"
    low, high = 2 * count + pairs, 2 * count + pairs + 1
    lines = []
    for number in range(pairs // 4):
        lines.append(_descriptor("b", low, number * step, high))
        part = _registers(2 * count + 4 * number, 4)
        lines.append(f"{name} {_registers(0, count)}, {part}, b, one, 1, 1, 1;")
    ties = [str(number) for number in range(count)]
    constraints = ",".join(["=f"] * count + ties + ["r"] * (pairs + 2))
    operands = [*sums, *factors, *other]
    type_ = struct_of(f32(), count)
    return _unpack(assembly(type_, _block(lines), constraints, operands, pure=False), count)


def multiply_in_two_parts(
    columns: int,
    rows: Sequence[Value],
    lower_rows: Sequence[Value],
    other: tuple[Value, Value],
    lower_other: tuple[Value, Value],
    step: int,
) -> list[Value]:
    """Starts a product of float32 factors, each the sum of two of tf32, but for the lower parts'.

    The smaller terms are summed first, while the sums are small.

    Args:
        columns: N.
        rows: bits of the rows' upper parts, i32, four a thread for every 8 elements of K.
        lower_rows: of their lower parts, of which the tensor cores cut off what tf32 has not.
        other: lower and upper half of the descriptor of the columns' upper parts, i32.
        lower_other: of their lower parts.
        step: what 8 elements of K add to the lower halves.

    Returns:
        The sums, f32, of a fragment (see `wgmma.Fragment`), to be awaited.
    """
    count, words = columns // 2, len(rows)
    name = f"wgmma.mma_async.sync.aligned.m{ROWS}n{columns}k{_TF32_DEPTH}.f32.tf32.tf32"
    first, second = count, count + words
    descriptor, lower = second + words, second + words + 2
    lines = []
    for factors, low in ((second, descriptor), (first, lower), (first, descriptor)):
        for number in range(words // 4):
            lines.append(_descriptor("b", low, number * step, low + 1))
            part = _registers(factors + 4 * number, 4)
            start = "one" if lines[1:] else "zero"
            lines.append(f"{name} {_registers(0, count)}, {part}, b, {start}, 1, 1;")
    constraints = ",".join(["=f"] * count + ["r"] * (2 * words + 4))
    operands = [*rows, *lower_rows, *other, *lower_other]
    type_ = struct_of(f32(), count)
    return _unpack(assembly(type_, _block(lines), constraints, operands, pure=False), count)


def await_products(
    pending: int, sums: Sequence[Value], before: Sequence[Value] = ()
) -> tuple[list[Value], list[Value]]:
    """Waits until at most so many groups of products are in flight.

    Args:
        pending: groups.
        sums: what has arrived then.
        before: words, i32, that are computed before the wait, not after it.

    Returns:
        The same sums and words, after the wait.
    """
    count, words = len(sums), len(before)
    results = ["=f"] * count + ["=r"] * words
    ties = [str(number) for number in range(count + words)]
    text = f"wgmma.wait_group.sync.aligned {pending};"
    types = ", ".join(["f32"] * count + ["i32"] * words)
    type_ = ir.Type.parse(f"!llvm.struct<({types})>")
    constraints = ",".join([*results, *ties, "~{memory}"])
    waited = assembly(type_, text, constraints, [*sums, *before], pure=False)
    after = [
        llvm.extractvalue(each.type, waited, [number])
        for number, each in enumerate([*sums, *before])
    ]
    return after[:count], after[count:]
