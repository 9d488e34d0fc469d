# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Tensors of operators: where they come from, what is checked of them, where results lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shapejit.errors import ErrorId
from shapejit.native_calls import has_memory

HALVES = (torch.bfloat16, torch.float16)

ELEMENTS = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
"""Element types of numbers as the IR names them."""

raw_stream: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
"""The handle of a device's current stream; the public way to it makes an object of every stream."""


def current_stream(device_number: int) -> int:
    """The handle of a device's current stream."""
    if raw_stream is not None:
        return raw_stream(device_number)
    handle: int = torch.cuda.current_stream(device_number).cuda_stream
    return handle


def as_tensor(value: Any) -> Any:
    """A tensor of another library as one of torch, through DLPack; None and tensors as they are.
    But kernels read what is in memory: of a tensor that torch negates when it reads it, such as
    ``x.conj().imag``, a copy."""
    if value is None:
        return value
    if isinstance(value, Tensor):
        return value.resolve_neg() if value.is_neg() else value
    return torch.utils.dlpack.from_dlpack(value)


def reach(tensor: Tensor, *, free_rows: bool) -> tuple[int, int]:
    """Bytes that a tensor spans in memory: a constant and a factor of its first size.

    Args:
        tensor: an operand.
        free_rows: whether its first size differs between calls; else the factor is 0.
    """
    width = tensor.element_size()
    pairs = list(zip(tensor.shape, tensor.stride(), strict=True))
    if any(size == 0 for size, _ in pairs[free_rows:]) or not tensor.numel():
        return 0, 0
    if not free_rows:
        return width * (1 + sum((size - 1) * stride for size, stride in pairs)), 0
    (_, step), *inner = pairs
    return width * (1 + sum((size - 1) * stride for size, stride in inner) - step), width * step


@dataclass(frozen=True)
class Rules:
    """Errors of an operator's arguments, and checks that all operators make.

    Attributes:
        operator: its name.
        alternative: torch's function for tensors that are not on a GPU.
    """

    operator: str
    alternative: str

    def tensor(self, name: str, value: Any) -> Tensor:
        """An operand as a tensor of torch; see `as_tensor`.

        Raises:
            ArgumentError: it is no tensor (SJ-ARG-009).
        """
        rule, cause = "it must be a tensor", None
        if isinstance(value, Tensor) or hasattr(value, "__dlpack__"):
            try:
                found: Tensor = as_tensor(value)
                return found
            except (BufferError, RuntimeError, TypeError, ValueError) as error:
                cause = error
                reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
                rule = f"DLPack does not hand it over: {reason}"
        kind = "None" if value is None else f"a {type(value).__name__}"
        remedy = "Pass one of torch, or of a library that has DLPack"
        raise self.argument(name, kind, rule, remedy) from cause

    def optional(self, name: str, value: Any) -> Tensor | None:
        """The same of an operand that may be missing."""
        return None if value is None else self.tensor(name, value)

    def check_device(self, name: str, tensor: Tensor) -> None:
        """Checks that the tensor that says where the operator runs is on a GPU.

        Raises:
            ShapeJitError: it is not.
        """
        if tensor.device.type != "cuda":
            raise ErrorId.SJ_DEVICE_003.error(
                argument=name,
                operator=self.operator,
                device=tensor.device,
                rule="it runs on NVIDIA GPUs",
                remedy=f"Move the operands to a CUDA device, or use {self.alternative}",
            )

    def check_tensor(self, name: str, tensor: Tensor, first: str, like: Tensor) -> None:
        """Checks that a tensor is a dense one in memory, on the device of another, that needs no
        gradient.

        Args:
            name: of the argument.
            tensor: it.
            first, like: name and tensor of the other argument.

        Raises:
            ShapeJitError: it is not.
        """
        if tensor.device != like.device:
            raise ErrorId.SJ_DEVICE_003.error(
                argument=name,
                operator=self.operator,
                device=tensor.device,
                rule=f'"{first}" is on {like.device}',
                remedy="Move all operands to one device",
            )
        if tensor.layout != torch.strided:
            raise ErrorId.SJ_ARG_006.error(argument=name, layout=tensor.layout)
        if not has_memory(tensor):
            raise ErrorId.SJ_ARG_012.error(argument=name, kind=type(tensor).__name__)
        if tensor.is_neg():
            value, rule = "a tensor that torch negates when it reads it", "memory holds its values"
            raise self.argument(name, value, rule, f"Pass {name}.resolve_neg()")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise ErrorId.SJ_GRAD_001.error(what=f'"{name}" of {self.operator}()')

    def shape(self, argument: str, tensor: Tensor, rule: str, remedy: str) -> Exception:
        """The error of a shape that breaks a rule."""
        return ErrorId.SJ_SHAPE_011.error(
            argument=argument,
            operator=self.operator,
            shape=list(tensor.shape),
            rule=rule,
            remedy=remedy,
        )

    def dtype(self, argument: str, dtype: torch.dtype, rule: str, remedy: str) -> Exception:
        """The error of a dtype that breaks a rule."""
        return ErrorId.SJ_DTYPE_003.error(
            argument=argument, operator=self.operator, dtype=dtype, rule=rule, remedy=remedy
        )

    def argument(self, name: str, value: str, rule: str, remedy: str) -> Exception:
        """The error of another argument that breaks a rule."""
        return ErrorId.SJ_ARG_009.error(
            argument=name, operator=self.operator, value=value, rule=rule, remedy=remedy
        )

    def check_out(self, out: Any) -> None:
        """Checks that what is to receive a result is a tensor of torch.

        Raises:
            ArgumentError: it is not (SJ-ARG-009).
        """
        if not isinstance(out, Tensor):
            raise self.out(f"a {type(out).__name__}", "results are written to a tensor of torch")

    def out(self, value: str, rule: str) -> Exception:
        """The error of a tensor that cannot receive a result."""
        return self.argument("out", value, rule, "Pass another tensor, or none")

    def shared_memory(self) -> Exception:
        """The error of a result that shares memory with an input."""
        return self.out("a tensor that shares memory with an input", "inputs are read to the end")
