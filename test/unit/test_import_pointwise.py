# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Rules of pointwise operators: values, promotion, NaN, integer semantics."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st

from reference.importing import Imported, quick, sizes

SPECIAL = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.0, 0.5, -2.5])


def floats(*shape: int, special: bool = True) -> torch.Tensor:
    """Normal values with special ones among them."""
    x = torch.randn(*shape) * 2
    if special and x.numel():
        where = torch.rand(*shape) < 0.3
        x = torch.where(where, SPECIAL[torch.randint(len(SPECIAL), shape)], x)
    return x


UNARY = {
    "abs": torch.abs,
    "acos": torch.acos,
    "acosh": torch.acosh,
    "asin": torch.asin,
    "asinh": torch.asinh,
    "atan": torch.atan,
    "atanh": torch.atanh,
    "celu": lambda x: F.celu(x, 1.5),
    "ceil": torch.ceil,
    "clamp": lambda x: x.clamp(-0.5, 1.5),
    "clamp_low": lambda x: x.clamp(min=0.25),
    "clamp_high": lambda x: x.clamp_max(0.25),
    "cos": torch.cos,
    "cosh": torch.cosh,
    "elu": F.elu,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "floor": torch.floor,
    "frac": torch.frac,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "hardshrink": F.hardshrink,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardtanh": F.hardtanh,
    "isfinite": torch.isfinite,
    "isinf": torch.isinf,
    "isnan": torch.isnan,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "log": torch.log,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "log_sigmoid": F.logsigmoid,
    "logical_not": torch.logical_not,
    "mish": F.mish,
    "nan_to_num": lambda x: torch.nan_to_num(x, 1.0, 2.0, -3.0),
    "neg": torch.neg,
    "pow_0": lambda x: x**0,
    "pow_2": lambda x: x**2,
    "pow_3": lambda x: x**3,
    "pow_half": lambda x: x**0.5,
    "pow_minus_1": lambda x: x**-1,
    "pow_minus_half": lambda x: x**-0.5,
    "pow_2.5": lambda x: x**2.5,
    "pow_7": lambda x: x**7,
    "reciprocal": torch.reciprocal,
    "relu": F.relu,
    "relu6": F.relu6,
    "round": torch.round,
    "round_1": lambda x: torch.round(x, decimals=1),
    "rsqrt": torch.rsqrt,
    "rsub": lambda x: 3 - x,
    "scalar_pow": lambda x: 2**x,
    "selu": F.selu,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "signbit": torch.signbit,
    "silu": F.silu,
    "sin": torch.sin,
    "sinh": torch.sinh,
    "softplus": F.softplus,
    "softplus_2": lambda x: F.softplus(x, 2.0, 3.0),
    "softshrink": F.softshrink,
    "softsign": F.softsign,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tan": torch.tan,
    "tanh": torch.tanh,
    "tanhshrink": F.tanhshrink,
    "threshold": lambda x: F.threshold(x, 0.1, 7.0),
    "to_int": lambda x: torch.nan_to_num(x, 0.0, 5.0, -5.0).to(torch.int32),
    "to_bool": lambda x: x.to(torch.bool),
    "trunc": torch.trunc,
}

