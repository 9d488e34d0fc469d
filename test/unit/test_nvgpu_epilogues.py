# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Epilogues of GPU kernels on a simulated GPU: what they compute, and how they read extras."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import mlir.ir as ir
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from reference.hopper.launch import kernel_function, simulate
from shapejit import ir as sir
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.lowering import lower_variant
from shapejit.passes.nvgpu.schedule import GemmSchedule
from shapejit.passes.nvgpu.target import HOPPER
from unit.cpu_kernels import DTYPES, Size, access, examples, tensor
from unit.simulated_gemms import Gemm, check

PLAIN, SWAPPED = "persistent_64x64x64_s2_w1", "swapped_64x16x64_s2_w1"

Extra = tuple[str, str, Sequence[Size]]
"""Of an extra operand: index map over (d0, d1), element type, sizes."""


def run(
    schedule: str,
    extras: Sequence[Extra],
    body: str,
    values: Sequence[Tensor],
    m: int,
    n: int,
    *,
    out: str = "f32",
    depth: Size = "s2",
    operands: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """A product ``[m, k] x [n, k]`` with an epilogue, on a simulated GPU.

    Args:
        body: lines that end in a yield; the sum is %a, the extras %e0, %e1, ..
        values: of the extras.
        depth: size of K; s2 with operands.
    """
    text = kernel_text(extras, body, depth, out)
    k = depth if isinstance(depth, int) else 72
    lhs, rhs = operands or (torch.zeros(m, k).bfloat16(), torch.zeros(n, k).bfloat16())
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        interface = lower_variant(sir.kernels(module)["k"], GemmSchedule.parse(schedule), HOPPER)
        [code] = (op for op in sir.operations(module.body) if op.name == "gpu.module")
        module.operation.verify()
        shape = torch.empty(m, n, dtype=DTYPES[out])
        return simulate(kernel_function(code), interface, [lhs, rhs, *values], shape, [m, n, k])


def kernel_text(extras: Sequence[Extra], body: str, depth: Size, out: str) -> str:
    """The kernel of `run`."""
    arguments = [tensor("bf16", "s0", depth), tensor("bf16", "s1", depth)]
    types = [tensor(element, *sizes) for _, element, sizes in extras]
    reads = [f"%x{i} at {access(2, extras[i][0])} : {types[i]}" for i in range(len(extras))]
    names = ["%lhs", "%rhs", *(f"%x{i}" for i in range(len(extras)))]
    scalars = ", ".join(["%a: f32", *(f"%e{i}: {e[1]}" for i, e in enumerate(extras))])
    result = tensor(out, "s0", "s1")
    listed = ", ".join(f"{a}: {t}" for a, t in zip(names, arguments + types, strict=True))
    return f"""
        shapejit.kernel @k symbols 3 ({listed}) {{
          %y = shapejit.gemm over [s0, s1, {depth}]
              lhs(%lhs at {access(3, "d0, d2")} : {arguments[0]})
              rhs(%rhs at {access(3, "d1, d2")} : {arguments[1]})
              {f"extras({', '.join(reads)})" if reads else ""}
              epilogue {{
            ^bb0({scalars}):
              {body}
              }} -> {result}
          shapejit.yield %y : {result}
        }}"""


# Functions ----------------------------------------------------------------------------------------


def evaluate(op: str, arguments: Tensor, out: str = "f32", then: str = "") -> Tensor:
    """A function of f32 at many arguments: the epilogue of a product over no elements.

    Args:
        out: type of the result, to which it is rounded.
        then: what follows, from %0 to %1.
    """
    body = f"%0 = {op} %e0 : f32\n{then or '%1 = arith.addf %0, %a : f32'}\n"
    body += "shapejit.yield %1 : f32"
    if out != "f32":
        body = body.replace(
            "shapejit.yield %1 : f32",
            f"""
            %2 = arith.truncf %1 : f32 to {out}
            shapejit.yield %2 : {out}""",
        )
    extra: Extra = ("d1", "f32", ("s1",))
    [result] = run(PLAIN, [extra], body, [arguments], 1, len(arguments), depth=0, out=out)
    return result


def _numbers(*bounds: float) -> Tensor:
    """Numbers of both signs, dense near 0 and up to the bounds, with every special one."""
    low, high = bounds
    even = torch.linspace(low, high, 800, dtype=torch.float64)
    small = torch.logspace(-30, 0, 200, dtype=torch.float64) * min(high, 4.0)
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-40, 0.6, 0.25])
    numbers = torch.cat([even, small, -small, special.double()]).float()
    return numbers if low < 0 else numbers.abs()


_FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[float, float], float]] = {
    "math.exp": (torch.exp, (-87.0, 88.0), 3e-7),
    "math.expm1": (torch.expm1, (-20.0, 88.0), 4e-7),
    "math.erf": (torch.erf, (-6.0, 6.0), 2e-7),
    "math.tanh": (torch.tanh, (-20.0, 20.0), 3e-7),
    "math.log": (torch.log, (0.0, 1e6), 3e-7),
    "math.log2": (torch.log2, (0.0, 1e6), 4e-7),
    "math.log1p": (torch.log1p, (0.0, 1e6), 4e-7),
    "math.sqrt": (torch.sqrt, (0.0, 1e6), 1e-7),
    "math.rsqrt": (torch.rsqrt, (0.0, 1e6), 2e-7),
    "math.absf": (torch.abs, (-10.0, 10.0), 0.0),
    "math.floor": (torch.floor, (-10.0, 10.0), 0.0),
    "math.ceil": (torch.ceil, (-10.0, 10.0), 0.0),
    "math.trunc": (torch.trunc, (-10.0, 10.0), 0.0),
    "math.roundeven": (torch.round, (-10.0, 10.0), 0.0),
}


@pytest.mark.parametrize("op", _FUNCTIONS)
def test_functions(op: str) -> None:
    """Within the stated error wherever the result is a normal number; limits and NaN as torch."""
    function, bounds, tolerance = _FUNCTIONS[op]
    arguments = _numbers(*bounds)
    got, expected = evaluate(op, arguments).double(), function(arguments.double())
    assert torch.equal(got.isnan(), expected.isnan())
    infinite = expected.isinf()
    assert torch.equal(got[infinite], expected[infinite])
    normal = expected.isfinite() & (expected.abs() > 2.0**-120)
    error = (got - expected).abs() / expected.abs()
    assert error[normal].max() <= tolerance
    tiny = expected.isfinite() & ~normal
    assert torch.allclose(got[tiny], expected[tiny], rtol=0, atol=2.0**-119)


def _within_rounding(got: Tensor, expected: Tensor, limit: float, slack: float = 1.05) -> None:
    """As good as the exact value rounded to the type, or nearly so.

    Args:
        limit: below it, numbers may count as 0.
    """
    assert torch.equal(got.isnan(), expected.isnan())
    half_ulp = torch.finfo(got.dtype).eps / 2
    normal = expected.isfinite() & (expected.abs() > limit)
    error = (got.double() - expected).abs() / expected.abs()
    assert error[normal].max() <= slack * half_ulp
    small = expected.abs() <= limit
    assert (got[small].double() - expected[small]).abs().max() <= 2 * limit


@pytest.mark.parametrize("out", ["bf16", "f16"])
@pytest.mark.parametrize(
    ("op", "bounds"),
    [("math.exp", (-10.0, 10.0)), ("math.erf", (-6.0, 6.0)), ("math.tanh", (-20.0, 20.0))],
)
def test_functions_with_results_of_16_bits(out: str, op: str, bounds: tuple[float, float]) -> None:
    arguments = _numbers(*bounds)
    expected = _FUNCTIONS[op][0](arguments.double())
    finite = expected.isnan() | (expected.abs() < 6e4)
    got = evaluate(op, arguments, out)
    _within_rounding(got[finite], expected[finite], 1e-4 if out == "f16" else 1e-30)


