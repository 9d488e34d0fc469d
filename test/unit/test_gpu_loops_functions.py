# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Functions in bodies of loops on a simulated GPU, against torch in float64."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from unit.cpu_kernels import DTYPES, access, tensor
from unit.simulated_loops import GpuKernel

#: Of the lane's functions on a GPU; the simulated `ex2.approx` and the like are exact.
ULPS = {"f32": 4.0, "f64": 8.0}

_SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, math.inf, -math.inf, math.nan, 2.0, -2.0, 1e-30, 1e30]


@functools.cache
def kernel(element: str, body: str, operands: int, result: str | None = None) -> GpuKernel:
    """``body`` yields %r from %a, %b, .."""
    x, y = tensor(element, "s0"), tensor(result or element, "s0")
    names = "abc"[:operands]
    arguments = ", ".join(f"%{name}: {element}" for name in names)
    reads = ", ".join(f"%{name}{name} at {access(1, 'd0')} : {x}" for name in names)
    return GpuKernel(f"""
      shapejit.kernel @k symbols 1 ({", ".join(f"%{name}{name}: {x}" for name in names)}) {{
        %0 = shapejit.loop over [s0] ins({reads}) outs({access(1, "d0")} : {y}) {{
        ^bb0({arguments}):
          {body}
          shapejit.yield %r : {result or element}
        }}
        shapejit.yield %0 : {y}
      }}""")


def unary(element: str, op: str) -> GpuKernel:
    return kernel(element, f"%r = {op} %a : {element}", 1)


def binary(element: str, op: str) -> GpuKernel:
    return kernel(element, f"%r = {op} %a, %b : {element}", 2)


def assert_ulps(got: Tensor, expected: Tensor, ulps: float, *, floor: float = 0.0) -> None:
    """Every result within so many units of the last place, or of `floor`; limits exactly."""
    dtype = got.dtype
    rounded = expected.to(dtype)
    special = ~torch.isfinite(rounded)
    torch.testing.assert_close(got[special], rounded[special], equal_nan=True, rtol=0, atol=0)
    finite = ~special
    got, expected = got[finite].double(), expected[finite].double()
    smallest = torch.finfo(dtype).tiny
    unit = torch.finfo(dtype).eps * expected.abs().clamp(min=max(smallest, floor))
    error = (got - expected).abs() / unit
    assert not error.numel() or error.max() <= ulps, (
        f"{error.max().item():.1f} ulp where {expected[error.argmax()].item()} is right"
    )


def spread(element: str, low: float, high: float, count: int = 500) -> Tensor:
    """Numbers of all magnitudes within limits, the ends, and special ones."""
    generator = torch.Generator().manual_seed(0)
    even = torch.rand(count, generator=generator, dtype=torch.float64) * (high - low) + low
    exponents = torch.rand(count, generator=generator, dtype=torch.float64) * 60 - 45
    signs = torch.where(torch.rand(count, generator=generator) < 0.5, -1.0, 1.0)
    scaled = (signs * torch.exp2(exponents)).clamp(low, high)
    ends = torch.tensor([low, high, *_SPECIAL], dtype=torch.float64)
    return torch.cat([even, scaled, ends]).to(DTYPES[element])


