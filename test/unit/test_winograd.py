# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Winograd's algorithm: its matrices, errors and choice, and the ops that a pass makes of it."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import mlir.ir as ir
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from reference.interpreter import Interpreter
from shapejit import ir as sir
from shapejit import passes
from shapejit.pass_host import run_pipeline
from shapejit.passes.winograd.choice import DEFAULT_BOUND, ERRORS, Wish, choose, cost, direct_cost
from shapejit.passes.winograd.matrices import ALGORITHMS, F2, F4, ONE_TAP, Algorithm, Matrix, slots
from unit.simulated_programs import simulated

PASS = "shapejit-lower-winograd-to-nvgpu"

# The algorithm ------------------------------------------------------------------------------------


def applied(matrix: Matrix, vector: list[Fraction]) -> list[Fraction]:
    return [sum((a * b for a, b in zip(row, vector, strict=True)), Fraction(0)) for row in matrix]


@pytest.mark.parametrize("algorithm", (*ALGORITHMS, ONE_TAP), ids=str)
def test_outputs_are_those_of_a_filter(algorithm: Algorithm) -> None:
    """In exact arithmetic."""
    rng = random.Random(0)
    for _ in range(20):
        d = [Fraction(rng.randint(-9, 9)) for _ in range(algorithm.points)]
        g = [Fraction(rng.randint(-9, 9)) for _ in algorithm.filters[0]]
        products = [
            u * v
            for u, v in zip(
                applied(algorithm.filters, g), applied(algorithm.inputs, d), strict=True
            )
        ]
        taps = range(len(g))
        expected = [sum(d[i + t] * g[t] for t in taps) for i in range(algorithm.tile)]
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


CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d}


def rounded(x: Tensor, element: str) -> Tensor:
    """A tensor's values as an element type has them, in the type that it has."""
    if element == "tf32":
        return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    kinds = {"f16": torch.float16, "bf16": torch.bfloat16}
    return x.to(kinds[element]).to(x.dtype) if element in kinds else x


def winograd(algorithm: Algorithm, image: Tensor, filters: Tensor, element: str) -> Tensor:
    """[channels, pixels..] by [filters, channels, 3..], summed in the tensors' type as CUDA cores
    do, channel by channel; factors of products are rounded to an element type."""
    dims = image.dim() - 1
    b, g, a = (
        torch.tensor([[float(value) for value in row] for row in matrix], dtype=image.dtype)
        for matrix in (algorithm.inputs, algorithm.filters, algorithm.outputs)
    )
    v, u = image, filters
    for dim in range(dims):
        v = v.unfold(1 + dim, algorithm.points, algorithm.tile)
    tiles = v.shape[1 : 1 + dims]
    for _ in range(dims):  # from the first dim of the tiles to the last one
        v, u = torch.tensordot(v, b, ([1 + dims], [1])), torch.tensordot(u, g, ([2], [1]))
    v, u = (rounded(each, element) for each in (v.flatten(1 + dims).flatten(1, dims), u.flatten(2)))
    m = torch.zeros(u.shape[0], *v.shape[1:], dtype=image.dtype)
    for channel in range(len(v)):
        m += u[:, channel, None] * v[channel]
    m = m.unflatten(2, (algorithm.points,) * dims)
    for _ in range(dims):
        m = torch.tensordot(m, a, ([2], [1]))
    order = itertools.chain([0], *((1 + dim, 1 + dims + dim) for dim in range(dims)))
    m = m.unflatten(1, tiles).permute(*order)
    m = m.reshape(len(m), *(count * algorithm.tile for count in tiles))
    return m if element == "tf32" else rounded(m, element)


@pytest.mark.parametrize("element", ERRORS)
@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("channels", [64, 512])
def test_errors_are_within_what_is_stated(channels: int, dims: int, element: str) -> None:
    maker = torch.Generator().manual_seed(channels)
    sides = {1: (130,), 2: (10, 10)}[dims]
    image = rounded(torch.randn(channels, *sides, generator=maker), element)
    filters = rounded(torch.randn(16, channels, *[3] * dims, generator=maker), element)
    exact = CONVOLUTIONS[dims](image[None].double(), filters.double())[0]
    norm = exact.norm()
    for algorithm in ALGORITHMS:
        assert (winograd(algorithm, image.double(), filters.double(), "f64") - exact).norm() <= (
            1e-13 * norm
        )
        error = (winograd(algorithm, image, filters, element) - exact).norm() / norm
        assert error <= ERRORS[element][algorithm.tile][dims - 1], error


