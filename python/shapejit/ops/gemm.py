# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Matrix products of any sizes on NVIDIA GPUs, fused with what follows them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from math import prod
from typing import Any

import torch
from torch import Tensor

from shapejit.allocation import allocator
from shapejit.gpu.driver import driver
from shapejit.ops.gemm_kernels import KindKernels
from shapejit.ops.gemm_layout import GemmLayout, gemm_layout
from shapejit.ops.gemm_operands import (
    Operands,
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
from shapejit.ops.tensors import as_tensor, raw_stream, reach

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
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.is_neg() or b.is_neg():
        a, b = as_tensor(a), as_tensor(b)
    if gate is not None or bias is not None or residual is not None:
        gate, bias, residual = as_tensor(gate), as_tensor(bias), as_tensor(residual)
    tf32 = a.dtype is torch.float32 and uses_tf32(float32_precision)
    key, addresses, rows = _key(a, b, bias, gate, residual, activation, out_dtype, out)
    if tf32:
        key = (*key, "tf32")
    plan = _plans.get(key)
    if plan is None:
        operands = Operands(a, b, bias, gate, residual, activation, out_dtype, tf32)
        plan = _Plan(operands, out, bool(rows))
        _remember(key, plan)
    return plan.launch(addresses, rows, out, deterministic)


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

    Args:
        a, b, bias, activation, gate, residual, out_dtype, float32_precision: as for `gemm`.
        rows: the least and the greatest m, with batch dims that join it.

    Returns:
        The variants' schedules by name, in the order of the m that they serve.

    Raises:
        ShapeJitError: as for `gemm`.
        Exception: what the build of a kernel raised.
    """
    a, b, bias, gate, residual = map(as_tensor, (a, b, bias, gate, residual))
    tf32 = a.dtype is torch.float32 and uses_tf32(float32_precision)
    operands = Operands(a, b, bias, gate, residual, activation, out_dtype, tf32)
    with asking_ptxas():
        layout, kernels = kernels_of(operands, result_shape(operands), 0)
        schedules = kernels.schedules(layout, rows)
    wait(kernels.begin(schedules))
    for schedule in schedules:
        kernels.load(schedule)
    return list(map(str, schedules))


# Plans --------------------------------------------------------------------------------------------

_current_stream = raw_stream

# What a call looks up: all that decides on its kernel and the numbers that it is called with.
_Key = tuple[Any, ...]
_plans: dict[_Key, _Plan] = {}
_plans_lock = threading.Lock()


def _key(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    gate: Tensor | None,
    residual: Tensor | None,
    activation: str | None,
    out_dtype: torch.dtype | None,
    out: Tensor | None,
) -> tuple[_Key, list[int], int]:
    """The key of a call, the addresses of its inputs in the kernel's order, and its rows.

    The key of a product with a weight that all rows share leaves out how many rows there are, but
    for 0 and 1, which change what strides mean. The rows are 0 if the key says how many there are.

    Every call comes through here, so that a line more is a microsecond's tenth more for each.
    """
    addresses = [a.data_ptr(), b.data_ptr()]
    low_bits = addresses[0] | addresses[1]
    shape, weight = a.shape, b.shape
    rows = 0
    known: Any = shape
    if len(shape) == 2 and len(weight) == 2 and shape[0] > 1:
        rows, known = shape
        if (gate is not None or residual is not None or out is not None) and not all(
            _fits_free_rows(rows, gate, residual, out)
        ):
            rows, known = 0, shape
    needs_grad = a.requires_grad or b.requires_grad
    others: tuple[Any, ...] = ()
    if gate is not None or bias is not None or residual is not None or out is not None:
        others, bits, wants = _others(bias, gate, residual, out, addresses, rows)
        low_bits |= bits
        needs_grad |= wants
    if needs_grad and torch.is_grad_enabled():
        check(Operands(a, b, bias, gate, residual, activation, out_dtype))
    key = (
        known, a.stride(), a.dtype, a.get_device(),
        weight, b.stride(), b.dtype, b.get_device(),
        activation, out_dtype, low_bits & 15, others,
    )  # fmt: skip
    return key, addresses, rows


def _fits_free_rows(
    rows: int, gate: Tensor | None, residual: Tensor | None, out: Tensor | None
) -> Iterator[bool]:
    """Whether a key need not know the rows because of each operand."""
    if gate is not None:
        yield gate.dim() == 2
    for tensor in (residual, out):
        if tensor is not None:
            yield tensor.dim() == 2 and tensor.shape[0] == rows


def _others(
    bias: Tensor | None,
    gate: Tensor | None,
    residual: Tensor | None,
    out: Tensor | None,
    addresses: list[int],
    rows: int,
) -> tuple[tuple[Any, ...], int, bool]:
    """The part of a key that says all beside the factors; adds their addresses.

    Returns:
        The part, the bits of addresses that decide on alignment, whether one requires a gradient.
    """
    part: list[Any] = []
    low_bits = 0
    needs_grad = False
    if gate is not None:
        addresses.append(low_bits := gate.data_ptr())
        part += ["gate", gate.shape, gate.stride(), gate.dtype, gate.get_device()]
        needs_grad = gate.requires_grad
    if bias is not None:
        addresses.append(address := bias.data_ptr())
        part += ["bias", bias.shape, bias.stride(), bias.dtype, bias.get_device(), address & 15]
        needs_grad |= bias.requires_grad
    if residual is not None:
        addresses.append(address := residual.data_ptr())
        shape = residual.shape
        part += ["residual", shape[1:] if rows else shape, residual.stride(), residual.dtype]
        part += [residual.get_device(), address & 15]
        needs_grad |= residual.requires_grad
    if out is not None:
        low_bits |= out.data_ptr()
        shape = out.shape
        part += ["out", shape[1:] if rows else shape, out.stride(), out.dtype, out.get_device()]
        # A plan for these is refused, see `check_out`; so none is found.
        part += [out.is_neg(), out.requires_grad and torch.is_grad_enabled()]
    return tuple(part), low_bits, needs_grad


def _remember(key: _Key, plan: _Plan) -> None:
    with _plans_lock:
        if len(_plans) >= _MAX_PLANS:
            # The oldest one; it costs little to make again.
            del _plans[next(iter(_plans))]
        _plans[key] = plan


class _Plan:
    """How calls of one key are launched."""

    __slots__ = (
        "_allocate", "_columns", "_device", "_dtype", "_empty", "_launched", "_reach", "_row_bytes",
        "_row_plan", "_rows", "_shape", "_strides", "_tick",
    )  # fmt: skip

    def __init__(self, operands: Operands, out: Tensor | None, free_rows: bool) -> None:
        shape = result_shape(operands)
        if out is not None:
            check_out(out, operands, shape)
        # What torch allocates is aligned to far more than 16 bytes.
        address = 0 if out is None else out.data_ptr()
        layout, kernels = kernels_of(operands, shape, address)
        self._row_plan = RowPlan(layout, kernels)
        self._launched = self._row_plan.launched
        self._tick = kernels.memory.clock.__next__
        self._rows = layout.m
        self._shape = shape
        self._columns = shape[-1]
        self._empty = 0 in shape
        self._strides = torch.empty(shape, device="meta").stride()
        self._dtype = operands.result_dtype
        self._row_bytes = prod(shape[1:]) * self._dtype.itemsize
        self._device = operands.a.device.index or 0
        self._allocate = allocator(operands.a.device)
        self._reach = [
            reach(tensor, free_rows=free_rows and name in ("a", "residual"))
            for name, tensor in operands.named()
        ]

    def launch(
        self, addresses: list[int], rows: int, out: Tensor | None, deterministic: bool
    ) -> Tensor:
        """Launches the product into the current stream, and gives its result.

        Args:
            addresses: of the inputs in the kernel's order.
            rows: of the result; 0 if they are those of the plan.
            out: is to receive the result.
            deterministic: whether to wait for the kernel that is chosen.
        """
        if out is not None:
            self._check_memory(out, addresses, rows)
            result = out
        elif rows:
            result = self._allocate((rows, self._columns), self._strides, self._dtype)
        else:
            result = self._allocate(self._shape, self._strides, self._dtype)
        if self._empty:
            return result
        addresses.append(result.data_ptr())
        if _current_stream is not None:
            stream = _current_stream(self._device)
        else:
            stream = torch.cuda.current_stream(self._device).cuda_stream
        launched = self._launched.get(rows)
        if launched is not None and (kernel := launched[0].kernel) is not None:
            launched[0].used = self._tick()
            kernel.launch_packed(addresses, launched[1], stream)
        else:  # rows that were not seen yet, or an evicted kernel
            self._row_plan.launch(addresses, rows, rows or self._rows, stream, final=deterministic)
        return result

    def _check_memory(self, out: Tensor, addresses: list[int], rows: int) -> None:
        """Checks that a result shares no memory with an input."""
        start = out.data_ptr()
        end = start + self._row_bytes * (rows or self._shape[0])
        for address, (constant, factor) in zip(addresses, self._reach, strict=True):
            if address < end and start < address + constant + factor * rows:
                raise shared_memory_error()


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