# Range in which a function's results are numbers.
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {
    "math.absf": (torch.abs, -9, 9),
    "math.acos": (torch.acos, -1, 1),
    "math.acosh": (torch.acosh, 1, 1e6),
    "math.asin": (torch.asin, -1, 1),
    "math.asinh": (torch.asinh, -1e6, 1e6),
    "math.atan": (torch.atan, -1e6, 1e6),
    "math.atanh": (torch.atanh, -1, 1),
    "math.ceil": (torch.ceil, -99, 99),
    "math.cos": (torch.cos, -1e3, 1e3),
    "math.cosh": (torch.cosh, -80, 80),
    "math.erf": (torch.erf, -6, 6),
    "math.erfc": (torch.erfc, -9, 9),
    "math.exp": (torch.exp, -85, 85),
    "math.exp2": (torch.exp2, -120, 120),
    "math.expm1": (torch.expm1, -85, 85),
    "math.floor": (torch.floor, -99, 99),
    "math.log": (torch.log, 0, 1e30),
    "math.log10": (torch.log10, 0, 1e30),
    "math.log1p": (torch.log1p, -1, 1e30),
    "math.log2": (torch.log2, 0, 1e30),
    "math.roundeven": (torch.round, -99, 99),
    "math.rsqrt": (torch.rsqrt, 0, 1e30),
    "math.sin": (torch.sin, -1e3, 1e3),
    "math.sinh": (torch.sinh, -80, 80),
    "math.sqrt": (torch.sqrt, 0, 1e30),
    "math.tan": (torch.tan, -1e3, 1e3),
    "math.tanh": (torch.tanh, -12, 12),
    "math.trunc": (torch.trunc, -99, 99),
}
_F32_ONLY = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "erf", "erfc", "sin", "tan")
F64 = [name for name in FUNCTIONS if name.removeprefix("math.") not in _F32_ONLY]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_of_f32(name: str) -> None:
    function, low, high = FUNCTIONS[name]
    x = spread("f32", low, high)
    [y] = unary("f32", name)([x], len(x))
    assert_ulps(y, function(x.double()), ULPS["f32"])


@pytest.mark.parametrize("name", F64)
def test_function_of_f64(name: str) -> None:
    function, low, high = FUNCTIONS[name]
    x = spread("f64", low, high)
    [y] = unary("f64", name)([x], len(x))
    assert_ulps(y, function(x), ULPS["f64"])


@pytest.mark.parametrize("name", ["math.exp", "math.erf", "math.tanh", "math.log", "math.rsqrt"])
@pytest.mark.parametrize("element", ["bf16", "f16"])
def test_function_of_halves(name: str, element: str) -> None:
    function, low, high = FUNCTIONS[name]
    x = spread(element, max(low, -9), min(high, 9))
    [y] = unary(element, name)([x], len(x))
    floor = torch.finfo(torch.float16).tiny if element == "f16" else 0.0
    assert_ulps(y, function(x.double()), 0.51, floor=floor)


@pytest.mark.parametrize("name", ["math.sin", "math.cos", "math.tan"])
def test_large_angles(name: str) -> None:
    """As many bits of 2 / pi as it takes; 16367173 * 2^72 is next to a multiple of pi / 2."""
    generator = torch.Generator().manual_seed(1)
    x = torch.exp2(torch.rand(300, generator=generator) * 100 + 27)
    hard = torch.tensor([16367173.0 * 2.0**72, 2.0**30, 2.0**30 + 128, 2.0**127, 3e38, math.inf])
    x = torch.cat([x, -x, hard, torch.nextafter(hard, torch.tensor(0.0))])
    [y] = unary("f32", name)([x], len(x))
    expected = torch.tensor(
        [math.nan if math.isinf(v) else getattr(math, name[5:])(v) for v in x.tolist()],
        dtype=torch.float64,
    )
    assert_ulps(y, expected, 2.0)


BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "arith.divf": torch.div,
    "arith.maximumf": torch.maximum,
    "arith.maxnumf": torch.fmax,
    "arith.minimumf": torch.minimum,
    "arith.minnumf": torch.fmin,
    "arith.remf": torch.fmod,
    "math.atan2": torch.atan2,
    "math.copysign": torch.copysign,
    "math.powf": torch.pow,
}


@pytest.mark.parametrize("name", BINARY)
def test_binary_function_of_f32(name: str) -> None:
    x, y = (each.flatten() for each in torch.meshgrid(*[torch.tensor(_SPECIAL)] * 2, indexing="ij"))
    wide = spread("f32", -50, 50, 200)
    x, y = torch.cat([x, wide, wide.abs()]), torch.cat([y, wide.flip(0), wide.flip(0) / 8])
    [z] = binary("f32", name)([x, y], len(x))
    assert_ulps(z, BINARY[name](x.double(), y.double()), 2.0)


