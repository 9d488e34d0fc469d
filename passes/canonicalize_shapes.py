# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-canonicalize-shapes: equal problems get one spelling.

Why: kernels are built once for each distinct text, and ops fuse when they run over the same space.
Both fail when one size has two names, when a dim of size one is present in one op and absent in
the next, or when a linear layer runs over `[batch, sequence]` where the next runs over their
product.

Before::

    %y = shapejit.gemm over [s0, s1, 384, 384]
        lhs(%x at affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)> : tensor<..[s0, s1, 384]..>)
        rhs(%t at affine_map<(d0, d1, d2, d3) -> (d3, d2)> : ..) -> tensor<..[s0, s1, 384]..>

with `%t` the transpose of `%w`. After::

    %x2 = shapejit.view %x at affine_map<(d0, d1)[s0, s1] -> (d0 floordiv s1, d0 mod s1, d1)>
        : tensor<..[s0, s1, 384]..> -> tensor<..[s0 * s1, 384]..>
    %y2 = shapejit.gemm over [s0 * s1, 384, 384]
        lhs(%x2 at affine_map<(d0, d1, d2) -> (d0, d2)> : tensor<..[s0 * s1, 384]..>)
        rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : ..) -> tensor<..[s0 * s1, 384]..>
    %y = shapejit.view %y2 at affine_map<(d0, d1, d2)[s0, s1] -> (d0 * s1 + d1, d2)>
        : tensor<..[s0 * s1, 384]..> -> tensor<..[s0, s1, 384]..>

In this order:

1. a symbol that equals an earlier one is replaced by it, and sizes and maps are simplified within
   the ranges of the symbols;
2. views fold (see ``shapejit-fold-views``), transposes of weights among them: what follows looks
   at who reads whom;
3. a convolution that is a product of matrices becomes a gemm (`convolutions`, `transposed`), others
   read images whose channels are last;
4. dims of size one leave the spaces of loops and the batch dims of gemms;
5. loops take the layout of what they read (`layouts`): channels last, once chosen by a convolution,
   holds for all that follows;
6. the rows of linear layers, and of the loops that share them, collapse to one dim; then the views
   that this leaves between two ops that both follow cancel.

The types of the function's arguments and results stay as they are. A value that is returned gets a
view of the declared type, which moves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shapejit import ir as sir
from shapejit.pass_host import Pass, option, register_pass
from shapejit.passes.analysis.symbol_facts import SymbolFacts
from shapejit.passes.canonical.convolutions import conv_to_gemm, read_channels_last
from shapejit.passes.canonical.layouts import spread_layouts
from shapejit.passes.canonical.respelling import Respeller
from shapejit.passes.canonical.rows import collapse_rows
from shapejit.passes.canonical.transposed import transposed_to_gemm
from shapejit.passes.canonical.unit_dims import drop_unit_dims
from shapejit.passes.fold_views import ViewFolder


@register_pass("shapejit-canonicalize-shapes", dialects=("arith",))
@dataclass(frozen=True)
class CanonicalizeShapes(Pass):
    """Give equal sizes, spaces and linear layers one spelling."""

    rows: bool = option(True, help="collapse the rows of linear layers and the loops around them")

    def run(self, module: Any) -> None:
        facts = SymbolFacts.of(module)
        for function in sir.functions(module):
            Respeller(facts).run(function)
            ViewFolder(function, facts).run()
            for op in sir.operations(sir.body(function)):
                if op.name == "shapejit.conv" and not (
                    conv_to_gemm(op, facts) or transposed_to_gemm(op, facts)
                ):
                    read_channels_last(op, facts)
            for op in sir.operations(sir.body(function)):
                drop_unit_dims(op)
            ViewFolder(function, facts).run()
            spread_layouts(function, facts)
            if self.rows:
                collapse_rows(function, facts)
                ViewFolder(function, facts).run()