BINARY = {
    "add": lambda x, y, z: x + y,
    "add_alpha": lambda x, y, z: torch.add(x, y, alpha=2.5),
    "addcdiv": lambda x, y, z: torch.addcdiv(x, y, z, value=0.5),
    "addcmul": lambda x, y, z: torch.addcmul(x, y, z, value=0.5),
    "atan2": lambda x, y, z: torch.atan2(x, y),
    "broadcast": lambda x, y, z: x * z - y,
    "clamp_tensor": lambda x, y, z: x.clamp(y.minimum(z), y.maximum(z)),
    "copysign": lambda x, y, z: torch.copysign(x, y),
    "div": lambda x, y, z: x / y,
    "div_floor": lambda x, y, z: torch.div(x, y, rounding_mode="floor"),
    "div_trunc": lambda x, y, z: torch.div(x, y, rounding_mode="trunc"),
    "eq": lambda x, y, z: x == y,
    "floor_divide": lambda x, y, z: x // y,
    "fmax": lambda x, y, z: torch.fmax(x, y),
    "fmin": lambda x, y, z: torch.fmin(x, y),
    "fmod": lambda x, y, z: torch.fmod(x, y),
    "ge": lambda x, y, z: x >= y,
    "gt": lambda x, y, z: x > y,
    "heaviside": lambda x, y, z: torch.heaviside(x, y),
    "hypot": lambda x, y, z: torch.hypot(x, y),
    "le": lambda x, y, z: x <= z,
    "lerp": lambda x, y, z: torch.lerp(x, y, 0.3),
    "lerp_far": lambda x, y, z: torch.lerp(x, y, 0.7),
    "lerp_tensor": lambda x, y, z: torch.lerp(x, y, z),
    "logaddexp": lambda x, y, z: torch.logaddexp(x, y),
    "logical_and": lambda x, y, z: torch.logical_and(x, y),
    "logical_or": lambda x, y, z: torch.logical_or(x, y),
    "logical_xor": lambda x, y, z: torch.logical_xor(x, z),
    "lt": lambda x, y, z: x < y,
    "masked_fill": lambda x, y, z: x.masked_fill(y > 0, -float("inf")),
    "masked_fill_tensor": lambda x, y, z: x.masked_fill(z > 0, torch.tensor(3.0)),
    "max_other": lambda x, y, z: x.max(y),
    "maximum": lambda x, y, z: torch.maximum(x, y),
    "minimum": lambda x, y, z: torch.minimum(x, z),
    "mul": lambda x, y, z: x * y,
    "ne": lambda x, y, z: x != y,
    "pow": lambda x, y, z: x.abs() ** y,
    "prelu": lambda x, y, z: F.prelu(x, x.new_full((1,), 0.25)),
    "remainder": lambda x, y, z: torch.remainder(x, y),
    "remainder_scalar": lambda x, y, z: x % -1.5,
    "rsub": lambda x, y, z: torch.rsub(x, y, alpha=2),
    "sub": lambda x, y, z: torch.sub(x, z, alpha=0.5),
    "where": lambda x, y, z: torch.where(x > y, x, z),
    "where_scalar": lambda x, y, z: torch.where(x > 0, x, 1.0),
    "where_scalars": lambda x, y, z: torch.where(x > 0, 1.0, -2.0),
    "xlogy": lambda x, y, z: torch.xlogy(x, y),
}

INTEGER = {
    "abs": lambda x, y, u, b: x.abs(),
    "add": lambda x, y, u, b: x + y,
    "add_bool": lambda x, y, u, b: b + b,
    "add_bool_int": lambda x, y, u, b: b + x,
    "and": lambda x, y, u, b: x & y,
    "and_scalar": lambda x, y, u, b: x & 6,
    "bool_to_float": lambda x, y, u, b: b.float() * 2,
    "clamp": lambda x, y, u, b: x.clamp(-2, 3),
    "clamp_u8": lambda x, y, u, b: u.clamp(3, 200),
    "compare_u8": lambda x, y, u, b: u > 130,
    "compare_mixed": lambda x, y, u, b: u < y,
    "div": lambda x, y, u, b: x / y,
    "div_floor": lambda x, y, u, b: torch.div(x, y, rounding_mode="floor"),
    "div_trunc": lambda x, y, u, b: torch.div(x, y, rounding_mode="trunc"),
    "floor_divide": lambda x, y, u, b: x // -3,
    "floor_divide_u8": lambda x, y, u, b: u // 7,
    "fmod": lambda x, y, u, b: torch.fmod(x, y),
    "fmod_u8": lambda x, y, u, b: torch.fmod(u, 9),
    "invert": lambda x, y, u, b: ~x,
    "invert_bool": lambda x, y, u, b: ~b,
    "left_shift": lambda x, y, u, b: x << (y & 7).abs(),
    "max_u8": lambda x, y, u, b: torch.maximum(u, 255 - u),
    "mul_bool": lambda x, y, u, b: b * b,
    "neg": lambda x, y, u, b: -x,
    "neg_u8": lambda x, y, u, b: -u,
    "or": lambda x, y, u, b: x | y,
    "pow_2": lambda x, y, u, b: x**2,
    "pow_5": lambda x, y, u, b: x**5,
    "pow_tensor": lambda x, y, u, b: x ** (y & 3),
    "promote_float": lambda x, y, u, b: x + 0.5,
    "promote_int32": lambda x, y, u, b: u + x.to(torch.int32),
    "remainder": lambda x, y, u, b: x % y,
    "remainder_negative": lambda x, y, u, b: x % -3,
    "right_shift": lambda x, y, u, b: x >> 2,
    "right_shift_u8": lambda x, y, u, b: u >> 3,
    "sign": lambda x, y, u, b: x.sign(),
    "sqrt": lambda x, y, u, b: x.abs().sqrt(),
    "to_int8": lambda x, y, u, b: (x * 77).to(torch.int8),
    "to_u8": lambda x, y, u, b: (x * 77).to(torch.uint8),
    "u8_to_float": lambda x, y, u, b: u.float() / 255,
    "u8_wraps": lambda x, y, u, b: u + 200,
    "where_mixed": lambda x, y, u, b: torch.where(b, x, 1.5),
    "xor": lambda x, y, u, b: x ^ y,
    "xor_bool": lambda x, y, u, b: b ^ (x > 0),
}


