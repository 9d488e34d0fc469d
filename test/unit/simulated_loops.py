# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels of loops given as IR text, lowered for a GPU and run on a simulated one."""

from __future__ import annotations

from collections.abc import Sequence

import mlir.ir as ir
import numpy as np
import torch
from torch import Tensor

from reference.hopper.launch import Launch, kernel_function
from shapejit import ir as sir
from shapejit.codegen.ptx import DeviceCode
from shapejit.codegen.ptxas import Cubin, assemble
from shapejit.gpu.interface import KernelInterface
from shapejit.passes.buckets.device import H200
from shapejit.passes.gpu_loops import lowering
from shapejit.passes.nvgpu.target import HOPPER
from unit.cpu_kernels import DTYPES
from unit.machine_code import device_code

Ranges = dict[int, tuple[int, int | None]]


class GpuKernel:
    """A ``shapejit.kernel`` of loops in one variant.

    Args:
        text: a module with one kernel of the name k.
        variant: text of its schedule; None for the one that is chosen for `sizes`.
        sizes: bounds of the kernel's symbols; by default up to 5000 for s0, up to 100 for others.
        block: whether its parameters lie in a parameter block.
        programmatic: whether it may start before the kernel ahead of it ends.

    Attributes:
        interface: how it is called.
        variants: all that were chosen.
        results: dtype and sizes of every result.
    """

    def __init__(
        self,
        text: str,
        variant: str | None = None,
        *,
        sizes: Ranges | None = None,
        block: bool = False,
        programmatic: bool = False,
    ) -> None:
        self._context = ir.Context()
        with self._context, ir.Location.unknown():
            self._module = ir.Module.parse(text)
            kernel = sir.kernels(self._module)["k"]
            symbols = ir.IntegerAttr(kernel.attributes["symbols"]).value
            bounds = sizes or {**dict.fromkeys(range(symbols), (0, 100)), 0: (0, 5000)}
            self.axes, self.buckets = lowering.choose(kernel, bounds, H200)
            self.variants = [bucket[2] for bucket in self.buckets]
            self.variant = variant or self.variants[0]
            body = sir.body(kernel)
            self.results = [
                (DTYPES[str(value.type.element_type)], sir.shape_of(value))
                for value in sir.operations(body)[-1].operands
            ]
            self.interface: KernelInterface = lowering.lower(
                kernel, self.variant, HOPPER, block=block, programmatic=programmatic
            )
            self._gpu_module = next(
                op for op in sir.operations(self._module.body) if op.name == "gpu.module"
            )
            self._module.operation.verify()
            self._function = kernel_function(self._gpu_module)

    def ptx(self) -> DeviceCode:
        """What LLVM makes of it."""
        return device_code(self._gpu_module)

    def assemble(self) -> Cubin:
        """Machine code, by ptxas."""
        code = self.ptx()
        return assemble(code.ptx, code.arch)

    def __call__(
        self,
        inputs: Sequence[Tensor],
        *symbols: int,
        shifts: Sequence[int] = (),
        multiprocessors: int = 2,
        seed: int = 0,
    ) -> list[Tensor]:
        """The results, on a simulated GPU; they are garbage before.

        Args:
            inputs: the kernel's arguments.
            symbols: its symbols.
            shifts: bytes by which each operand's address, results last, misses a multiple of 256.
            multiprocessors: of the simulated GPU.
            seed: of the order of events.
        """
        outputs = [
            _garbage(dtype, [size.evaluate(symbols) for size in sizes])
            for dtype, sizes in self.results
        ]
        with self._context:
            launch = Launch(
                self._function,
                self.interface,
                symbols,
                multiprocessors=multiprocessors,
                seed=seed,
            )
            tensors = [*inputs, *outputs]
            addresses = []
            for tensor, shift in zip(tensors, shifts or [0] * len(tensors), strict=True):
                data = _bytes(tensor)
                addresses.append(launch.memory.allocate(data.size, shift=shift))
                launch.memory.write(addresses[-1], data)
            launch.run(addresses)
        read = addresses[len(inputs) :]
        return [
            _tensor(launch.memory.read(address, each.numel() * each.element_size()), each)
            for address, each in zip(read, outputs, strict=True)
        ]


def _bytes(tensor: Tensor) -> np.ndarray:
    if not tensor.numel():
        return np.zeros(0, np.uint8)
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()


def _tensor(data: np.ndarray, like: Tensor) -> Tensor:
    if not data.size:
        return torch.empty_like(like)
    if like.dtype == torch.bool:
        assert set(np.unique(data)) <= {0, 1}, "a bool is a byte of 0 or 1"
    return torch.frombuffer(bytearray(data.tobytes()), dtype=like.dtype).reshape(like.shape)


def _garbage(dtype: torch.dtype, sizes: Sequence[int]) -> Tensor:
    if dtype.is_floating_point:
        return torch.full(sizes, float("nan"), dtype=dtype)
    return torch.full(sizes, 1 if dtype == torch.bool else 77, dtype=dtype)
