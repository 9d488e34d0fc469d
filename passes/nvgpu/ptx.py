# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The PTX that no op of NVGPU or NVVM gives, each instruction a function.

All inline assembly of the emitters is here. Functions whose text has no effect but its results are
marked pure, so that LLVM may move, merge and drop them.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir
from mlir.dialects import arith, llvm

from shapejit.passes.nvgpu.builder import (
    Num,
    Type,
    Value,
    constant,
    f32,
    i32,
    i64,
    integer,
    struct_of,
    value,
)


def assembly(
    result: Type | None, text: str, constraints: str, operands: Sequence[Value], *, pure: bool
) -> Value:
    """Inline assembly; operands are ``$0``, ``$1``, .. after the results."""
    attributes = {
        "asm_string": ir.StringAttr.get(text),
        "constraints": ir.StringAttr.get(constraints),
        "asm_dialect": ir.IntegerAttr.get(i64(), 0),
    }
    if not pure:
        attributes["has_side_effects"] = ir.UnitAttr.get()
    results = [] if result is None else [result]
    made = ir.Operation.create(
        "llvm.inline_asm", results=results, operands=list(operands), attributes=attributes
    )
    return made if result is None else made.result


def _pure_f32(text: str, *operands: Value) -> Value:
    constraints = ",".join(["=f", *["f"] * len(operands)])
    return assembly(f32(), text, constraints, operands, pure=True)


# Arithmetic ---------------------------------------------------------------------------------------


def exp2(number: Value) -> Value:
    """2 to the power of an f32, within 2 ulp; subnormal results are kept."""
    return _pure_f32("ex2.approx.f32 $0, $1;", number)


def exp2_flushed(number: Value) -> Value:
    """The same in one instruction: subnormal numbers count as 0."""
    return _pure_f32("ex2.approx.ftz.f32 $0, $1;", number)


def reciprocal_flushed(number: Value) -> Value:
    """1 over an f32 within 1 ulp, in one instruction: subnormal numbers count as 0."""
    return _pure_f32("rcp.approx.ftz.f32 $0, $1;", number)


def divide(numerator: Value, denominator: Value) -> Value:
    """An f32 quotient within 2 ulp; 0 when the denominator is above 2^126."""
    return _pure_f32("div.full.f32 $0, $1, $2;", numerator, denominator)


def reciprocal_root(number: Value) -> Value:
    """1 / sqrt of an f32, relative error at most 2^-22.9."""
    return _pure_f32("rsqrt.approx.f32 $0, $1;", number)


def square_root(number: Value) -> Value:
    """The square root of an f32, rounded to nearest."""
    return _pure_f32("sqrt.rn.f32 $0, $1;", number)


def fused(lhs: Value, rhs: Value, addend: Value) -> Value:
    """``lhs * rhs + addend`` of f32, rounded once."""
    return _pure_f32("fma.rn.f32 $0, $1, $2, $3;", lhs, rhs, addend)


def magnitude(number: Value) -> Value:
    """The absolute value of an f32."""
    return _pure_f32("abs.f32 $0, $1;", number)


def minus_magnitude(number: Value) -> Value:
    """The absolute value of an f32, negated: like it, part of an instruction that takes it."""
    return _pure_f32("{ .reg .f32 size; abs.f32 size, $1; neg.f32 $0, size; }", number)


def with_sign(number: Value, sign: Value) -> Value:
    """An f32 with the sign of another."""
    return _pure_f32("copysign.f32 $0, $1, $2;", sign, number)


def rounded(number: Value, mode: str) -> Value:
    """An f32 rounded to an integer: ``rn`` nearest even, ``rz`` to zero, ``rm`` down, ``rp`` up."""
    return _pure_f32(f"cvt.{mode}i.f32.f32 $0, $1;", number)


def minimum(lhs: Value, rhs: Value) -> Value:
    """The lesser of two f32, NaN if one is."""
    return _pure_f32("min.NaN.f32 $0, $1, $2;", lhs, rhs)


def maximum(lhs: Value, rhs: Value) -> Value:
    """The greater of two f32, NaN if one is."""
    return _pure_f32("max.NaN.f32 $0, $1, $2;", lhs, rhs)


