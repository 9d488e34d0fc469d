# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Matrix products of any sizes on NVIDIA GPUs, fused with what follows them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from shapejit.gpu.driver import driver
from shapejit.ops.gemm_kernels import CodeMemory, KindKernels
from shapejit.ops.gemm_layout import GemmLayout, gemm_layout
from shapejit.ops.gemm_operands import (
    Operands,
    check,
    check_memory,
    check_out,
    product,
    result_shape,
)
from shapejit.ops.gemm_plan import RowPlan
from shapejit.ops.gemm_spec import GemmKind

if TYPE_CHECKING:
    from shapejit.cache.cubins import CachedCubin, CubinUnit

#: Calls whose choice of a kernel is remembered.
_MAX_PLANS = 8192


def gemm(
    a: Any,
    b: Any,
    *,
    bias: Any = None,
    activation: str | None = None,
    gate: Any = None,
    residual: Any = None,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    deterministic: bool = False,
) -> Tensor:
    """``residual + activation(a @ b + bias) * (a @ gate)`` in one kernel. ::

        y = shapejit.ops.gemm(x, layer.weight.mT, bias=layer.bias, activation="gelu")

    A variant of a kernel serves all sizes of a kind of products (element types, which dims are
    contiguous, the epilogue); which variant is best depends on the sizes. One that is not built yet
    is built in the background, while calls use another; `compile_gemm` builds all ahead of time.

    Products are summed in float32, and all else is computed in it; the result is rounded once.

    Args:
        a: [..., m, k], float16 or bfloat16, on a CUDA device, of any strides.
        b: [..., k, n], like `a`; batch dims broadcast as in `torch.matmul`. The product is fastest
            where `a` and `b` have neighbouring elements along one of their last two dims, and
            addresses and other strides that are multiples of 16 bytes.
        bias: broadcast to the result's shape; float16, bfloat16 or float32.
        activation: ``relu``, ``gelu``, ``gelu_tanh``, ``silu``, ``tanh`` or ``sigmoid``.
        gate: like `b`; what the activation gives is multiplied by ``a @ gate``.
        residual: broadcast to the result's shape and added last; a dtype as for `bias`.
        out_dtype: of the result: float16, bfloat16 or float32; by default that of `a`.
        out: receives the result; contiguous, no memory of an input.
        deterministic: wait for the chosen variant, so that equal calls give equal bits from the
            first one on.

        Tensors of other libraries are taken through DLPack.

    Returns:
        [..., m, n] on the device of `a`; it is `out`, if given.

    Raises:
        ShapeJitError: shapes, dtypes or devices do not fit together.
        CudaError: the device refuses the launch.
    """
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        a, b = _tensor(a), _tensor(b)
    if gate is not None or bias is not None or residual is not None:
        gate, bias, residual = _tensor(gate), _tensor(bias), _tensor(residual)
    operands = (a, b, bias, gate, residual, activation, out_dtype)
    key, addresses, rows = _key(operands, out)
    plan = _plans.get(key)
    if plan is None:
        plan = _Plan(Operands(*operands), out)
        _remember(key, plan)
    return plan.launch(operands, addresses, rows, out, deterministic)


def compile_gemm(
    a: Any,
    b: Any,
    *,
    bias: Any = None,
    activation: str | None = None,
    gate: Any = None,
    residual: Any = None,
    out_dtype: torch.dtype | None = None,
    rows: tuple[int, int] = (1, 8192),
) -> list[str]:
    """Builds and loads every variant that calls of `gemm` like this one need, whatever m is.

    Args:
        a, b, bias, activation, gate, residual, out_dtype: as for `gemm`.
        rows: the least and the greatest m, with batch dims that join it.

    Returns:
        The variants' schedules by name, in the order of the m that they serve.

    Raises:
        ShapeJitError: as for `gemm`.
        Exception: what the build of a kernel raised.
    """
    a, b, bias, gate, residual = map(_tensor, (a, b, bias, gate, residual))
    operands = Operands(a, b, bias, gate, residual, activation, out_dtype)
    layout, kernels = kernels_of(operands, result_shape(operands), 0)
    schedules = kernels.schedules(layout, rows)
    wait(kernels.begin(schedules))
    for schedule in schedules:
        kernels.load(schedule)
    return list(map(str, schedules))


def _tensor(value: Any) -> Any:
    if value is None or isinstance(value, Tensor):
        return value
    return torch.utils.dlpack.from_dlpack(value)


# Plans --------------------------------------------------------------------------------------------

# The handle of the current stream; the public way to it makes an object of every stream.
_current_stream: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)

# What a call looks up: all that decides on its kernel and the numbers that it is called with.
_Key = tuple[Any, ...]
# The fields of `Operands`, before they are worth an object.
_Arguments = tuple[Any, Any, Any, Any, Any, "str | None", "torch.dtype | None"]
_plans: dict[_Key, _Plan] = {}
_plans_lock = threading.Lock()