@pytest.fixture(scope="module")
def unary() -> Imported:
    return Imported.table(UNARY, [torch.randn(4, 5)], [{0: "a", 1: "b"}], low=0, high=9)


@quick
@given(a=sizes(0, 9), b=sizes(0, 9), seed=st.integers(0, 999))
def test_unary(unary: Imported, a: int, b: int, seed: int) -> None:
    torch.manual_seed(seed)
    unary.check(floats(a, b))


@pytest.fixture(scope="module")
def binary() -> Imported:
    dims = [{0: "a", 1: "b"}, {0: "a", 1: "b"}, {0: "b"}]
    return Imported.table(
        BINARY, [torch.randn(4, 5), torch.randn(4, 5), torch.randn(5)], dims, low=0, high=9
    )


@quick
@given(a=sizes(0, 9), b=sizes(0, 9), seed=st.integers(0, 999))
def test_binary(binary: Imported, a: int, b: int, seed: int) -> None:
    torch.manual_seed(seed)
    binary.check(floats(a, b), floats(a, b), floats(b))


@pytest.fixture(scope="module")
def integer() -> Imported:
    x = torch.arange(20).reshape(4, 5)
    examples = [x, x + 1, x.to(torch.uint8), x > 3]
    return Imported.table(INTEGER, examples, [{0: "a", 1: "b"}] * 4, low=0, high=9)


@quick
@given(a=sizes(0, 9), b=sizes(0, 9), seed=st.integers(0, 999))
def test_integer(integer: Imported, a: int, b: int, seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randint(-9, 10, (a, b))
    y = torch.randint(-9, 10, (a, b))
    y[y == 0] = 3
    integer.check(x, y, torch.randint(0, 256, (a, b), dtype=torch.uint8), torch.rand(a, b) > 0.5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_floats_compute_in_f32(dtype: torch.dtype) -> None:
    functions = {
        "mixed": lambda x, y: (x + y) * x.float(),
        "sigmoid": lambda x, y: torch.sigmoid(x),
        "sum": lambda x, y: x.sum(-1),
        "softmax": lambda x, y: x.softmax(-1),
    }
    x = torch.randn(3, 4, dtype=dtype)
    imported = Imported.table(functions, [x, x], [{0: "a"}] * 2)
    imported.check(x, x * 0.5, tolerance=2e-2)
    text = str(imported.imported.module)
    assert "arith.extf" in text and "arith.truncf" in text


def test_no_op_conversions_build_nothing() -> None:
    functions = {
        "same_dtype": lambda x: x.to(torch.float32) * 2,
        "clone": lambda x: x.clone() * 3,
        "dropout": lambda x: F.dropout(x, 0.5, training=False) * 4,
        "expand": lambda x: x.expand(x.shape) * 5,
        "add_zero": lambda x: (x + 0) * 6,
    }
    imported = Imported.table(functions, [torch.randn(3, 4)], [{0: "a"}])
    assert str(imported.imported.module).count("shapejit.loop") == len(functions)
    imported.check(torch.randn(2, 4))
