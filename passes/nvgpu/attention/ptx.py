# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The PTX that only attention needs, each instruction a function; see `nvgpu.ptx`."""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir
from mlir.dialects import llvm

from shapejit.passes.nvgpu.builder import Type, Value, f32, i32, i64, struct_of, value
from shapejit.passes.nvgpu.ptx import assembly, half_name
from shapejit.passes.nvgpu.wgmma import DEPTH, ROWS

# Copies ------------------------------------------------------------------------------------------


def copy_line(target: Value, offset: int, source: Value, bytes_: Value) -> None:
    """Starts to copy 16 bytes of global memory to shared memory, past the first-level cache.

    Args:
        target: shared address, i32; the copy goes ``offset`` bytes further.
        source: address, i64, a multiple of 16; not looked at when no bytes are read.
        bytes_: how many are read, i32; the rest is zero.
    """
    text = f"cp.async.cg.shared.global [$0+{offset}], [$1], 16, $2;"
    assembly(None, text, "r,l,r,~{memory}", [target, source, bytes_], pure=False)


def commit_copies() -> None:
    """Closes the copies that this thread started as a group."""
    assembly(None, "cp.async.commit_group;", "~{memory}", [], pure=False)


def await_copies(pending: int) -> None:
    """Waits until at most so many of this thread's groups are on their way."""
    assembly(None, f"cp.async.wait_group {pending};", "~{memory}", [], pure=False)


# Warps -------------------------------------------------------------------------------------------


def ballot(number: Value) -> Value:
    """Which lanes of the warp have a number (i32) other than 0: bit i for lane i."""
    text = "{ .reg .pred p; setp.ne.b32 p, $1, 0; vote.sync.ballot.b32 $0, p, -1; }"
    return assembly(i32(), text, "=r,r", [number], pure=False)


def synchronize_warp() -> None:
    """Makes what the warp's lanes wrote visible to each other."""
    assembly(None, "bar.warp.sync -1;", "~{memory}", [], pure=False)


def load_words(address: Value) -> list[Value]:
    """Four i32 at a shared address, i32."""
    text = "ld.shared.v4.b32 {$0,$1,$2,$3}, [$4];"
    words = assembly(struct_of(i32(), 4), text, "=r,=r,=r,=r,r,~{memory}", [address], pure=False)
    return [llvm.extractvalue(i32(), words, [i]) for i in range(4)]


def store_words(address: Value, words: Sequence[Value]) -> None:
    """Four i32 to an address in global memory, i64."""
    text = "st.global.v4.b32 [$0], {$1,$2,$3,$4};"
    assembly(None, text, "l,r,r,r,r,~{memory}", [address, *words], pure=False)


def store_halves(address: Value, offset: int, words: Sequence[Value]) -> None:
    """One or two i32 to global memory, ``offset`` bytes past an i64 address."""
    count = len(words)
    names = ",".join(f"${number + 1}" for number in range(count))
    kind, source = (f"v{count}.b32", f"{{{names}}}") if count > 1 else ("b32", names)
    text = f"st.global.{kind} [$0+{offset}], {source};"
    constraints = ",".join(["l", *["r"] * count, "~{memory}"])
    assembly(None, text, constraints, [address, *words], pure=False)


def store_pair(address: Value, offset: int, first: Value, second: Value) -> None:
    """Two f32 to global memory, kept in the second-level cache; `offset` bytes past an address."""
    text = f"st.global.cg.v2.f32 [$0+{offset}], {{$1,$2}};"
    assembly(None, text, "l,f,f,~{memory}", [address, first, second], pure=False)


def load_pair(address: Value) -> tuple[Value, Value]:
    """Two f32 of global memory, past the first-level cache."""
    text = "ld.global.cg.v2.f32 {$0,$1}, [$2];"
    words = assembly(struct_of(f32(), 2), text, "=f,=f,l,~{memory}", [address], pure=False)
    first, second = (llvm.extractvalue(f32(), words, [i]) for i in range(2))
    return first, second


def count_up(address: Value) -> Value:
    """Adds 1 to a counter in global memory, by one thread; what it was before, i32.

    What the CTA wrote before (after a barrier of its threads) is published by it; and what those
    published that have counted before is visible after it (and a barrier).
    """
    text = "fence.acq_rel.gpu; atom.add.acq_rel.gpu.global.u32 $0, [$1], $2;"
    return assembly(i32(), text, "=r,l,r,~{memory}", [address, value(1)], pure=False)


def keep_branch() -> None:
    """Nothing, in a branch that LLVM shall not turn into selects."""
    assembly(None, "// branch", "~{memory}", [], pure=False)


def compute_now(number: Value) -> None:
    """Computes an f32 that is never negative here, not later: ptxas moves what is before a wait for
    products after it, but not over a branch."""
    text = "{ .reg .pred p; setp.lt.f32 p, $0, 0f00000000; @p nanosleep.u32 1; }"
    assembly(None, text, "f,~{memory}", [number], pure=False)


def keep_rolled() -> None:
    """At the start of a loop's body: the loop is rarely run, and shall not be unrolled."""
    assembly(None, '.pragma "nounroll";', "~{memory}", [], pure=False)


# Products ----------------------------------------------------------------------------------------
#
# A product's sums stay in plain registers, not in NVVM's struct: the softmax works on some while
# the tensor cores have others. `await_products` ties the registers in and out, so that nothing that
# reads them is moved before it.


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


def global_address(pointer: Value) -> Value:
    """A pointer as an i64."""
    return llvm.ptrtoint(i64(), pointer)
