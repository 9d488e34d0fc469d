# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""shapejit-choose-buckets on random modules: every legal size once, the same decision each time."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import dataclass

import mlir.ir as ir
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shapejit.ir as sir
from shapejit.pass_host import PipelineError, run_pipeline
from shapejit.passes import choose_buckets  # noqa: F401 - registers the pass
from shapejit.passes.buckets.bindings import bindings_of, divisor_of
from shapejit.passes.buckets.grid import cut
from shapejit.passes.buckets.histogram import cell_weights, expected_sizes, parse_histogram
from shapejit.passes.buckets.kernels import gemm_kernel
from shapejit.passes.buckets.problem import GemmTraits
from shapejit.passes.nvgpu.schedule import GemmSchedule
from shapejit.symbolic import Expr

_BUCKET = re.compile(r'#shapejit\.bucket<\[([^]]*)\], \[([^]]*)\], "([a-z0-9_]+)", "([^"]+)">')

PRELUDE = """
#lhs = affine_map<(m, n, k) -> (m, k)>
#rhs = affine_map<(m, n, k) -> (n, k)>
"""


@dataclass(frozen=True)
class Bucket:
    """A bucket of a dispatch, as read from its text."""

    lower: tuple[int, ...]
    upper: tuple[float, ...]
    variant: str
    reason: str

    def holds(self, sizes: tuple[int, ...]) -> bool:
        return all(a <= s <= b for a, s, b in zip(self.lower, sizes, self.upper, strict=True))


def linear(name: str, rows: str, n: str, k: str, symbols: int) -> str:
    """A kernel of a product of constant or symbolic sizes."""

    def tensor(*sizes: str) -> str:
        shown = "x".join(size if size.isdigit() else "?" for size in sizes)
        return f"tensor<{shown}xbf16, #shapejit.shape<[{', '.join(sizes)}]>>"

    x, w, y = tensor(rows, k), tensor(n, k), tensor(rows, n)
    return f"""
      shapejit.kernel @{name} symbols {symbols} (%x: {x}, %w: {w}) {{
        %0 = shapejit.gemm over [{rows}, {n}, {k}]
            lhs(%x at #lhs : {x}) rhs(%w at #rhs : {w}) -> {y}
        shapejit.yield %0 : {y}
      }}
    """


def launched(rows: str, n: str, k: str, symbols: list[str]) -> str:
    """A module that launches `linear` with the module's symbols, declared by `symbols`."""

    def tensor(*sizes: str) -> str:
        shown = "x".join(size if size.isdigit() else "?" for size in sizes)
        return f"tensor<{shown}xbf16, #shapejit.shape<[{', '.join(sizes)}]>>"

    x, w, y = tensor(rows, k), tensor(n, k), tensor(rows, n)
    declared = "\n".join(
        f"shapejit.symbol @symbol{i} {{id = {i}, {s}}}" for i, s in enumerate(symbols)
    )
    names = ", ".join(f"s{i}" for i in range(len(symbols)))
    return f"""{PRELUDE}{declared}{linear("linear", rows, n, k, len(symbols))}
      func.func @main(%x: {x}, %w: {w}) -> {y} {{
        %0 = shapejit.launch @linear affine_map<()[{names}] -> ({names})> (%x, %w)
            : ({x}, {w}) -> {y}
        return %0 : {y}
      }}"""


def choose(text: str, options: str = "") -> str:
    """The module after the pass."""
    with ir.Context():
        module = ir.Module.parse(text)
        run_pipeline(module, f"shapejit-choose-buckets{{{options}}}", stage="test")
        return str(module)


def buckets(text: str) -> list[Bucket]:
    """The buckets of all dispatches, in order."""

    def corner(sizes: str) -> list[float]:
        return [float("inf") if s == "?" else int(s) for s in sizes.split(", ") if s]

    return [
        Bucket(tuple(map(int, corner(lower))), tuple(corner(upper)), variant, reason)
        for lower, upper, variant, reason in _BUCKET.findall(text)
    ]


def served_once(found: list[Bucket], sizes: tuple[int, ...]) -> bool:
    return sum(bucket.holds(sizes) for bucket in found) == 1


constants = st.sampled_from(["8", "64", "768", "4096", "14336"])