# Packed halves ------------------------------------------------------------------------------------


def half_name(element: Type) -> str:
    """``bf16`` or ``f16``."""
    return "bf16" if isinstance(element, ir.BF16Type) else "f16"


def pack_halves(low: Value, high: Value, element: Type) -> Value:
    """Two f32, rounded to nearest even, as the halves of an i32; ``low`` comes first in memory."""
    text = f"cvt.rn.{half_name(element)}x2.f32 $0, $1, $2;"
    return assembly(i32(), text, "=r,f,f", [high, low], pure=True)


def unpack_halves(word: Value, element: Type) -> tuple[Value, Value]:
    """Two 16-bit elements of an i32 as f32."""
    if isinstance(element, ir.BF16Type):
        low = arith.shli(word, constant(16))
        high = arith.andi(word, constant(-(1 << 16)))
        return arith.bitcast(f32(), low), arith.bitcast(f32(), high)

    def extended(bits: Value) -> Value:
        return arith.extf(f32(), arith.bitcast(element, arith.trunci(integer(16), bits)))

    return extended(word), extended(arith.shrui(word, constant(16)))


def round_to_half(number: Value, element: Type) -> Value:
    """An f32 rounded to a 16-bit type, as f32.

    Through a packed pair: of conversions to 16-bit registers ptxas 13.0 moves some up between the
    products of an accumulator, and then serialises them (C7514).
    """
    return unpack_halves(pack_halves(number, constant(0.0, f32()), element), element)[0]


def transpose_halves(matrix: Value) -> Value:
    """An 8 x 8 matrix of 16-bit elements, two a lane as in a fragment, transposed in the warp."""
    text = "movmatrix.sync.aligned.m8n8.trans.b16 $0, $1;"
    return assembly(i32(), text, "=r,r", [matrix], pure=False)


# Registers ----------------------------------------------------------------------------------------


def unknown(number: Value) -> Value:
    """The same i32, of which LLVM does not know that it is.

    What is computed from it stays where it is used: LLVM would else compute addresses once, outside
    of the loop over tiles, and keep them in registers that the sums need.
    """
    return assembly(i32(), "mov.b32 $0, $1;", "=r,r", [number], pure=False)


# 64-bit words -------------------------------------------------------------------------------------


def join_words(low: Value, high: Num) -> Value:
    """The i64 of two i32.

    Wgmma descriptors are made so: ptxas 13.0 loses the upper half of a 64-bit sum of a descriptor
    and a loop's offset, so offsets are added to the lower half alone.
    """
    return assembly(i64(), "mov.b64 $0, {$1, $2};", "=l,r,r", [low, value(high)], pure=True)


# Barriers -----------------------------------------------------------------------------------------


def complete_bytes(barrier: Value, bytes_: Num) -> None:
    """Counts bytes as arrived on an mbarrier at a shared address."""
    text = "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [$0], $1;"
    assembly(None, text, "r,r,~{memory}", [barrier, value(bytes_)], pure=False)


# Shared memory of a cluster -----------------------------------------------------------------------


def peer_address(address: Value, rank: Value) -> Value:
    """Where what is at a shared address, i32, is in the CTA of a rank of the cluster."""
    text = "mapa.shared::cluster.u32 $0, $1, $2;"
    return assembly(i32(), text, "=r,r,r", [address, rank], pure=True)


def store_to_peer(address: Value, offset: int, words: Sequence[Value], barrier: Value) -> None:
    """Stores four f32 in the shared memory of a CTA of the cluster, which counts as 16 bytes on an
    mbarrier of that CTA. It is seen by who waits there by `await_peers`, and may happen any time.

    Args:
        address, barrier: i32, as `peer_address` gives them.
        offset: bytes further.
    """
    text = (
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
        f"[$0+{offset}], {{$1,$2,$3,$4}}, [$5];"
    )
    assembly(None, text, "r,f,f,f,f,r,~{memory}", [address, *words, barrier], pure=False)


