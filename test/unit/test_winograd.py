# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Winograd's algorithm: its matrices, errors and choice, and the ops that a pass makes of it."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import mlir.ir as ir
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.interpreter import Interpreter
from shapejit import ir as sir
from shapejit import passes
from shapejit.pass_host import run_pipeline
from shapejit.passes.winograd.choice import DEFAULT_BOUND, ERRORS, Wish, choose, cost, direct_cost
from shapejit.passes.winograd.matrices import ALGORITHMS, F2, F4, Algorithm, Matrix, slots

PASS = "shapejit-lower-winograd-to-nvgpu"

# The algorithm ------------------------------------------------------------------------------------


def applied(matrix: Matrix, vector: list[Fraction]) -> list[Fraction]:
    return [sum((a * b for a, b in zip(row, vector, strict=True)), Fraction(0)) for row in matrix]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_outputs_are_those_of_a_filter(algorithm: Algorithm) -> None:
    """In exact arithmetic."""
    rng = random.Random(0)
    for _ in range(20):
        d = [Fraction(rng.randint(-9, 9)) for _ in range(algorithm.points)]
        g = [Fraction(rng.randint(-9, 9)) for _ in range(3)]
        products = [
            u * v
            for u, v in zip(
                applied(algorithm.filters, g), applied(algorithm.inputs, d), strict=True
            )
        ]
        expected = [sum(d[i + t] * g[t] for t in range(3)) for i in range(algorithm.tile)]
        assert applied(algorithm.outputs, products) == expected


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_slots_hold_every_summand(algorithm: Algorithm) -> None:
    for matrix in (algorithm.inputs, algorithm.outputs):
        for number, row in enumerate(matrix):
            found = [Fraction(0)] * len(row)
            for slot in slots(matrix):
                found[slot.places[number]] += slot.factors[number]
            assert tuple(found) == row


# Errors -------------------------------------------------------------------------------------------