@settings(max_examples=20, deadline=None)
@given(
    low=st.integers(0, 300),
    length=st.one_of(st.none(), st.sampled_from([0, 1, 7, 100, 5000])),
    n=constants,
    k=constants,
    variants=st.integers(1, 8),
    regions=st.integers(1, 16),
)
def test_every_number_of_rows_is_in_one_bucket(
    low: int, length: int | None, n: str, k: str, variants: int, regions: int
) -> None:
    declared = f"min = {low}" + ("" if length is None else f", max = {low + length}")
    text = launched("s0", n, k, [declared])
    options = f"max-variants={variants} max-regions={regions}"
    written = choose(text, options)
    found = buckets(written)
    for left, right in itertools.pairwise(found):
        assert left.upper[0] + 1 == right.lower[0]
    assert len({bucket.variant for bucket in found}) <= variants
    assert len(found) <= regions
    assert found[0].lower == (low,)
    assert found[-1].upper == (float("inf") if length is None else low + length,)
    for bucket in found:
        assert str(GemmSchedule.parse(bucket.variant)) == bucket.variant
    assert choose(text, options) == written
    assert choose(written, options) == written


@settings(max_examples=15, deadline=None)
@given(
    form=st.sampled_from(
        [
            ("s0", "s1", "64"),
            ("s0 * s1", "s1 * 8", "64"),
            ("s0", "s0 * 8", "s1 * 8"),
            ("s0", "64", "s1 * 8"),
        ]
    ),
    highs=st.tuples(*[st.sampled_from([None, 3, 900])] * 2),
    seed=st.integers(0, 1000),
)
def test_boxes_over_two_axes_hold_every_pair_once(
    form: tuple[str, str, str], highs: tuple[int | None, int | None], seed: int
) -> None:
    declared = ["min = 1" + ("" if high is None else f", max = {high}") for high in highs]
    found = buckets(choose(launched(*form, declared)))
    generator = random.Random(seed)
    for _ in range(200):
        first, second = (
            generator.choice([1, 2, h or 20_000, generator.randint(1, h or 3000)]) for h in highs
        )
        sizes = (first, second)
        if form[0] == "s0 * s1":
            sizes = (first * second, second)  # the second axis counts eights
        assert served_once(found, sizes), sizes


def test_more_variants_are_used_where_they_help() -> None:
    text = launched("s0", "4096", "4096", ["min = 1, max = 8192"])
    counts = [
        len({b.variant for b in buckets(choose(text, f"max-variants={n} max-regions=1000"))})
        for n in (1, 2, 4, 8)
    ]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] > 2


def test_kernels_that_share_rows_share_breakpoints() -> None:
    text = PRELUDE + "shapejit.symbol @rows {id = 0, min = 1, max = 8192}"
    launches = ""
    weights = [("768", "3072"), ("3072", "768"), ("4096", "4096"), ("64", "14336")]
    for i, (n, k) in enumerate(weights):
        text += linear(f"k{i}", "s0", n, k, 1)
        x = f"tensor<?x{k}xbf16, #shapejit.shape<[s0, {k}]>>"
        w = f"tensor<{n}x{k}xbf16, #shapejit.shape<[{n}, {k}]>>"
        y = f"tensor<?x{n}xbf16, #shapejit.shape<[s0, {n}]>>"
        launches += f"""
          func.func @f{i}(%x: {x}, %w: {w}) -> {y} {{
            %0 = shapejit.launch @k{i} affine_map<()[s0] -> (s0)> (%x, %w) : ({x}, {w}) -> {y}
            return %0 : {y}
          }}"""

    def starts(options: str) -> set[int]:
        return {bucket.lower[0] for bucket in buckets(choose(text + launches, options))}

    assert len(starts("max-regions=1000")) > 16
    assert len(starts("")) <= 16
    assert starts("max-regions=1") == {1}


# What a kernel's sizes are ------------------------------------------------------------------------


def test_axes_and_sizes() -> None:
    text = launched(
        "s0 * s1", "s1 * 8", "64", ["min = 2, max = 4, divisor = 2", "min = 1, max = 9"]
    )
    with ir.Context():
        module = ir.Module.parse(text)
        bindings = bindings_of(module)["linear"]
        kernel = gemm_kernel("linear", sir.kernels(module)["linear"], bindings)
        s0, s1 = map(Expr.symbol, range(2))
        # A size that depends on two symbols makes the sizes themselves the axes, in units.
        assert kernel.axes == (s0 * s1, s1)
        assert (kernel.sizes["k"], kernel.sizes["batch"]) == (64, 1)
        n = kernel.sizes["n"]
        assert not isinstance(n, int)
        assert n.function(np.array([1, 9])).tolist() == [8, 72]
        assert [bindings.range(axis) for axis in kernel.axes] == [(2, 36), (1, 9)]
        assert [bindings.divisor(axis) for axis in (s0 * s1, s1 * 8)] == [2, 8]
        assert kernel.traits == GemmTraits()
        assert kernel.unaligned is None