@pytest.mark.parametrize("out", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("op", ["math.erf", "math.tanh"])
def test_one_more_than_a_function(op: str, swapped: bool, out: str) -> None:
    """The half of gelu that cancels for negative arguments; exactly 0 far out."""
    sum_ = "%1 = arith.addf %one, %0 : f32" if swapped else "%1 = arith.addf %0, %one : f32"
    then = f"%one = arith.constant 1.0 : f32\n{sum_}"
    arguments = _numbers(-12.0, 12.0)
    got = evaluate(op, arguments, out, then).double()
    expected = 1 + _FUNCTIONS[op][0](arguments.double())
    if op == "math.erf":
        expected = torch.special.erfc(-arguments.double())
    assert torch.equal(got.isnan(), expected.isnan())
    known = ~expected.isnan()
    tolerance = 5e-7 + (0 if out == "f32" else torch.finfo(DTYPES[out]).eps / 2) * expected[known]
    assert ((got[known] - expected[known]).abs() <= tolerance).all()
    assert (got[arguments < -11] < 1e-7).all()


_GELUS = (
    "%p = arith.mulf %e0, %half : f32\n%1 = arith.mulf %p, %above : f32",
    "%p = arith.mulf %above, %half : f32\n%1 = arith.mulf %e0, %p : f32",
    "%p = arith.mulf %e0, %above : f32\n%1 = arith.mulf %p, %half : f32",
)


def gelu_body(product: str, root: float = math.sqrt(0.5)) -> str:
    """x / 2 * (1 + erf(root * x)) of %e0, multiplied in one of the ways of `_GELUS`."""
    return f"""
        %half = arith.constant 0.5 : f32
        %one = arith.constant 1.0 : f32
        %root = arith.constant {root:.17g} : f32
        %s = arith.mulf %root, %e0 : f32
        %erf = math.erf %s : f32
        %above = arith.addf %one, %erf : f32
        {product}"""


@pytest.mark.parametrize("out", ["bf16", "f16"])
@pytest.mark.parametrize("product", _GELUS)
def test_gelu(product: str, out: str) -> None:
    """One function, in whichever order it is multiplied; its limits are there."""
    arguments = _numbers(-14.0, 14.0)
    got = evaluate("math.absf", arguments, out, gelu_body(product)).double()
    x = arguments.double()
    expected = torch.where(x == -math.inf, 0.0, x / 2 * torch.special.erfc(-x * math.sqrt(0.5)))
    expected[x == math.inf] = math.inf
    assert torch.equal(got.isnan(), expected.isnan())
    assert (got[x == math.inf] == math.inf).all()
    known = expected.isfinite()
    least = 2.0**-24 if out == "f16" else 0.0
    tolerance = 1e-6 + least + torch.finfo(DTYPES[out]).eps / 2 * expected[known].abs()
    assert ((got[known] - expected[known]).abs() <= tolerance).all()


def test_what_is_nearly_gelu() -> None:
    """Another factor in its erf is another function."""
    arguments = torch.linspace(-4, 4, 256)
    got = evaluate("math.absf", arguments, "bf16", gelu_body(_GELUS[0], 0.75)).double()
    x = arguments.double()
    assert torch.allclose(got, x / 2 * torch.special.erfc(-x * 0.75), rtol=5e-3, atol=1e-5)


def test_a_function_needed_for_itself_too() -> None:
    """Its sum with 1 is short, and its own value is still there."""
    then = """%one = arith.constant 1.0 : f32
        %s = arith.addf %0, %one : f32
        %1 = arith.mulf %s, %0 : f32"""
    arguments = torch.linspace(-2, 2, 64)
    got = evaluate("math.erf", arguments, "bf16", then)
    exact = torch.erf(arguments.double())
    assert torch.allclose(got.double(), (1 + exact) * exact, rtol=5e-3, atol=1e-6)


@pytest.mark.parametrize("out", ["bf16", "f32"])
def test_division(out: str) -> None:
    arguments = _numbers(-50.0, 50.0)
    then = """%c = arith.constant 3.0 : f32
        %1 = arith.divf %c, %0 : f32"""
    got, expected = evaluate("math.absf", arguments, out, then), 3 / arguments.double().abs()
    assert torch.equal(got.isnan(), expected.isnan())
    normal = expected.isfinite() & (expected > 2.0**-120) & (expected < 2.0**120)
    error = (got.double() - expected).abs() / expected
    assert error[normal].max() <= (5e-3 if out == "bf16" else 3e-7)
    assert torch.equal(got[arguments == 0], torch.full_like(got[arguments == 0], math.inf))


def test_log_of_less_than_0() -> None:
    result = evaluate("math.log", torch.tensor([-1.0, -1e-30, -0.0, 0.0]))
    assert result[:2].isnan().all()
    assert torch.equal(result[2:], torch.full((2,), -math.inf))


@pytest.mark.parametrize("op", ["math.sin", "math.atan2", "arith.remf"])
def test_functions_without_code(op: str) -> None:
    arguments = "%e0" if op == "math.sin" else "%e0, %e0"
    body = f"%0 = {op} {arguments} : f32\nshapejit.yield %0 : f32"
    with pytest.raises(LoweringError, match=f"computes '{op}' of f32"):
        run(PLAIN, [("d1", "f32", ("s1",))], body, [torch.zeros(8)], 8, 8)


def test_what_a_result_does_not_need_is_not_emitted() -> None:
    """Neither for the element nor for the last rounding, which storing does."""
    needed = """
        %0 = arith.truncf %a : f32 to bf16
        shapejit.yield %0 : bf16"""
    more = """
        %1 = math.exp %a : f32
        %2 = math.sin %1 : f32
        %3 = arith.bitcast %a : f32 to f32
        %0 = arith.truncf %3 : f32 to bf16
        shapejit.yield %0 : bf16"""
    with ir.Context(), ir.Location.unknown():
        texts = []
        for lines in (needed, more):
            module = ir.Module.parse(kernel_text([], lines, "s2", "bf16"))
            kernel = sir.kernels(module)["k"]
            lower_variant(kernel, GemmSchedule.parse(PLAIN), HOPPER)
            texts += [str(op) for op in sir.operations(module.body) if op.name == "gpu.module"]
    assert texts[0] == texts[1]
    # The 64 x 64 sums of 128 threads in pairs, and the one element that a K of 0 is about.
    assert texts[0].count("cvt.rn.bf16x2") == 16 + 1


def test_halves_are_computed_in_f32_and_rounded_where_it_says() -> None:
    """A sum that bf16 cannot hold, once kept and once rounded on the way."""
    kept = """
        %0 = arith.addf %e0, %e0 : bf16
        %1 = arith.mulf %0, %e1 : bf16
        %2 = arith.extf %1 : bf16 to f32
        shapejit.yield %2 : f32"""
    rounded = kept.replace(
        "%1 = arith.mulf %0, %e1 : bf16",
        """%w = arith.extf %e1 : bf16 to f32
        %x = arith.extf %0 : bf16 to f32
        %y = arith.mulf %x, %w : f32
        %1 = arith.truncf %y : f32 to bf16""",
    )
    values = [torch.randn(16).bfloat16(), torch.randn(16).bfloat16()]
    extras: list[Extra] = [("d1", "bf16", ("s1",))] * 2
    exact = 2 * values[0].float() * values[1].float()
    got = run(PLAIN, extras, kept, values, 1, 16, depth=0)
    assert torch.equal(got[0], exact)
    got = run(PLAIN, extras, rounded, values, 1, 16, depth=0)
    assert torch.equal(got[0], exact.bfloat16().float())


# Extras -------------------------------------------------------------------------------------------

_SUM = """
    %0 = arith.extf %e0 : bf16 to f32
    %1 = arith.addf %a, %0 : f32
    shapejit.yield %1 : f32"""

# Index map, sizes, and what torch would add, by name.
_LAYOUTS: dict[str, tuple[str, tuple[Size, ...], Callable[[Tensor], Tensor]]] = {
    "scalar": ("", (), lambda x: x),
    "row": ("d0", ("s0",), lambda x: x[:, None]),
    "column": ("d1", ("s1",), lambda x: x[None]),
    "matrix": ("d0, d1", ("s0", "s1"), lambda x: x),
    "transposed": ("d1, d0", ("s1", "s0"), lambda x: x.T),
    "last of rows": ("d0, d1 + 8", ("s0", "s1 + 8"), lambda x: x[:, 8:]),
    "odd start": ("d0, d1 + 1", ("s0", "s1 + 1"), lambda x: x[:, 1:]),
    "every other": ("d0, d1 * 2", ("s0", "s1 * 2"), lambda x: x[:, ::2]),
    "repeated": ("d0, d1 floordiv 2", ("s0", "s1"), lambda x: x[:, : -(-x.shape[1] // 2)]),
}


def _sizes(sizes: Sequence[Size], m: int, n: int) -> list[int]:
    return [eval(str(size), {"s0": m, "s1": n}) for size in sizes]


@pytest.mark.parametrize("schedule", [PLAIN, SWAPPED])
@pytest.mark.parametrize("element", ["bf16", "f32"])
@pytest.mark.parametrize("name", _LAYOUTS)
@given(m=st.integers(1, 80), columns=st.integers(1, 10))
@examples(2)
def test_extras(schedule: str, element: str, name: str, m: int, columns: int) -> None:
    """Each way to read, at every edge; simulated memory ends where a tensor ends."""
    n = 8 * columns
    map_, sizes, seen = _LAYOUTS[name]
    extra = torch.randn(_sizes(sizes, m, n)).to(DTYPES[element])
    lhs, rhs = torch.randn(m, 72).bfloat16(), torch.randn(n, 72).bfloat16()
    body = (
        _SUM if element == "bf16" else _SUM.replace("extf %e0 : bf16 to f32", "addf %e0, %e0 : f32")
    )
    factor = 1.0 if element == "bf16" else 2.0
    added = seen(extra.double() * factor)
    if name == "repeated":
        added = added.repeat_interleave(2, dim=1)[:, :n]
    got = run(schedule, [(map_, element, sizes)], body, [extra], m, n, operands=(lhs, rhs))
    expected = lhs.double() @ rhs.double().T + added
    assert torch.allclose(got.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("schedule", [PLAIN, SWAPPED])
def test_masks_and_integers(schedule: str) -> None:
    """A bool is a byte in memory; integers may be anywhere in a body."""
    body = """
        %0 = arith.sitofp %e1 : i32 to f32
        %1 = arith.select %e0, %a, %0 : f32
        %2 = arith.truncf %1 : f32 to bf16
        shapejit.yield %2 : bf16"""
    m, n = 70, 24
    mask = torch.rand(m, n) < 0.5
    numbers = torch.randint(-100, 100, (n,), dtype=torch.int32)
    extras: list[Extra] = [("d0, d1", "i1", ("s0", "s1")), ("d1", "i32", ("s1",))]
    lhs, rhs = torch.randn(m, 72).bfloat16(), torch.randn(n, 72).bfloat16()
    got = run(schedule, extras, body, [mask, numbers], m, n, out="bf16", operands=(lhs, rhs))
    expected = torch.where(mask, lhs.double() @ rhs.double().T, numbers.double())
    assert torch.allclose(got.double(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("schedule", [PLAIN, SWAPPED])
def test_sizes_in_the_body(schedule: str) -> None:
    """A mean divides by a size that is only known at run time."""
    body = """
        %0 = shapejit.size affine_map<()[s0, s1, s2] -> (s2)>
        %1 = arith.index_cast %0 : index to i32
        %2 = arith.sitofp %1 : i32 to f32
        %3 = arith.divf %a, %2 : f32
        shapejit.yield %3 : f32"""
    lhs, rhs = torch.randn(9, 72).bfloat16(), torch.randn(16, 72).bfloat16()
    got = run(schedule, [], body, [], 9, 16, operands=(lhs, rhs))
    assert torch.allclose(got.double(), lhs.double() @ rhs.double().T / 72, atol=1e-5)


@pytest.mark.parametrize(
    ("schedule", "epilogue"),
    [
        ("swapped_128x176x64_s5_w2_turns", "bias, gelu, residual"),  # 176 sums, 16 registers ahead
        ("swapped_256x184x64_s3_w2", "f32 residual"),  # no room for any
    ],
)
def test_extras_beside_many_sums(schedule: str, epilogue: str) -> None:
    check(Gemm(epilogue=epilogue), schedule, 90, 136, 64, multiprocessors=1)
