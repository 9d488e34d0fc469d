# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The operands of `shapejit.ops.gemm`: what fits together, and how they lie in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from shapejit.errors import ErrorId
from shapejit.ops.gemm_layout import Product, Strided
from shapejit.ops.gemm_spec import ACTIVATIONS

ELEMENTS = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
_HALVES = (torch.bfloat16, torch.float16)
_MAX_SIZE = (1 << 31) - 1
_OPERATOR = "gemm"


class Operands(NamedTuple):
    """The arguments of a call, as tensors; see `shapejit.ops.gemm`."""

    a: Tensor
    b: Tensor
    bias: Tensor | None
    gate: Tensor | None
    residual: Tensor | None
    activation: str | None
    out_dtype: torch.dtype | None

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


def result_shape(operands: Operands) -> tuple[int, ...]:
    """The shape of the result.

    Raises:
        ShapeError: the operands' shapes do not fit together.
    """
    a = operands.a.shape
    for name, tensor in (("a", operands.a), ("b", operands.b), ("gate", operands.gate)):
        if tensor is not None and tensor.dim() < 2:
            raise _shape_error(
                name, tensor, "a matrix product needs at least two dims", "Give it a dim of size 1"
            )
    k = a[-1]
    for name, weight in (("b", operands.b), ("gate", operands.gate)):
        if weight is not None and weight.shape[-2] != k:
            raise _shape_error(
                name,
                weight,
                f'its dim -2 must be the last size of "a", {k}',
                f"Pass a tensor [..., {k}, n]; for a weight [n, {k}] pass weight.mT",
            )
    n = operands.b.shape[-1]
    if operands.gate is not None and operands.gate.shape[-1] != n:
        raise _shape_error(
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
        raise _shape_error(
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
            raise _shape_error(
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
        raise _shape_error(
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
    if a.device.type != "cuda":
        raise ErrorId.SJ_DEVICE_003.error(
            argument="a",
            operator=_OPERATOR,
            device=a.device,
            rule="it runs on NVIDIA GPUs",
            remedy="Move the operands to a CUDA device, or use torch.matmul",
        )
    for name, tensor in operands.named():
        _check_tensor(name, tensor, a)
    _check_dtypes(operands)
    if operands.activation is not None and operands.activation not in ACTIVATIONS:
        raise ErrorId.SJ_ARG_009.error(
            argument="activation",
            operator=_OPERATOR,
            value=repr(operands.activation),
            rule=f"it must be one of {', '.join(ACTIVATIONS)}",
            remedy="Pass one of these, or None and apply the function to the result",
        )


def _check_tensor(name: str, tensor: Tensor, a: Tensor) -> None:
    if tensor.device != a.device:
        raise ErrorId.SJ_DEVICE_003.error(
            argument=name,
            operator=_OPERATOR,
            device=tensor.device,
            rule=f'"a" is on {a.device}',
            remedy="Move all operands to one device",
        )
    if tensor.layout != torch.strided:
        raise ErrorId.SJ_ARG_006.error(argument=name, layout=tensor.layout)
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ErrorId.SJ_GRAD_001.error(what=f'"{name}" of {_OPERATOR}()')


def _check_dtypes(operands: Operands) -> None:
    halves = "torch.bfloat16 or torch.float16"
    if operands.a.dtype not in _HALVES:
        raise _dtype_error("a", operands.a.dtype, f"factors are {halves}", "Convert the factors")
    for name, weight in (("b", operands.b), ("gate", operands.gate)):
        if weight is not None and weight.dtype != operands.a.dtype:
            rule = f'"a" is {operands.a.dtype}'
            raise _dtype_error(name, weight.dtype, rule, "Convert one of them to the other's")
    for name, extra in (("bias", operands.bias), ("residual", operands.residual)):
        if extra is not None and extra.dtype not in ELEMENTS:
            rule = f"it must be {halves} or torch.float32"
            raise _dtype_error(name, extra.dtype, rule, "Convert it to one of these")
    if operands.result_dtype not in ELEMENTS:
        raise _dtype_error(
            "out_dtype",
            operands.result_dtype,
            f"results are {halves} or torch.float32",
            "Convert the result afterwards",
        )


def check_out(out: Tensor, operands: Operands, shape: tuple[int, ...]) -> None:
    """Checks what is to receive the result.

    Raises:
        ShapeJitError: it does not fit.
    """
    if tuple(out.shape) != shape:
        rule = f"the result has the shape {list(shape)}"
        raise _shape_error("out", out, rule, f"Pass a tensor of shape {list(shape)}")
    if out.dtype != operands.result_dtype:
        rule = f"the result is {operands.result_dtype}"
        raise _dtype_error("out", out.dtype, rule, "Pass a tensor of that dtype or set out_dtype")
    _check_tensor("out", out, operands.a)
    if not out.is_contiguous():
        raise _out_error(f"a tensor of strides {out.stride()}", "results are contiguous")


def shared_memory_error() -> Exception:
    """The error of a result that shares memory with an input."""
    return _out_error("a tensor that shares memory with an input", "inputs are read to the end")


def _out_error(value: str, rule: str) -> Exception:
    return ErrorId.SJ_ARG_009.error(
        argument="out",
        operator=_OPERATOR,
        value=value,
        rule=rule,
        remedy="Pass another tensor, or none",
    )


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
    )


def _strided(tensor: Tensor, shape: tuple[int, ...]) -> Strided:
    return Strided(ELEMENTS[tensor.dtype], tensor.data_ptr(), tensor.expand(shape).stride())


def _shape_error(argument: str, tensor: Tensor, rule: str, remedy: str) -> Exception:
    return ErrorId.SJ_SHAPE_011.error(
        argument=argument,
        operator=_OPERATOR,
        shape=list(tensor.shape),
        rule=rule,
        remedy=remedy,
    )


def _dtype_error(argument: str, dtype: torch.dtype, rule: str, remedy: str) -> Exception:
    return ErrorId.SJ_DTYPE_003.error(
        argument=argument, operator=_OPERATOR, dtype=dtype, rule=rule, remedy=remedy
    )