def _key(operands: _Arguments, out: Tensor | None) -> tuple[_Key, list[int], int]:
    """The key of a call, the addresses of its inputs in the kernel's order, and its rows.

    The key of a product with a weight that all rows share leaves out how many rows there are, but
    for 0 and 1, which change what strides mean. The rows are 0 if the key says how many there are.
    """
    a, b, bias, gate, residual, activation, out_dtype = operands
    addresses = [a.data_ptr(), b.data_ptr()]
    low_bits = addresses[0] | addresses[1]
    shape = a.shape
    rows = _free_rows(shape, a, b, gate, residual, out)
    key: list[Any] = [
        shape[1] if rows else shape, a.stride(), a.dtype, a.device,
        b.shape, b.stride(), b.dtype, activation, out_dtype,
    ]  # fmt: skip
    needs_grad = a.requires_grad or b.requires_grad
    if gate is not None:
        addresses.append(gate.data_ptr())
        low_bits |= addresses[-1]
        key += ["gate", gate.shape, gate.stride(), gate.dtype]
        needs_grad |= gate.requires_grad
    if bias is not None:
        addresses.append(bias.data_ptr())
        key += ["bias", bias.shape, bias.stride(), bias.dtype, addresses[-1] & 15]
        needs_grad |= bias.requires_grad
    if residual is not None:
        addresses.append(residual.data_ptr())
        known = residual.shape[1:] if rows else residual.shape
        key += ["residual", known, residual.stride(), residual.dtype, addresses[-1] & 15]
        needs_grad |= residual.requires_grad
    if out is not None:
        low_bits |= out.data_ptr()
        known = out.shape[1:] if rows else out.shape
        key += ["out", known, out.stride(), out.dtype, out.device]
    if needs_grad and torch.is_grad_enabled():
        check(Operands(*operands))
    key.append(low_bits & 15)
    return tuple(key), addresses, rows


def _free_rows(
    shape: torch.Size, a: Any, b: Any, gate: Any, residual: Any, out: Tensor | None
) -> int:
    """The rows of a product if its key need not know them, else 0."""
    if len(shape) != 2 or shape[0] < 2 or b.dim() != 2:
        return 0
    rows = shape[0]
    if gate is not None and gate.dim() != 2:
        return 0
    if residual is not None and (residual.dim() != 2 or residual.shape[0] != rows):
        return 0
    if out is not None and (out.dim() != 2 or out.shape[0] != rows):
        return 0
    return rows


def _remember(key: _Key, plan: _Plan) -> None:
    with _plans_lock:
        if len(_plans) >= _MAX_PLANS:
            # The oldest one; it costs little to make again.
            del _plans[next(iter(_plans))]
        _plans[key] = plan


class _Plan:
    """How calls of one key are launched."""

    __slots__ = ("_device", "_dtype", "_row_plan", "_rows", "_shape", "_tail")

    def __init__(self, operands: Operands, out: Tensor | None) -> None:
        shape = result_shape(operands)
        if out is not None:
            check_out(out, operands, shape)
        # What torch allocates is aligned to far more than 16 bytes.
        address = 0 if out is None else out.data_ptr()
        layout, kernels = kernels_of(operands, shape, address)
        self._row_plan = RowPlan(layout, kernels)
        self._rows = layout.m
        self._shape = shape
        self._tail = shape[1:]
        self._dtype = operands.result_dtype
        self._device = operands.a.device

    def launch(
        self,
        operands: _Arguments,
        addresses: list[int],
        rows: int,
        out: Tensor | None,
        deterministic: bool,
    ) -> Tensor:
        """Launches the product into the current stream, and gives its result.

        Args:
            rows: of the result; 0 if they are those of the plan.
        """
        if out is None:
            shape = (rows, *self._tail) if rows else self._shape
            result = torch.empty(shape, dtype=self._dtype, device=self._device)
        else:
            result = out
            check_memory(out, operands)
        if not result.numel():
            return result
        addresses.append(result.data_ptr())
        if _current_stream is not None:
            stream = _current_stream(self._device.index)
        else:
            stream = torch.cuda.current_stream(self._device).cuda_stream
        self._row_plan.launch(addresses, rows or self._rows, stream, final=deterministic)
        return result


# Kernels ------------------------------------------------------------------------------------------


def kernels_of(
    operands: Operands, shape: tuple[int, ...], result_address: int
) -> tuple[GemmLayout, KindKernels]:
    """A product as kernels see it, and the kernels of its kind on the operands' device.

    Args:
        operands: of the product.
        shape: of its result, see `result_shape`.
        result_address: where it is to lie; only its alignment matters.

    Raises:
        ShapeJitError: an operand is of a dtype, on a device or of a kind that is not taken.
    """
    check(operands)
    layout = gemm_layout(product(operands, shape, result_address))
    return layout, _kind_kernels(layout.kind, operands.a.device.index or 0)


def _kind_kernels(kind: GemmKind, device_number: int) -> KindKernels:
    with _kinds_lock:  # so that threads that come first share the kernels
        return _make_kind_kernels(kind, device_number)


@functools.lru_cache(maxsize=1024)
def _make_kind_kernels(kind: GemmKind, device_number: int) -> KindKernels:
    device = driver().device(device_number)
    return KindKernels(kind, device, code_memory(device_number), _build)


_kinds_lock = threading.Lock()


@functools.cache
def code_memory(device_number: int) -> CodeMemory:
    """What bounds the machine code of this module's kernels on a device."""
    return CodeMemory()


def _build(unit: CubinUnit, urgent: bool) -> Future[CachedCubin]:
    from shapejit.codegen.builder import cubin_builder

    return cubin_builder().build_async(unit, urgent=urgent)