def await_peers(barrier: Value, parity: Value) -> None:
    """Waits until an mbarrier at a shared address has left a phase; what CTAs of the cluster
    reported there is then visible.

    Args:
        barrier, parity: i32.
    """
    text = (
        "{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 "
        "p, [$0], $1, 10000000; @!p bra AGAIN; }"
    )
    assembly(None, text, "r,r,~{memory}", [barrier, parity], pure=False)


# Tensor maps in global memory ---------------------------------------------------------------------


def replace_map_address(map_: Value, address: Value, condition: Value) -> None:
    """Sets what the tensor map at an i64 address describes, i64, where the condition holds."""
    text = "@$2 tensormap.replace.tile.global_address.global.b1024.b64 [$0], $1;"
    assembly(None, text, "l,l,b,~{memory}", [map_, address, condition], pure=False)


def replace_map_dim(map_: Value, dim: int, size: Value, condition: Value) -> None:
    """Sets the size, i32, of a dim of a tensor map, from the fastest moving one on."""
    text = f"@$2 tensormap.replace.tile.global_dim.global.b1024.b32 [$0], {dim}, $1;"
    assembly(None, text, "l,r,b,~{memory}", [map_, size, condition], pure=False)


def replace_map_stride(map_: Value, dim: int, pitch: Value, condition: Value) -> None:
    """Sets the stride in bytes, i64, of a dim after the first, which has none; they count from 0.

    Older versions of ptxas than are supported here took sixteenths of it. All strides of a map
    share a word, which this reads and writes.
    """
    text = f"@$2 tensormap.replace.tile.global_stride.global.b1024.b64 [$0], {dim}, $1;"
    assembly(None, text, "l,l,b,~{memory}", [map_, pitch, condition], pure=False)


# Global memory ------------------------------------------------------------------------------------


def load_relaxed(address: Value, bytes_: int) -> Value:
    """A word of 4 or 8 bytes of global memory, not from the first-level cache: as kernels before
    this one left it, or what came with a flag that was awaited."""
    if bytes_ == 8:
        return assembly(i64(), "ld.relaxed.gpu.global.u64 $0, [$1];", "=l,l", [address], pure=False)
    return assembly(i32(), "ld.relaxed.gpu.global.u32 $0, [$1];", "=r,l", [address], pure=False)


# PTX's name and LLVM's register constraint of the words that a type is loaded as, by its bytes.
_WORDS = {1: ("u8", "h"), 2: ("b16", "h"), 4: ("b32", "r"), 8: ("b64", "l")}


def load_if(type_: Type, address: Num, offset: int, condition: Value | None = None) -> Value:
    """What is at an i64 address and a constant offset in bytes; 0 where the condition fails.

    A predicated load is no branch, and threads beyond the edges read nothing.

    Args:
        type_: of 1, 2, 4 or 8 bytes, integer or float.
    """
    bytes_ = int(type_.width) // 8
    name, constraint = _WORDS[bytes_]
    word = integer(max(8 * bytes_, 16))
    if condition is None:
        text = f"ld.global.{name} $0, [$1+{offset}];"
        loaded = assembly(word, text, f"={constraint},l", [address], pure=False)
    else:
        clear = f"mov.b{word.width} $0, 0;"
        text = f"{clear} @$2 ld.global.{name} $0, [$1+{offset}];"
        operands = [address, condition]
        loaded = assembly(word, text, f"=&{constraint},l,b", operands, pure=False)
    if bytes_ == 1:
        return arith.trunci(type_, loaded)
    return loaded if loaded.type == type_ else arith.bitcast(type_, loaded)


def load_pair_if(type_: Type, address: Num, offset: int, condition: Value) -> list[Value]:
    """Two neighbours at an aligned address, 0 where the condition fails.

    Returns:
        Two of 16 bits as one i32, the first one in the lower half; two of 32 bits each.
    """
    where = f"[$%d+{offset}]"
    if int(type_.width) == 16:
        text = f"mov.b32 $0, 0; @$2 ld.global.b32 $0, {where % 1};"
        return [assembly(i32(), text, "=&r,l,b", [address, condition], pure=False)]
    text = f"mov.b32 $0, 0; mov.b32 $1, 0; @$3 ld.global.v2.b32 {{$0, $1}}, {where % 2};"
    words = assembly(struct_of(i32(), 2), text, "=&r,=&r,l,b", [address, condition], pure=False)
    found = [llvm.extractvalue(i32(), words, [i]) for i in range(2)]
    return found if type_ == i32() else [arith.bitcast(type_, word) for word in found]