def test_a_symbol_is_the_axis_of_all_sizes_that_follow_it() -> None:
    text = launched("s0", "s0 * 8 + 8", "64", ["min = 1, max = 9"])
    with ir.Context():
        module = ir.Module.parse(text)
        kernel = gemm_kernel("linear", sir.kernels(module)["linear"], bindings_of(module)["linear"])
        assert kernel.axes == (Expr.symbol(0),)
        n = kernel.sizes["n"]
        assert not isinstance(n, int)
        assert n.function(np.array([1, 5])).tolist() == [16, 48]


def test_what_the_epilogue_reads_is_counted() -> None:
    x, y = (
        "tensor<?x64xbf16, #shapejit.shape<[s0, 64]>>",
        "tensor<?x32xf32, #shapejit.shape<[s0, 32]>>",
    )
    w, b = "tensor<32x64xbf16, #shapejit.shape<[32, 64]>>", "tensor<32xf32, #shapejit.shape<[32]>>"
    text = f"""{PRELUDE}
      shapejit.kernel @fused symbols 1 (%x: {x}, %w: {w}, %b: {b}, %r: {y}) {{
        %0 = shapejit.gemm over [s0, 32, 64] lhs(%x at #lhs : {x}) rhs(%w at #rhs : {w})
            extras(%b at affine_map<(m, n) -> (n)> : {b}, %r at affine_map<(m, n) -> (m, n)> : {y})
            epilogue {{
        ^bb0(%acc: f32, %bias: f32, %residual: f32):
          %1 = arith.addf %acc, %bias : f32
          %2 = arith.addf %1, %residual : f32
          shapejit.yield %2 : f32
        }} -> {y}
        shapejit.yield %0 : {y}
      }}"""
    with ir.Context():
        module = ir.Module.parse(text)
        kernel = gemm_kernel("fused", sir.kernels(module)["fused"], bindings_of(module)["fused"])
        assert kernel.traits == GemmTraits(result_bytes=4, extra_bytes=4, body_cycles=2.0)


def test_batched_products_with_a_shared_weight() -> None:
    x = "tensor<?x?x64xbf16, #shapejit.shape<[s0, s1, 64]>>"
    w, y = (
        "tensor<32x64xbf16, #shapejit.shape<[32, 64]>>",
        "tensor<?x?x32xbf16, #shapejit.shape<[s0, s1, 32]>>",
    )
    text = f"""
      shapejit.kernel @batched symbols 2 (%x: {x}, %w: {w}) {{
        %0 = shapejit.gemm over [s0, s1, 32, 64]
            lhs(%x at affine_map<(b, m, n, k) -> (b, m, k)> : {x})
            rhs(%w at affine_map<(b, m, n, k) -> (n, k)> : {w}) -> {y}
        shapejit.yield %0 : {y}
      }}"""
    with ir.Context():
        module = ir.Module.parse(text)
        kernel = gemm_kernel(
            "batched", sir.kernels(module)["batched"], bindings_of(module)["batched"]
        )
        assert kernel.traits == GemmTraits(rhs_shared=True)
        assert kernel.axes == (Expr.symbol(0), Expr.symbol(1))


@given(
    st.integers(0, 6), st.integers(0, 6), st.integers(0, 24), st.integers(1, 8), st.integers(1, 8)
)
def test_divisors(a: int, b: int, c: int, d0: int, d1: int) -> None:
    s0, s1 = map(Expr.symbol, range(2))
    expr = a * s0 * s1 + b * s1 + c
    divisor = divisor_of(expr, {0: d0, 1: d1})
    for x, y in itertools.product(range(4), repeat=2):
        value = expr.evaluate([d0 * x, d1 * y])
        assert value % divisor == 0 if divisor else value == 0


