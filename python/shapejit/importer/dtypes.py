# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""torch's dtypes: their MLIR types, classes, and torch's rules of promotion."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch

from shapejit.importer.values import Tensor
from shapejit.symbolic import Expr

TORCH_MLIR_NAMES: Final[dict[str, torch.dtype]] = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "ui8": torch.uint8,
    "si8": torch.int8,
    "si16": torch.int16,
    "si32": torch.int32,
    "si64": torch.int64,
    "i1": torch.bool,
}
"""Element types as torch-mlir prints them; anything else is not supported."""

NUMBERS: Final[dict[int, torch.dtype]] = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    11: torch.bool,
    15: torch.bfloat16,
}
"""dtypes by the numbers that operators' `dtype` operands hold."""

_BITS: Final[dict[torch.dtype, int]] = {
    torch.bool: 1,
    torch.uint8: 8,
    torch.int8: 8,
    torch.int16: 16,
    torch.int32: 32,
    torch.int64: 64,
    torch.float16: 16,
    torch.bfloat16: 16,
    torch.float32: 32,
    torch.float64: 64,
}


def is_float(dtype: torch.dtype) -> bool:
    """Whether `dtype` is a floating point type."""
    return dtype.is_floating_point


def is_integer(dtype: torch.dtype) -> bool:
    """Whether `dtype` is an integer type; bool is not."""
    return not dtype.is_floating_point and dtype is not torch.bool


def is_unsigned(dtype: torch.dtype) -> bool:
    """Whether values of `dtype` extend with zeros: uint8 and bool."""
    return dtype in (torch.uint8, torch.bool)


def bits(dtype: torch.dtype) -> int:
    """Width of a value in the IR; a bool has one bit."""
    return _BITS[dtype]


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which torch computes pointwise ops: f32 for the 16-bit floats."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def dtype_name(dtype: torch.dtype) -> str:
    """``float32``."""
    return str(dtype).removeprefix("torch.")


def promoted(operands: Iterable[Any]) -> torch.dtype:
    """torch's common dtype of tensors and scalars.

    Tensors with dims decide; a 0-d tensor, and after it a Python scalar, only counts if it is of a
    higher category (bool, integer, float).
    """
    tensors: torch.dtype | None = None
    zero_dim: torch.dtype | None = None
    scalars: torch.dtype | None = None
    for operand in operands:
        if not isinstance(operand, Tensor):
            scalars = _joined(scalars, scalar_dtype(operand))
        elif operand.rank:
            tensors = _joined(tensors, operand.dtype)
        else:
            zero_dim = _joined(zero_dim, operand.dtype)
    result = _raised(_raised(tensors, zero_dim), scalars)
    if result is None:
        raise ValueError("no operands to promote")
    return result


def scalar_dtype(value: Any) -> torch.dtype:
    """The dtype a Python scalar or a size counts as."""
    if isinstance(value, bool):
        return torch.bool
    return torch.int64 if isinstance(value, (int, Expr)) else torch.get_default_dtype()


def _joined(lhs: torch.dtype | None, rhs: torch.dtype) -> torch.dtype:
    return rhs if lhs is None else torch.promote_types(lhs, rhs)


def _category(dtype: torch.dtype) -> int:
    return 2 if dtype.is_floating_point else int(dtype is not torch.bool)


def _raised(first: torch.dtype | None, second: torch.dtype | None) -> torch.dtype | None:
    """`first`, unless `second` is of a higher category."""
    if first is None or second is None:
        return second if first is None else first
    return first if _category(first) >= _category(second) else torch.promote_types(first, second)