def test_what_the_default_allows() -> None:
    """F(2,3) along any dims, and F(4,3) along none."""
    for dims in range(2):
        assert ERRORS["f32"][F2.tile][dims] <= DEFAULT_BOUND < ERRORS["f32"][F4.tile][dims]


# Choice -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [1, 2])
def test_what_is_chosen(dims: int) -> None:
    auto = Wish("auto", DEFAULT_BOUND)
    assert choose(auto, "f32", 256, 256, dims) == F2
    assert choose(Wish("auto", 1e-5), "f32", 256, 256, dims) == F4
    assert choose(Wish("off", 1.0), "f32", 256, 256, dims) is None
    # Few channels: the transforms cost more than the products.
    for channels, filters in [(3, 64), (1, 1)]:
        assert choose(auto, "f32", channels, filters, dims) is None
        assert choose(Wish("force", DEFAULT_BOUND), "f32", channels, filters, dims) == F2
    # Types that lose accuracy need a bound that says so.
    for element in ("f16", "bf16", "tf32"):
        assert choose(auto, element, 512, 512, dims) is None
        assert choose(Wish("auto", 0.1), element, 512, 512, dims) == F4
    assert choose(Wish("force", 1.0), "f64", 512, 512, dims) is None


def test_an_error_that_is_allowed_along_one_dim_only() -> None:
    wish = Wish("auto", 3e-6)
    assert [choose(wish, "f32", 256, 256, dims) for dims in (1, 2)] == [F4, F2]


@pytest.mark.parametrize(
    ("bound", "dims", "least"),
    [(DEFAULT_BOUND, 1, 115), (DEFAULT_BOUND, 2, 13), (1, 1, 37), (1, 2, 1)],
)
def test_layers_of_one_dim_gain_less(bound: float, dims: int, least: int) -> None:
    """They need more channels, since products are a smaller part of what they cost; how many is in
    docs/winograd.md."""
    wish = Wish("auto", bound)
    found = [choose(wish, "f32", count, count, dims) is not None for count in range(1, 300)]
    assert found == [count >= least for count in range(1, 300)]


@pytest.mark.parametrize("dims", [1, 2])
def test_convolutions_with_direct_kernels_of_tensor_cores(dims: int) -> None:
    for bound, algorithm in [(DEFAULT_BOUND, F2), (1e-5, F4)]:
        found = {
            mode: choose(Wish(mode, bound), "f32", 512, 512, dims, mapped=True)
            for mode in ("auto", "off", "force")
        }
        assert found == {"auto": None, "off": None, "force": algorithm}
        assert choose(Wish("auto", bound), "f32", 512, 512, dims, mapped=False) == algorithm


@given(channels=st.integers(1, 1024), filters=st.integers(1, 1024), dims=st.sampled_from([1, 2]))
def test_costs_grow_with_channels_and_filters(channels: int, filters: int, dims: int) -> None:
    for each in (
        lambda c, f: direct_cost(c, f, dims),
        lambda c, f: cost(F2, c, f, dims),
        lambda c, f: cost(F4, c, f, dims),
    ):
        assert 0 < each(channels, filters) < each(channels + 1, filters)
        assert each(channels, filters) < each(channels, filters + 1)


def test_of_wide_layers_multiply_adds_cost_all() -> None:
    """Each pixel, channel and filter needs 2 or 1.5 instead of 3 along a dim."""
    many = 10**8
    for dims in (1, 2):
        for algorithm, adds in [(F2, 2.0), (F4, 1.5)]:
            ratio = cost(algorithm, many, many, dims) / direct_cost(many, many, dims)
            assert ratio == pytest.approx((adds / 3) ** dims, rel=1e-4)