@pytest.mark.parametrize("name", ["divf", "maximumf", "maxnumf", "minimumf", "minnumf"])
def test_binary_function_of_f64(name: str) -> None:
    x, y = (
        each.flatten()
        for each in torch.meshgrid(
            *[torch.tensor(_SPECIAL, dtype=torch.float64)] * 2, indexing="ij"
        )
    )
    [z] = binary("f64", f"arith.{name}")([x, y], len(x))
    torch.testing.assert_close(z, BINARY[f"arith.{name}"](x, y), equal_nan=True, rtol=0, atol=0)


def test_remainders_of_large_quotients_are_exact() -> None:
    """Up to 2^277: several rounds of 53 bits."""
    x = torch.tensor([3e38, 1.7e38, -3.3e38, 1e20, 123456792.0, 1e-38])
    y = torch.tensor([1e-45, 3e-42, 7.0, 3e-7, 0.1, 2e-45])
    [z] = binary("f32", "arith.remf")([x, y], len(x))
    expected = [math.fmod(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    assert z.tolist() == expected


@pytest.mark.parametrize("element", ["i8", "i16", "i32", "i64"])
@pytest.mark.parametrize("name", ["floordivsi", "ceildivsi", "divsi", "remsi"])
def test_integer_division(element: str, name: str) -> None:
    x = torch.arange(-9, 10, dtype=DTYPES[element]).repeat(6)
    y = torch.tensor([1, 2, 3, -1, -2, -5], dtype=DTYPES[element]).repeat_interleave(19)
    [z] = binary(element, f"arith.{name}")([x, y], len(x))
    modes = {"floordivsi": "floor", "divsi": "trunc"}
    match name:
        case "remsi":
            expected = torch.fmod(x, y)
        case "ceildivsi":
            expected = -torch.div(-x, y, rounding_mode="floor")
        case _:
            expected = torch.div(x, y, rounding_mode=modes[name])
    assert torch.equal(z, expected)


@pytest.mark.parametrize("element", ["i8", "i32", "i64"])
def test_integer_powers(element: str) -> None:
    x = torch.arange(-3, 4, dtype=DTYPES[element]).repeat(5)
    y = torch.tensor([0, 1, 2, 3, 4], dtype=DTYPES[element]).repeat_interleave(7)
    [z] = binary(element, "math.ipowi")([x, y], len(x))
    assert torch.equal(z, x**y)
    x, y = torch.tensor([1, -1, -1, 2, -3]), torch.tensor([-3, -3, -2, -1, -1])
    x, y = x.to(DTYPES[element]), y.to(DTYPES[element])
    [z] = binary(element, "math.ipowi")([x, y], len(x))
    assert z.tolist() == [1, -1, 1, 0, 0]


@pytest.mark.parametrize("element", ["i8", "i16", "i32", "i64"])
def test_magnitude_of_integers(element: str) -> None:
    x = torch.arange(-7, 8, dtype=DTYPES[element])
    [y] = unary(element, "math.absi")([x], len(x))
    assert torch.equal(y, x.abs())


@pytest.mark.parametrize("source", ["i8", "i32", "i64"])
@pytest.mark.parametrize("target", ["bf16", "f16", "f32", "f64"])
def test_conversions(source: str, target: str) -> None:
    x = torch.tensor([-128, -5, 0, 1, 127], dtype=DTYPES[source])
    [y] = kernel(source, f"%r = arith.sitofp %a : {source} to {target}", 1, target)([x], len(x))
    assert torch.equal(y, x.to(DTYPES[target]))
    [z] = kernel(target, f"%r = arith.fptosi %a : {target} to {source}", 1, source)([y], len(y))
    assert torch.equal(z, x)


def test_rounding_to_bf16_keeps_nan_and_is_to_even() -> None:
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (3000,), generator=generator).to(torch.int32)
    x = torch.cat([bits.view(torch.float32), torch.tensor([torch.inf, -torch.inf, -0.0])])
    [y] = kernel("f32", "%r = arith.truncf %a : f32 to bf16", 1, "bf16")([x], len(x))
    torch.testing.assert_close(y, x.to(torch.bfloat16), equal_nan=True, rtol=0, atol=0)
