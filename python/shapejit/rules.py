# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rules for operators of one's own: how shapejit compiles what PyTorch does not know.

An operator that was made with `torch.library` is one call in an exported model. A rule says what
it computes, as a loop over symbolic sizes with a scalar body, and then it fuses into its neighbours
as every other operator does::

    from shapejit.rules import Context, Tensor, rule


    @rule("mylib.snake")
    def _snake(ctx: Context, x: Tensor, alpha: float) -> Tensor:
        ops = ctx.ops

        def body(v):
            wave = ops.math("math.sin", ops.mul(v, ops.const(alpha, v.dtype)))
            return ops.add(v, ops.div(ops.mul(wave, wave), ops.const(alpha, v.dtype)))

        return ctx.pointwise(body, x)

The page docs/custom-ops.md goes through it.
"""

from __future__ import annotations

from shapejit.importer.builder import Builder, Read, Write
from shapejit.importer.context import Context, UnsupportedCaseError, dim_index, dim_list
from shapejit.importer.registry import rule
from shapejit.importer.scalar_ops import Scalar, ScalarOps
from shapejit.importer.values import Tensor
from shapejit.symbolic import Expr

__all__ = [
    "Builder",
    "Context",
    "Expr",
    "Read",
    "Scalar",
    "ScalarOps",
    "Tensor",
    "UnsupportedCaseError",
    "Write",
    "dim_index",
    "dim_list",
    "rule",
]
