# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Matrix products of any sizes on NVIDIA GPUs, fused with what follows them."""

from __future__ import annotations

import functools
import gc
import threading
from concurrent.futures import wait
from typing import Any

import torch
from torch import Tensor

from shapejit.allocation import allocator, contiguous
from shapejit.codegen.builder import cubin_builder
from shapejit.gpu.driver import driver
from shapejit.gpu.launch import Kernel
from shapejit.native_calls import Calls, Plan
from shapejit.ops.gemm_kernels import KindKernels
from shapejit.ops.gemm_layout import GemmLayout, gemm_layout
from shapejit.ops.gemm_operands import (
    Operands,
    as_tensors,
    check,
    check_out,
    product,
    result_shape,
    shared_memory_error,
    uses_tf32,
)
from shapejit.ops.gemm_plan import RowPlan
from shapejit.ops.gemm_spec import GemmKind
from shapejit.ops.kernels import asking_ptxas, begin_build, code_memory
from shapejit.ops.tensors import current_stream

#: Kinds of calls that are remembered.
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
    float32_precision: str = "auto",
) -> Tensor:
    """``residual + activation(a @ b + bias) * (a @ gate)`` in one kernel. ::

        y = shapejit.ops.gemm(x, layer.weight.mT, bias=layer.bias, activation="gelu")

    A variant of a kernel serves all sizes of a kind of products (element types, which dims are
    contiguous, the epilogue); which variant is best depends on the sizes. One that is not built yet
    is built in the background, while calls use another; `compile_gemm` builds all ahead of time.

    Products are summed in float32, and all else is computed in it; the result is rounded once.

    Args:
        a: [..., m, k], float16, bfloat16 or float32, on a CUDA device, of any strides.
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
        float32_precision: of products of float32: ``ieee``; ``tf32``, which lets tensor cores round
            the factors to 11 bits; ``auto``, as torch is set (torch.set_float32_matmul_precision).

        Tensors of other libraries are taken through DLPack.

    Returns:
        [..., m, n] on the device of `a`; it is `out`, if given.

    Raises:
        ShapeJitError: shapes, dtypes or devices do not fit together.
        CudaError: the device refuses the launch.
    """
    # Every call comes through here, so that a line more is a microsecond's tenth more for each.
    result = _calls.run(
        a, b, gate, bias, residual, out, activation, out_dtype, float32_precision, deterministic
    )
    if result is None:
        a, b, gate, bias, residual = as_tensors(a, b, gate, bias, residual)
        result = _first_call(
            a, b, gate, bias, residual, out, activation, out_dtype, float32_precision, deterministic
        )
    return result


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
    float32_precision: str = "auto",
) -> list[str]:
    """Builds and loads every variant that calls of `gemm` like this one need, whatever m is.

    Calls with tensors of such sizes and strides are planned, too, and scratch memory of the current
    stream is allocated: none of them takes longer for being the first one.

    Args:
        a, b, bias, activation, gate, residual, out_dtype, float32_precision: as for `gemm`.
        rows: the least and the greatest m, with batch dims that join it.

    Returns:
        The variants' schedules by name, in the order of the m that they serve.

    Raises:
        ShapeJitError: as for `gemm`.
        Exception: what the build of a kernel raised.
    """
    a, b, gate, bias, residual = as_tensors(a, b, gate, bias, residual)
    precision = _settled(a, float32_precision)
    tf32 = precision == "tf32"
    operands = Operands(a, b, bias, gate, residual, activation, out_dtype, tf32)
    with asking_ptxas():
        layout, kernels = kernels_of(operands, result_shape(operands), 0)
        schedules = kernels.schedules(layout, rows)
    built = cubin_builder().stats().built
    wait(kernels.begin(schedules))
    loaded = [kernels.load(schedule) for schedule in schedules]
    _reserve([each.kernel for each in loaded if each.kernel is not None], a.device.index or 0)
    _plan_ahead(operands, (activation, out_dtype, precision, False), rows[0])
    if gc.isenabled() and cubin_builder().stats().built > built:
        # Builds leave enough behind for a full collection, which takes as long as a thousand calls
        # and would come in the middle of one.
        gc.collect()
    return list(map(str, schedules))


# Plans --------------------------------------------------------------------------------------------


def _first_call(
    a: Tensor,
    b: Tensor,
    gate: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    out: Tensor | None,
    activation: str | None,
    out_dtype: torch.dtype | None,
    float32_precision: str,
    deterministic: bool,
) -> Tensor:
    """The result of a call that there may be no plan for."""
    # torch's setting is read once, for the plan and its key, as other threads may change it.
    precision = _settled(a, float32_precision)
    arguments = (
        a, b, gate, bias, residual, out, activation, out_dtype, precision, deterministic,
    )  # fmt: skip
    tf32 = precision == "tf32"
    operands = Operands(a, b, bias, gate, residual, activation, out_dtype, tf32)
    # What is torch's now may have been another library's before; then there can be a plan.
    while (result := _calls.run(*arguments)) is None:
        _calls.add(_new_plan(operands, out), *arguments)
    return result


def _settled(a: Tensor, float32_precision: str) -> str:
    """The precision of a product, as torch is set at this moment; for halves it says nothing."""
    is_rounded = a.dtype is torch.float32 and uses_tf32(float32_precision)
    return "tf32" if is_rounded else "ieee"


def _reserve(kernels: list[Kernel], device_number: int) -> None:
    """Allocates what kernels need as scratch memory in the current stream: no call has to."""
    stream = current_stream(device_number)
    for kernel in sorted(kernels, key=lambda kernel: -kernel.workspace_bytes):
        kernel.reserve(stream)


def _plan_ahead(operands: Operands, others: tuple[Any, ...], least: int) -> None:
    """Plans calls with these operands, and if they may have one row, with the first one of each:
    no call has to wait for it, which is the time of a hundred calls."""
    a, residual = operands.a, operands.residual
    some = [operands]
    if a.dim() == 2 and a.shape[0] > 1 and least <= 1:
        if residual is not None and residual.dim() == 2 and residual.shape[0] == a.shape[0]:
            residual = residual[:1]
        some.append(operands._replace(a=a[:1], residual=residual))
    for each in some:
        tensors = (each.a, each.b, each.gate, each.bias, each.residual, None)
        _calls.add(_new_plan(each, None), *tensors, *others)


def _new_plan(operands: Operands, out: Tensor | None) -> Plan:
    """How calls like one are launched, whatever their number of rows is.

    Raises:
        ShapeJitError: the call is none that is taken.
    """
    if torch.is_grad_enabled() and any(tensor.requires_grad for _, tensor in operands.named()):
        check(operands)
    shape = result_shape(operands)
    if out is not None:
        check_out(out, operands, shape)
    # What torch allocates is aligned to far more than 16 bytes.
    address = 0 if out is None else out.data_ptr()
    layout, kernels = kernels_of(operands, shape, address)
    rows = RowPlan(layout, kernels)
    device = operands.a.device
    plan = Plan(
        rows.launch, kernels.memory.clock, allocator(device), shape, contiguous(shape),
        operands.result_dtype, device.index or 0, layout.m,
    )  # fmt: skip
    if 0 not in shape:
        rows.choose(plan)
    return plan


_calls = Calls(_MAX_PLANS, current_stream, uses_tf32, shared_memory_error)


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
    return KindKernels(kind, device, code_memory(device_number), begin_build)


_kinds_lock = threading.Lock()
