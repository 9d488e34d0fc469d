# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The operands of `shapejit.ops.gemm`: what fits together, and how they lie in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shapejit.ops.gemm_layout import Product, Strided
from shapejit.ops.gemm_spec import ACTIVATIONS
from shapejit.ops.tensors import ELEMENTS, Rules
from shapejit.options import PRECISIONS
from shapejit.precision import resolved

_MAX_SIZE = (1 << 31) - 1
_RULES = Rules("gemm", alternative="torch.matmul")


class Operands(NamedTuple):
    """The arguments of a call, as tensors; see `shapejit.ops.gemm`."""

    a: Tensor
    b: Tensor
    bias: Tensor | None
    gate: Tensor | None
    residual: Tensor | None
    activation: str | None
    out_dtype: torch.dtype | None
    tf32: bool = False

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Those that are there, in the order of the kernel's arguments."""
        given = (self.a, self.b, self.gate, self.bias, self.residual)
        return tuple(tensor for tensor in given if tensor is not None)

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """`b`, and the gate if there is one."""
        return (self.b,) if self.gate is None else (self.b, self.gate)

    @property
    def result_dtype(self) -> torch.dtype:
        return self.a.dtype if self.out_dtype is None else self.out_dtype

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """Name and tensor of those that are there, in the order of the kernel's arguments."""
        for name in ("a", "b", "gate", "bias", "residual"):
            if (tensor := getattr(self, name)) is not None:
                yield name, tensor


