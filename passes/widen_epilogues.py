# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-widen-epilogues: what follows a contraction is computed in f32 throughout.

Why: PyTorch's operators round their results to bf16 or f16, and so does the IR after each of them.
Where they are fused into the epilogue of a contraction the values never leave registers, so those
roundings in between only cost time and accuracy: a bias that is added to a rounded product gives
1.4 times the error of one that is added to the sum, which is how cuBLAS does it. Fused kernels of
`torch.compile` keep f32 in the same way. A result is rounded once, when it is stored; an overflow
of f16 in between does not become an infinity.

Before::

    shapejit.gemm .. epilogue {
    ^bb0(%sum: f32, %bias: bf16):
      %0 = arith.truncf %sum : f32 to bf16
      %1 = arith.extf %0 : bf16 to f32
      %2 = arith.extf %bias : bf16 to f32
      %3 = arith.addf %1, %2 : f32
      %4 = arith.truncf %3 : f32 to bf16
      shapejit.yield %4 : bf16
    }

After::

    shapejit.gemm .. epilogue {
    ^bb0(%sum: f32, %bias: bf16):
      %2 = arith.extf %bias : bf16 to f32
      %3 = arith.addf %sum, %2 : f32
      %4 = arith.truncf %3 : f32 to bf16
      shapejit.yield %4 : bf16
    }

Only contractions are changed. Loops of their own are as exact as PyTorch's operators are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shapejit import ir as sir
from shapejit.pass_host import Pass, register_pass

_CONTRACTIONS = ("shapejit.conv", "shapejit.gemm")


def _rounding_before(op: Any) -> Any | None:
    """The ``arith.truncf`` whose value an ``arith.extf`` widens again to the type before."""
    if op.name != "arith.extf":
        return None
    source = sir.defining_op(op.operands[0])
    if source is None or source.name != "arith.truncf":
        return None
    return source if source.operands[0].type == op.results[0].type else None


def _widen(contraction: Any) -> None:
    """Takes the roundings out of a contraction's epilogue that nothing but f32 arithmetic sees."""
    roundings: dict[int, Any] = {}
    for op in list(sir.walk(contraction)):
        rounding = _rounding_before(op)
        if rounding is not None:
            op.results[0].replace_all_uses_with(rounding.operands[0])
            op.erase()
            roundings[sir.key(rounding)] = rounding
    for rounding in roundings.values():
        if not list(rounding.results[0].uses):
            rounding.erase()


@register_pass("shapejit-widen-epilogues")
@dataclass(frozen=True)
class WidenEpilogues(Pass):
    """Compute the epilogues of contractions without rounding in between."""

    def run(self, module: Any) -> None:
        contractions = [op for op in sir.walk(module) if op.name in _CONTRACTIONS]
        for op in contractions:
            _widen(op)