def store_quad(address: Value, offset: int, words: Sequence[Value]) -> None:
    """Four f32 to global memory, kept in the second-level cache only.

    Args:
        address: i64.
        offset: bytes further. Part of the instruction: as a sum it would take a register.
    """
    text = f"st.global.cg.v4.f32 [$0+{offset}], {{$1,$2,$3,$4}};"
    assembly(None, text, "l,f,f,f,f,~{memory}", [address, *words], pure=False)


def load_quad(address: Value, offset: int) -> list[Value]:
    """Four f32 of global memory, past the first-level cache; see `store_quad`."""
    text = f"ld.global.cg.v4.f32 {{$0,$1,$2,$3}}, [$4+{offset}];"
    constraints = "=f,=f,=f,=f,l,~{memory}"
    words = assembly(struct_of(f32(), 4), text, constraints, [address], pure=False)
    return [llvm.extractvalue(f32(), words, [i]) for i in range(4)]


def load_shared(address: Value, offset: int, count: int) -> list[Value]:
    """One or four neighbouring i32 at a shared address, i32, ``offset`` bytes further."""
    names = ",".join(f"${number}" for number in range(count))
    kind, target = (f"v{count}.b32", f"{{{names}}}") if count > 1 else ("b32", names)
    text = f"ld.shared.{kind} {target}, [${count}+{offset}];"
    constraints = ",".join([*["=r"] * count, "r", "~{memory}"])
    if count == 1:
        return [assembly(i32(), text, constraints, [address], pure=False)]
    words = assembly(struct_of(i32(), count), text, constraints, [address], pure=False)
    return [llvm.extractvalue(i32(), words, [i]) for i in range(count)]


def load_matrices(address: Value, offset: int, count: int, *, transposed: bool) -> list[Value]:
    """Two or four 8 x 8 matrices of 16-bit elements in shared memory, two a lane as in a fragment.

    The op of NVVM is no assembly, and is not kept in its place between waits and releases.

    Args:
        address: of a line of 16 bytes, i32: the lanes' lines are those of the matrices.
        offset: bytes further.
    """
    names = ",".join(f"${number}" for number in range(count))
    kind = f"x{count}.trans" if transposed else f"x{count}"
    text = f"ldmatrix.sync.aligned.m8n8.{kind}.shared.b16 {{{names}}}, [${count}+{offset}];"
    constraints = ",".join([*["=r"] * count, "r", "~{memory}"])
    words = assembly(struct_of(i32(), count), text, constraints, [address], pure=False)
    return [llvm.extractvalue(i32(), words, [i]) for i in range(count)]


def store_shared(address: Value, offset: int, words: Sequence[Value]) -> None:
    """Four i32 to a shared address, i32, ``offset`` bytes further."""
    text = f"st.shared.v4.b32 [$0+{offset}], {{$1,$2,$3,$4}};"
    assembly(None, text, "r,r,r,r,r,~{memory}", [address, *words], pure=False)


def raise_flag(address: Value) -> None:
    """Publishes what the CTA wrote (after a barrier of the writers) by a flag of 1."""
    text = "st.release.gpu.global.u32 [$0], $1;"
    assembly(None, text, "l,r,~{memory}", [address, value(1)], pure=False)


def await_flag(address: Value) -> None:
    """Spins until the flag is not 0; what its raiser published is then visible."""
    text = (
        "{ .reg .pred p; .reg .u32 r; AGAIN: ld.acquire.gpu.global.u32 r, [$0]; "
        "setp.eq.u32 p, r, 0; @p bra AGAIN; }"
    )
    assembly(None, text, "l,~{memory}", [address], pure=False)


def lower_flag(address: Value) -> None:
    """Sets the flag to 0 for the next launch."""
    text = "st.relaxed.gpu.global.u32 [$0], $1;"
    assembly(None, text, "l,r,~{memory}", [address, value(0)], pure=False)