def winograd(algorithm: Algorithm, image: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """[channels, rows, columns] by [filters, channels, 3, 3], in the arrays' type."""
    b, g, a = (
        np.array(matrix, dtype=image.dtype)
        for matrix in (algorithm.inputs, algorithm.filters, algorithm.outputs)
    )
    tile, points = algorithm.tile, algorithm.points
    u = np.einsum("xi,fcij,yj->xyfc", g, filters, g, dtype=image.dtype)
    rows, columns = ((size - 2) // tile for size in image.shape[1:])
    result = np.zeros((filters.shape[0], rows * tile, columns * tile), image.dtype)
    for row in range(rows):
        for column in range(columns):
            y, x = tile * row, tile * column
            d = image[:, y : y + points, x : x + points]
            v = np.einsum("xi,cij,yj->xyc", b, d, b, dtype=image.dtype)
            m = np.matmul(u, v[..., None])[..., 0]
            part = np.einsum("px,xyf,qy->fpq", a, m, a, dtype=image.dtype)
            result[:, y : y + tile, x : x + tile] = part
    return result


@pytest.mark.parametrize("channels", [64, 512])
def test_errors_of_float32_are_within_what_is_stated(channels: int) -> None:
    rng = np.random.default_rng(channels)
    image = rng.standard_normal((channels, 10, 10))
    filters = rng.standard_normal((16, channels, 3, 3))
    tensors = torch.tensor(image)[None], torch.tensor(filters)
    exact = torch.nn.functional.conv2d(*tensors)[0].numpy()
    norm = np.linalg.norm(exact)
    for algorithm in ALGORITHMS:
        assert np.linalg.norm(winograd(algorithm, image, filters) - exact) <= 1e-13 * norm
        got = winograd(algorithm, image.astype(np.float32), filters.astype(np.float32))
        error = np.linalg.norm(got - exact) / norm
        assert error <= ERRORS["f32"][algorithm.tile], error
    # No more than what the default allows, and F(4x4) is more than that.
    assert ERRORS["f32"][F2.tile] <= DEFAULT_BOUND < ERRORS["f32"][F4.tile]


# Choice -------------------------------------------------------------------------------------------


def test_what_is_chosen() -> None:
    auto = Wish("auto", DEFAULT_BOUND)
    assert choose(auto, "f32", 256, 256) == F2
    assert choose(Wish("auto", 1e-5), "f32", 256, 256) == F4
    assert choose(Wish("off", 1.0), "f32", 256, 256) is None
    # Few channels: the transforms cost more than the products.
    assert choose(auto, "f32", 3, 64) is None
    assert choose(Wish("force", DEFAULT_BOUND), "f32", 3, 64) == F2
    # Types that lose accuracy need a bound that says so.
    for element in ("f16", "bf16", "tf32"):
        assert choose(auto, element, 512, 512) is None
        assert choose(Wish("auto", 0.1), element, 512, 512) == F4
    assert choose(Wish("force", 1.0), "f64", 512, 512) is None


@given(channels=st.integers(1, 1024), filters=st.integers(1, 1024))
def test_costs_grow_with_channels_and_filters(channels: int, filters: int) -> None:
    for each in (direct_cost, lambda c, f: cost(F2, c, f), lambda c, f: cost(F4, c, f)):
        assert 0 < each(channels, filters) < each(channels + 1, filters)
        assert each(channels, filters) < each(channels, filters + 1)


# The pass -----------------------------------------------------------------------------------------


def module_text(
    groups: int, channels: int, filters: int, padding: list[tuple[int, int]], last: bool
) -> str:
    """A convolution of free batch, rows and columns."""
    pads = [sum(pair) - 2 for pair in padding]
    rows, columns = (
        f"s{i + 1} + {pad}" if pad > 0 else f"s{i + 1} - {-pad}" if pad else f"s{i + 1}"
        for i, pad in enumerate(pads)
    )
    inside, outside = groups * channels, groups * filters

    def tensor(batch: str, count: int, sizes: tuple[str, str]) -> str:
        shape = [batch, *sizes, str(count)] if last else [batch, str(count), *sizes]
        marks = "x".join(size if size.isdigit() else "?" for size in shape)
        return f"tensor<{marks}xf32, #shapejit.shape<[{', '.join(shape)}]>>"

    def place(count: int) -> str:
        channel = f"g * {count} + c"
        return f"n, p, q, {channel}" if last else f"n, {channel}, p, q"

    x, y = tensor("s0", inside, ("s1", "s2")), tensor("s0", outside, (rows, columns))
    w = f"tensor<{outside}x{channels}x3x3xf32, #shapejit.shape<[{outside}, {channels}, 3, 3]>>"
    space = f"s0, {groups}, {rows}, {columns}, {filters}, {channels}, 3, 3"
    pairs = ", ".join(f"({low}, {high})" for low, high in padding)
    written = f"padding [{pairs}]" if any(map(any, padding)) else ""
    return f"""
      shapejit.symbol @n {{id = 0, min = 0}}
      shapejit.symbol @h {{id = 1, min = 2}}
      shapejit.symbol @w {{id = 2, min = 2}}
      func.func @main(%x: {x}, %w: {w}) -> {y} {{
        %0 = shapejit.conv over [{space}] image [s1, s2] {written}
          input(%x at affine_map<(n, g, p, q, c) -> ({place(channels)})> : {x})
          weight(%w at affine_map<(g, f, c, t, u) -> (g * {filters} + f, c, t, u)> : {w})
          -> affine_map<(n, g, p, q, c) -> ({place(filters)})> : {y}
        return %0 : {y}
      }}"""


def run_both(text: str, inputs: list[np.ndarray], options: str) -> tuple[Any, Any, list[str]]:
    """A module's result before and after the pass in exact arithmetic, and its ops after it."""
    passes.register_all()
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        before = Interpreter(module).run(inputs)
        run_pipeline(module, f"{PASS}{{{options}}},canonicalize,cse", stage="test")
        names = [op.name for op in sir.operations(sir.body(sir.functions(module)[0]))]
        return before, Interpreter(module).run(inputs), names


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@given(data=st.data())
@settings(max_examples=4, deadline=None, derandomize=True)
def test_the_meaning_stays(algorithm: Algorithm, data: st.DataObject) -> None:
    groups, channels, filters = (data.draw(st.integers(1, 3)) for _ in range(3))
    pads = st.sampled_from([(0, 0), (1, 1), (0, 1), (2, 0), (2, 2), (-1, 2), (0, 3)])
    padding = [data.draw(pads) for _ in range(2)]
    batch = data.draw(st.integers(0, 2))
    sides = [data.draw(st.integers(2, 9)) for _ in padding]
    last = data.draw(st.booleans())
    rng = np.random.default_rng(sum(sides))
    inside = groups * channels
    shape = (batch, *sides, inside) if last else (batch, inside, *sides)
    inputs = [rng.standard_normal(shape), rng.standard_normal((groups * filters, channels, 3, 3))]
    bound = 1e-4 if algorithm is F4 else 2e-6
    text = module_text(groups, channels, filters, padding, last)
    [before], [after], names = run_both(text, inputs, f"winograd=force max-rel-error={bound}")
    assert "shapejit.conv" not in names
    assert names.count("shapejit.gemm") == 1
    # Factors such as 1/6 are rounded to float32; those of F(2x2) are exact.
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-5 if algorithm is F4 else 1e-11)