def test_rows_of_the_result_need_a_known_length_too() -> None:
    text = launched("s0", "s1", "64", ["min = 1", "min = 1"])
    [bucket] = buckets(choose(text))
    assert bucket.variant.startswith("unaligned")
    assert bucket.reason.endswith("stores rows s1 elements apart, not known to be a multiple of 8")
    known = launched("s0", "s1", "64", ["min = 1", "min = 8, divisor = 8"])
    assert not any(b.variant.startswith("unaligned") for b in buckets(choose(known)))


def test_layouts_leave_schedules_out() -> None:
    text = launched("s0", "4096", "4096", ["min = 1"])
    columns = text.replace("(m, n, k) -> (m, k)", "(m, n, k) -> (k, m)")
    columns = columns.replace("tensor<?x4096xbf16, #shapejit.shape<[s0, 4096]>>", "X")
    columns = columns.replace("(%x: X,", "(%x: L,").replace("#lhs : X", "#lhs : L")
    columns = columns.replace(": (X,", ": (L,")
    columns = columns.replace("L", "tensor<4096x?xbf16, #shapejit.shape<[4096, s0]>>")
    columns = columns.replace("X", "tensor<?x4096xbf16, #shapejit.shape<[s0, 4096]>>")
    options = "schedules=small_m_64x32x64_s16_w1_r2,swapped_128x128x64_s6_w2"
    columns = columns.replace("symbol0 {id = 0, min = 1}", "symbol0 {id = 0, min = 8, divisor = 8}")
    assert {b.variant for b in buckets(choose(text, options))} == set(options[10:].split(","))
    assert {b.variant for b in buckets(choose(columns, options))} == {"swapped_128x128x64_s6_w2"}


# What is expected ---------------------------------------------------------------------------------


def test_histograms_are_read() -> None:
    assert parse_histogram("") == {}
    assert parse_histogram("batch:1=10,8=5;seq:128=0.5") == {
        "batch": {1: 10.0, 8: 5.0},
        "seq": {128: 0.5},
    }


@pytest.mark.parametrize("text", ["seq", "seq:", ":1=1", "seq:1", "seq:1=0", "seq:-1=1", "a:1=1;b"])
def test_histograms_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no histogram of a symbol"):
        parse_histogram(text)


def test_opt_is_a_histogram_of_one_size() -> None:
    symbols = [sir.Symbol("a", 0, 1, 64, opt=8), sir.Symbol("b", 1, 1, None, opt=4)]
    assert expected_sizes(symbols, {"b": {2: 3.0}}) == {0: {8: 1.0}, 1: {2: 3.0}}


def test_weights_follow_what_is_expected() -> None:
    cells = cut(1, 1000, [(lambda size: size, 10)], 1000)
    s0, s1 = map(Expr.symbol, range(2))
    ranges = {0: (1, 10), 1: (1, 100)}
    nothing = cell_weights(cells, [s0 * s1], {}, ranges)
    assert nothing.sum() == pytest.approx(1)
    # Without knowledge an octave is as likely as another.
    octaves = [nothing[(cells.starts > low) & (cells.starts <= 2 * low)].sum() for low in (20, 320)]
    assert octaves[0] == pytest.approx(octaves[1], rel=0.1)
    known = cell_weights(cells, [s0 * s1], {0: {2: 1.0, 4: 3.0}, 1: {50: 1.0}}, ranges)
    assert known.sum() == pytest.approx(1)
    at = {size: known[np.searchsorted(cells.starts, size, side="right") - 1] for size in (100, 200)}
    assert at[100] == pytest.approx(0.2, abs=0.02)
    assert at[200] == pytest.approx(0.6, abs=0.02)
    partly = cell_weights(cells, [s0 * s1], {0: {10: 1.0}}, ranges)
    assert partly.sum() == pytest.approx(1)
    assert partly[cells.starts < 10].sum() < nothing[cells.starts < 10].sum()


def test_a_histogram_moves_the_choice() -> None:
    text = launched("s0", "4096", "4096", ["min = 1, max = 8192"])
    few = buckets(choose(text, "max-variants=1 histogram=symbol0:16=1"))
    many = buckets(choose(text, "max-variants=1 histogram=symbol0:8192=1"))
    assert few[0].variant != many[0].variant


def test_failures_name_the_rule() -> None:
    with pytest.raises(PipelineError, match="max-variants must be at least 1"):
        choose("", "max-variants=0")