# The pass -----------------------------------------------------------------------------------------


HIGHEST = 9
"""The largest size of a dim."""

FORMS = [(3, 3), (3,), (3, 1), (1, 3)]
"""Taps of filters."""

Pads = Sequence[tuple[int, int]]


def least(taps: int, pads: tuple[int, int]) -> int:
    """The smallest size of an image along a dim; the result may have none there."""
    return max(1, taps - 1 - sum(pads))


def module_text(
    groups: int, channels: int, filters: int, taps: Sequence[int], padding: Pads, last: bool
) -> str:
    """A convolution of free batch and pixels."""
    dims, offsets = range(len(taps)), "tu"[: len(taps)]
    image = [f"s{dim + 1}" for dim in dims]
    pads = [sum(pair) - (count - 1) for pair, count in zip(padding, taps, strict=True)]
    pixels = [
        f"{size} + {pad}" if pad > 0 else f"{size} - {-pad}" if pad else size
        for size, pad in zip(image, pads, strict=True)
    ]
    inside, outside = groups * channels, groups * filters

    def tensor(shape: Sequence[object]) -> str:
        marks = "x".join(str(size) if isinstance(size, int) else "?" for size in shape)
        return f"tensor<{marks}xf32, #shapejit.shape<[{', '.join(map(str, shape))}]>>"

    def images(count: int, sizes: Sequence[str]) -> str:
        return tensor(["s0", *sizes, count] if last else ["s0", count, *sizes])

    def place(count: int) -> str:
        channel, rest = f"g * {count} + c", ["p", "q"][: len(taps)]
        return ", ".join(["n", *rest, channel] if last else ["n", channel, *rest])

    x, y, w = images(inside, image), images(outside, pixels), tensor([outside, channels, *taps])
    space = ", ".join(map(str, ["s0", groups, *pixels, filters, channels, *taps]))
    written = f"padding [{', '.join(map(str, padding))}]" if any(map(any, padding)) else ""
    over, at = ", ".join("npq"[1 : 1 + len(taps)]), ", ".join(offsets)
    symbols = "\n".join(
        f"shapejit.symbol @d{dim} {{id = {dim + 1}, min = {least(count, pair)}, max = {HIGHEST}}}"
        for dim, count, pair in zip(dims, taps, padding, strict=True)
    )
    return f"""
      shapejit.symbol @n {{id = 0, min = 0}}
      {symbols}
      func.func @main(%x: {x}, %w: {w}) -> {y} {{
        %0 = shapejit.conv over [{space}] image [{", ".join(image)}] {written}
          input(%x at affine_map<(n, g, {over}, c) -> ({place(channels)})> : {x})
          weight(%w at affine_map<(g, f, c, {at}) -> (g * {filters} + f, c, {at})> : {w})
          -> affine_map<(n, g, {over}, c) -> ({place(filters)})> : {y}
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


def by_torch(
    image: np.ndarray, weight: np.ndarray, groups: int, padding: Pads, last: bool
) -> np.ndarray:
    """The convolution in float64."""
    x, w = torch.tensor(image), torch.tensor(weight)
    x = functional.pad(
        x.movedim(-1, 1) if last else x, [pad for pair in reversed(padding) for pad in pair]
    )
    sizes = [size - taps + 1 for size, taps in zip(x.shape[2:], w.shape[2:], strict=True)]
    empty = x.new_zeros(len(x), len(w), *sizes)
    y = CONVOLUTIONS[len(padding)](x, w, groups=groups) if empty.numel() else empty
    return (y.movedim(1, -1) if last else y).numpy()


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@pytest.mark.parametrize("taps", FORMS, ids=str)
@given(data=st.data())
@settings(max_examples=4, deadline=None, derandomize=True)
def test_the_meaning_stays(
    taps: tuple[int, ...], algorithm: Algorithm, data: st.DataObject
) -> None:
    groups, channels, filters = (data.draw(st.integers(1, 3)) for _ in range(3))
    pads = st.sampled_from([(0, 0), (1, 1), (0, 1), (2, 0), (2, 2), (-1, 2), (0, 3)])
    padding = [data.draw(pads) for _ in taps]
    batch = data.draw(st.integers(0, 2))
    sides = []
    for count, pair in zip(taps, padding, strict=True):
        low = least(count, pair)
        ends = st.sampled_from([low, HIGHEST])
        sides.append(data.draw(ends | st.integers(low, HIGHEST)))
    check(
        algorithm,
        (batch, *sides),
        (groups, channels, filters),
        taps,
        padding,
        data.draw(st.booleans()),
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@pytest.mark.parametrize("taps", FORMS, ids=str)
@pytest.mark.parametrize("side", [1, 2, HIGHEST])
def test_ends_of_ranges(side: int, taps: tuple[int, ...], algorithm: Algorithm) -> None:
    """One pixel, fewer pixels than a tile of F(4,3), and as many as there may be."""
    padding = [(1, 1) if count == 3 else (0, 2) for count in taps]
    check(algorithm, (1, *[side] * len(taps)), (2, 1, 3), taps, padding, last=False)


def check(
    algorithm: Algorithm,
    sizes: tuple[int, ...],
    counts: tuple[int, int, int],
    taps: tuple[int, ...],
    padding: Pads,
    last: bool,
) -> None:
    """Compares a convolution before and after the pass with torch.

    Args:
        algorithm: that is asked for.
        sizes: batch and pixels of the image.
        counts: groups, channels and filters.
        taps: of the filters.
        padding: (before, after) along each dim.
        last: whether channels are last.
    """
    groups, channels, filters = counts
    (batch, *sides), inside = sizes, groups * channels
    rng = np.random.default_rng(sum(sides))
    shape = (batch, *sides, inside) if last else (batch, inside, *sides)
    inputs = [rng.standard_normal(shape), rng.standard_normal((groups * filters, channels, *taps))]
    bound = 1e-4 if algorithm is F4 else 2e-6
    text = module_text(*counts, taps, padding, last)
    [before], [after], names = run_both(text, inputs, f"winograd=force max-rel-error={bound}")
    assert "shapejit.conv" not in names
    assert names.count("shapejit.gemm") == 1
    exact = by_torch(inputs[0], inputs[1], groups, padding, last)
    np.testing.assert_allclose(before, exact, rtol=0, atol=1e-11)
    # Factors such as 1/6 are rounded to float32; those of F(2,3) are exact.
    np.testing.assert_allclose(after, exact, rtol=0, atol=1e-5 if algorithm is F4 else 1e-11)


# Programs -----------------------------------------------------------------------------------------

BATCH, HEIGHT, WIDTH = (Dim(name, min=1, max=8) for name in ("n", "h", "w"))


@torch.no_grad()
@pytest.mark.parametrize("bound", [DEFAULT_BOUND, 1e-5], ids=["F(2,3)", "F(4,3)"])
@pytest.mark.parametrize("separable", [False, True])
def test_programs(separable: bool, bound: float) -> None:
    """Layers of one transformed dim, compiled for a GPU, by torch's float64."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv1d(4, 8, 3, padding=1)]
    dims = {2: WIDTH}
    if separable:
        columns = nn.Conv2d(4, 6, (3, 1), padding=(1, 0))
        layers = [columns, nn.Conv2d(6, 2, (1, 3), padding=1, groups=2)]
        dims = {2: HEIGHT, 3: WIDTH}
    model = nn.Sequential(*layers).eval()
    program, _ = simulated(
        model,
        (torch.randn(2, 4, *[5] * len(dims)),),
        ({0: BATCH, **dims},),
        winograd="force",
        max_rel_error=bound,
    )
    kinds = [kernel.kind for kernel in program.artefacts.kernels]
    assert kinds.count("gemm") == len(layers)
    assert "conv" not in kinds
    for sizes in [(1, 1, 1), (2, 7, 6), (1, 8, 8)]:
        x = torch.randn(sizes[0], 4, *sizes[1 : 1 + len(dims)])
        exact = copy.deepcopy(model).double()(x.double())
        assert (program(x).double() - exact).norm() <= bound * exact.norm()