def as_tensors(
    a: Any, b: Any, gate: Any, bias: Any, residual: Any
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """The operands as tensors of torch.

    Raises:
        ArgumentError: one is no tensor (SJ-ARG-009).
    """
    return (
        _RULES.tensor("a", a),
        _RULES.tensor("b", b),
        _RULES.optional("gate", gate),
        _RULES.optional("bias", bias),
        _RULES.optional("residual", residual),
    )


def result_shape(operands: Operands) -> tuple[int, ...]:
    """The shape of the result.

    Raises:
        ShapeError: the operands' shapes do not fit together.
    """
    a = operands.a.shape
    for name, tensor in (("a", operands.a), ("b", operands.b), ("gate", operands.gate)):
        if tensor is not None and tensor.dim() < 2:
            raise _RULES.shape(
                name, tensor, "a matrix product needs at least two dims", "Give it a dim of size 1"
            )
    k = a[-1]
    for name, weight in (("b", operands.b), ("gate", operands.gate)):
        if weight is not None and weight.shape[-2] != k:
            raise _RULES.shape(
                name,
                weight,
                f'its dim -2 must be the last size of "a", {k}',
                f"Pass a tensor [..., {k}, n]; for a weight [n, {k}] pass weight.mT",
            )
    n = operands.b.shape[-1]
    if operands.gate is not None and operands.gate.shape[-1] != n:
        raise _RULES.shape(
            "gate",
            operands.gate,
            f'its last size must be that of "b", {n}',
            f"Pass a tensor [..., {k}, {n}]",
        )
    batch = _broadcast(operands)
    shape = (*batch, a[-2], n)
    for name, extra in (("bias", operands.bias), ("residual", operands.residual)):
        if extra is not None:
            _check_extra(name, extra, shape)
    if (largest := max((*shape, k), default=0)) > _MAX_SIZE:
        raise _RULES.shape(
            "a", operands.a, f"sizes are at most {_MAX_SIZE}, not {largest}", "Split the product"
        )
    return shape


def _broadcast_shapes(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """As `torch.broadcast_shapes`, whose first call imports sympy: a second.

    Raises:
        RuntimeError: they do not fit.
    """
    short, long = sorted((one, other), key=len)
    pairs = zip((*(1,) * (len(long) - len(short)), *short), long, strict=True)
    found = []
    for size, longer in pairs:
        if size != longer and 1 not in (size, longer):
            raise RuntimeError(f"{list(one)} and {list(other)} do not broadcast")
        found.append(longer if size == 1 else size)
    return tuple(found)


def _broadcast(operands: Operands) -> tuple[int, ...]:
    """The batch dims."""
    shape: tuple[int, ...] = operands.a.shape[:-2]
    for name, weight in (("b", operands.b), ("gate", operands.gate)):
        if weight is None:
            continue
        try:
            shape = _broadcast_shapes(shape, weight.shape[:-2])
        except RuntimeError as error:
            raise _RULES.shape(
                name,
                weight,
                f"its batch dims do not broadcast with {list(shape)}",
                "Batch dims must be equal or 1, as in torch.matmul",
            ) from error
    return tuple(shape)


def _check_extra(name: str, extra: Tensor, shape: tuple[int, ...]) -> None:
    try:
        fits = _broadcast_shapes(extra.shape, shape) == shape
    except RuntimeError:
        fits = False
    if not fits:
        raise _RULES.shape(
            name,
            extra,
            f"it must broadcast to the result's shape {list(shape)}",
            "Its sizes must be those of the result or 1, counted from the last dim",
        )


def check(operands: Operands) -> None:
    """Checks all that does not depend on shapes.

    Raises:
        ShapeJitError: an operand is of a dtype, on a device or of a kind that is not taken.
    """
    a = operands.a
    _RULES.check_device("a", a)
    for name, tensor in operands.named():
        _RULES.check_tensor(name, tensor, "a", a)
    _check_dtypes(operands)
    if operands.activation is not None and operands.activation not in ACTIVATIONS:
        raise _RULES.argument(
            "activation",
            repr(operands.activation),
            f"it must be one of {', '.join(ACTIVATIONS)}",
            "Pass one of these, or None and apply the function to the result",
        )


def _check_dtypes(operands: Operands) -> None:
    known = "torch.bfloat16, torch.float16 or torch.float32"
    if operands.a.dtype not in ELEMENTS:
        raise _RULES.dtype("a", operands.a.dtype, f"factors are {known}", "Convert the factors")
    for name, weight in (("b", operands.b), ("gate", operands.gate)):
        if weight is not None and weight.dtype != operands.a.dtype:
            rule = f'"a" is {operands.a.dtype}'
            raise _RULES.dtype(name, weight.dtype, rule, "Convert one of them to the other's")
    for name, extra in (("bias", operands.bias), ("residual", operands.residual)):
        if extra is not None and extra.dtype not in ELEMENTS:
            rule = f"it must be {known}"
            raise _RULES.dtype(name, extra.dtype, rule, "Convert it to one of these")
    if operands.result_dtype not in ELEMENTS:
        raise _RULES.dtype(
            "out_dtype",
            operands.result_dtype,
            f"results are {known}",
            "Convert the result afterwards",
        )


def uses_tf32(float32_precision: str) -> bool:
    """Whether products of float32 may round their factors to tf32.

    Raises:
        ArgumentError: there is no such precision (SJ-ARG-009).
    """
    if float32_precision not in PRECISIONS:
        raise _RULES.argument(
            "float32_precision",
            repr(float32_precision),
            f"it must be one of {', '.join(PRECISIONS)}",
            "Pass one of these",
        )
    return resolved(float32_precision) == "tf32"


def check_out(out: Tensor, operands: Operands, shape: tuple[int, ...]) -> None:
    """Checks what is to receive the result.

    Raises:
        ShapeJitError: it does not fit.
    """
    _RULES.check_out(out)
    if tuple(out.shape) != shape:
        rule = f"the result has the shape {list(shape)}"
        raise _RULES.shape("out", out, rule, f"Pass a tensor of shape {list(shape)}")
    if out.dtype != operands.result_dtype:
        rule = f"the result is {operands.result_dtype}"
        raise _RULES.dtype("out", out.dtype, rule, "Pass a tensor of that dtype or set out_dtype")
    _RULES.check_tensor("out", out, "a", operands.a)
    if not out.is_contiguous():
        raise _RULES.out(f"a tensor of strides {out.stride()}", "results are contiguous")


def shared_memory_error() -> Exception:
    """The error of a result that shares memory with an input."""
    return _RULES.shared_memory()


def product(operands: Operands, shape: tuple[int, ...], result_address: int) -> Product:
    """The operands as they lie in memory.

    Args:
        operands: checked ones.
        shape: of the result.
        result_address: of the result.
    """
    batch, (m, n) = shape[:-2], shape[-2:]
    k = operands.a.shape[-1]
    extras = (
        None if extra is None else _strided(extra, shape)
        for extra in (operands.bias, operands.residual)
    )
    bias, residual = extras
    return Product(
        batch=batch,
        m=m,
        n=n,
        k=k,
        lhs=_strided(operands.a, (*batch, m, k)),
        weights=tuple(_strided(weight, (*batch, k, n)) for weight in operands.weights),
        bias=bias,
        residual=residual,
        activation=operands.activation,
        result=ELEMENTS[operands.result_dtype],
        result_address=result_address,
        tf32=operands.tf32,
    )


def _strided(tensor: Tensor, shape: tuple[int, ...]) -> Strided:
    # torch gives dims that it adds a stride where they have one element.
    added = len(shape) - tensor.dim()
    strides = (*(0 for _ in range(added)), *tensor.expand(shape).stride()[added:])
    return Strided(ELEMENTS[tensor.dtype], tensor.data_ptr(), strides)
