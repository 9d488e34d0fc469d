# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-lower-winograd-to-nvgpu: convolutions of three taps as transforms and products.

Why: on CUDA cores, where float32 is multiplied that tensor maps do not read, a 3x3 convolution is
bound by its multiply-adds. Winograd's algorithm needs 4 (F(2x2,3x3)) or 2.25 (F(4x4,3x3)) of them
for each pixel, channel and filter instead of 9, for some additions and memory. F(2x2) is even more
accurate than the direct sum of float32, as it adds fewer products; F(4x4) is less. Convolutions of
one dim, and those of two with 3x1 or 1x3 taps, need 2 (F(2,3)) or 1.5 (F(4,3)) instead of 3.

Before::

    %y = shapejit.conv over [s0, 1, s1, s2, 64, 32, 3, 3] image [s1, s2] padding [(1, 1), (1, 1)]
        input(%x ..) weight(%w ..) -> ..

After::

    %v = shapejit.loop over [4, 4, 1, s0, th, tw, 32]     // B^T d B of every tile; %x by extract
    %u = shapejit.loop over [4, 4, 1, 64, 32] ins(%w ..)  // G g G^T
    %m = shapejit.gemm over [16, 1, s0 * th * tw, 64, 32] lhs(%v ..) rhs(%u ..)
    %y = shapejit.loop over [s0, 1, s1, s2, 64]           // A^T m A; %m by extract

Dims of three taps are transformed, those of one tap are passed through: with 3x1 taps there are 4
points, of tiles of 2x1 pixels.

The result is IR that any target computes: what follows the convolution fuses into its last loop,
and the products get the variants that products have. Sizes stay free. `passes/winograd/choice.py`
says which convolutions, by which algorithm; docs/winograd.md gives errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from shapejit import ir as sir
from shapejit.pass_host import Pass, PassFailure, option, register_pass
from shapejit.passes.analysis.precision import may_round
from shapejit.passes.analysis.symbol_facts import SymbolFacts
from shapejit.passes.nvgpu.conv.mapped import has_maps
from shapejit.passes.winograd.choice import DEFAULT_BOUND, MODES, Wish, choose
from shapejit.passes.winograd.rewrite import Convolution, rewrite


@register_pass("shapejit-lower-winograd-to-nvgpu", dialects=("arith", "tensor"))
@dataclass(frozen=True)
class LowerWinogradToNvgpu(Pass):
    """Compute convolutions of three taps by Winograd's algorithm where that is right and pays."""

    winograd: str = option("auto", help="auto, off, or force: whether or not it pays")
    max_rel_error: str = option("", help=f"relative error that is allowed, {DEFAULT_BOUND}")

    def run(self, module: Any) -> None:
        wish = self._wish(module)
        facts = SymbolFacts.of(module)
        divisors = {symbol.id: symbol.divisor for symbol in sir.symbols(module)}
        for function in sir.functions(module):
            for op in sir.operations(sir.body(function)):
                conv = Convolution.of(op) if op.name == "shapejit.conv" else None
                if conv is None:
                    continue
                channels, filters = conv.channels.constant, conv.filters.constant
                if channels is None or filters is None:
                    continue
                element = "tf32" if may_round(op) else conv.element
                mapped = has_maps(op, function, divisors)
                algorithm = choose(wish, element, channels, filters, conv.dims, mapped=mapped)
                if algorithm is not None:
                    rewrite(conv, algorithm, facts)

    def _wish(self, module: Any) -> Wish:
        if self.winograd not in MODES:
            known = ", ".join(MODES)
            raise PassFailure(module, f"winograd must be one of {known}, got {self.winograd!r}")
        try:
            bound = float(self.max_rel_error or DEFAULT_BOUND)
        except ValueError:
            bound = math.nan
        if not bound >= 0:
            text = f"max-rel-error must be a number from 0 on, got {self.max_rel_error!r}"
            raise PassFailure(module, text)
        return Wish(self.winograd, bound)
