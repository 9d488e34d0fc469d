# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Convolutions of float32 as products of gathered pixels: the same values in exact arithmetic."""

from __future__ import annotations

import mlir.ir as ir
import numpy as np
import pytest

from reference.interpreter import Interpreter
from shapejit import ir as sir
from shapejit import passes
from shapejit.pass_host import run_pipeline

# Spatial sizes are s1 and s2; rows and columns of the result follow from the window.
WINDOWS = {
    "strided": ("3, 3", "(s1 + 1) floordiv 2, s2", "stride [2, 1] padding [(1, 1), (1, 1)]"),
    "dilated": ("3, 2", "s1 - 2, s2", "dilation [2, 3] padding [(1, 1), (3, 0)]"),
    "transposed": ("2, 3", "s1 * 2, s2 * 2 - 1", "lhs_dilation [2, 2] padding [(1, 1), (1, 1)]"),
    "padded": ("2, 1", "s1 + 5, s2 + 4", "padding [(3, 3), (2, 2)]"),
    "cropped": ("1, 2", "s1 - 1, s2 - 2", "padding [(-1, 0), (0, -1)]"),
}


def text_of(
    taps: str, pixels: str, window: str, groups: int, *, first: bool, least: int = 3
) -> str:
    """Two channels and three filters a group; filters [g * f, c, t..] or with c first."""
    inside, outside = 2 * groups, 3 * groups
    x = f"tensor<?x?x?x{inside}xf32, #shapejit.shape<[s0, s1, s2, {inside}]>>"
    y = f"tensor<?x{outside}x?x?xf32, #shapejit.shape<[s0, {outside}, {pixels}]>>"
    sizes = f"2, {outside}, {taps}" if first else f"{outside}, 2, {taps}"
    w = f"tensor<{sizes.replace(', ', 'x')}xf32, #shapejit.shape<[{sizes}]>>"
    filters = "c, g * 3 + f, t, u" if first else "g * 3 + f, c, t, u"
    return f"""
      shapejit.symbol @n {{id = 0, min = 0}}
      shapejit.symbol @h {{id = 1, min = {least}}}
      shapejit.symbol @w {{id = 2, min = {least}}}
      func.func @main(%x: {x}, %w: {w}) -> {y} {{
        %0 = shapejit.conv over [s0, {groups}, {pixels}, 3, 2, {taps}] image [s1, s2] {window}
          input(%x at affine_map<(n, g, p, q, c) -> (n, p, q, g * 2 + c)> : {x})
          weight(%w at affine_map<(g, f, c, t, u) -> ({filters})> : {w})
          -> affine_map<(n, g, p, q, f) -> (n, g * 3 + f, p, q)> : {y}
        return %0 : {y}
      }}"""


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize(("groups", "first"), [(1, False), (2, True)])
def test_the_meaning_stays(window: str, groups: int, first: bool) -> None:
    passes.register_all()
    taps = WINDOWS[window][0]
    count = [int(tap) for tap in taps.split(", ")]
    rng = np.random.default_rng(groups)
    order = (2, 3 * groups) if first else (3 * groups, 2)
    with ir.Context(), ir.Location.unknown():
        empty = window == "padded"  # an image without pixels, whose result has some
        least = 0 if empty else 3
        module = ir.Module.parse(text_of(*WINDOWS[window], groups, first=first, least=least))
        sizes = [(1, 3, 4), (2, 7, 5), (0, 4, 4), *[(1, 0, 4), (2, 0, 0)] * empty]
        cases = [
            [rng.standard_normal((n, h, w, 2 * groups)), rng.standard_normal((*order, *count))]
            for n, h, w in sizes
        ]
        before = [Interpreter(module).run(inputs)[0] for inputs in cases]
        run_pipeline(
            module,
            "shapejit-unfold-convolutions,canonicalize,cse",
            stage="test",
        )
        names = [op.name for op in sir.operations(sir.body(sir.functions(module)[0]))]
        assert "shapejit.conv" not in names
        # Filters in torch's order are read as they are.
        assert names.count("shapejit.loop") == 1 + first
        for inputs, expected in zip(cases, before, strict=True):
            [after] = Interpreter(module).run(inputs)
            np.testing.assert_allclose(after, expected, rtol=0, atol=1e-12)
