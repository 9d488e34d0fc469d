# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-round-factors: says which products of float32 may round their factors to tf32.

Why: PyTorch has a setting for products of matrices and one for convolutions, and later passes make
products of convolutions (1x1 ones, gathered pixels, Winograd's algorithm). So each operation is
told, while it is still known what it was, and what is made of it inherits that.

Before::

    %y = shapejit.conv over [..] input(%x ..) weight(%w ..) -> #y : tensor<..xf32, ..>
    %z = shapejit.gemm over [..] lhs(%y ..) rhs(%v ..) -> tensor<..xf32, ..>

After, with ``convolutions``::

    %y = shapejit.conv over [..] .. {shapejit.factors = tf32} -> #y : tensor<..xf32, ..>
    %z = shapejit.gemm over [..] lhs(%y ..) rhs(%v ..) -> tensor<..xf32, ..>
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.pass_host import Pass, option, register_pass
from shapejit.passes.analysis.precision import let_round


@register_pass("shapejit-round-factors")
@dataclass(frozen=True)
class RoundFactors(Pass):
    """Let products of float32 round their factors to tf32."""

    products: bool = option(False, help="products of matrices")
    convolutions: bool = option(False, help="convolutions")

    def run(self, module: Any) -> None:
        rounded = {"shapejit.gemm": self.products, "shapejit.conv": self.convolutions}
        for function in sir.functions(module):
            for op in sir.operations(sir.body(function)):
                if rounded.get(op.name, False) and _multiplies_float32(op):
                    let_round(op)


def _multiplies_float32(op: Any) -> bool:
    return all(isinstance(v.type.element_type, ir.F32Type) for v in list(op.operands)[:2])
