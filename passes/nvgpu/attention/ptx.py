# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The PTX that only attention needs, each instruction a function; see `nvgpu.ptx`."""

from __future__ import annotations

from collections.abc import Sequence

from mlir.dialects import llvm

from shapejit.passes.nvgpu.builder import Value, f32, i32, i64, struct_of, value
from shapejit.passes.nvgpu.ptx import assembly

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


def global_address(pointer: Value) -> Value:
    """A pointer as an i64."""
    return llvm.ptrtoint(i64(), pointer)
