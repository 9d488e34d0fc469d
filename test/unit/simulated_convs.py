# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Convolutions lowered for a GPU, run on a simulated one, and compared with float64."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import mlir.ir as ir
import torch
from torch import Tensor

from reference.hopper.launch import kernel_function, simulate
from shapejit import ir as sir
from shapejit.codegen.ptxas import Cubin, assemble
from shapejit.gpu.interface import KernelInterface
from shapejit.passes.nvgpu.conv.lowering import lower
from shapejit.passes.nvgpu.target import HOPPER
from unit.cpu_convs import Layer, kernel_text, pack_filter
from unit.cpu_kernels import DTYPES
from unit.machine_code import device_code

#: By how much of itself, and of the largest element, an element may differ from float64.
ERRORS = {
    "bf16": (2.0**-8, 2.0**-14),
    "f16": (2.0**-11, 2.0**-14),
    "f32": (2.0**-24, 2.0**-20),
}


@functools.cache
def lowered(layer: Layer, schedule: str, block: bool = False, ahead: bool = False) -> LoweredConv:
    """A layer's kernel lowered by a schedule, see `LoweredConv`."""
    return LoweredConv(layer, schedule, block, ahead)


class LoweredConv:
    """A layer's variant for a GPU.

    Args:
        layer: the layer. Its panels, if it has some, are of one filter.
        schedule: text of the variant.
        block: whether its parameters lie in a parameter block.
        ahead: whether it may start, and load its filters, before the kernel ahead of it ends.

    Attributes:
        interface: how it is called.
        results: element type and sizes, over the kernel's symbols, of the result.
    """

    def __init__(self, layer: Layer, schedule: str, block: bool, ahead: bool) -> None:
        self._layer = layer
        self._context = ir.Context()
        with self._context, ir.Location.unknown():
            self._module = ir.Module.parse(kernel_text(layer))
            kernel = sir.kernels(self._module)["k"]
            [result] = sir.operations(sir.body(kernel))[-1].operands
            self.results = [(DTYPES[layer.element], tuple(sir.shape_of(result)))]
            self.interface: KernelInterface = lower(
                kernel,
                schedule,
                HOPPER,
                block=block,
                programmatic=ahead,
                constant_weights=ahead,
            )
            self._gpu_module = next(
                op for op in sir.operations(self._module.body) if op.name == "gpu.module"
            )
            self._module.operation.verify()
            self._function = kernel_function(self._gpu_module)

    def assemble(self) -> Cubin:
        """Machine code, by ptxas.

        Raises:
            AssemblyError: ptxas refused it, or warned of what no kernel may have.
        """
        code = device_code(self._gpu_module)
        return assemble(code.ptx, code.arch)

    def run(self, operands: Sequence[Tensor], *, multiprocessors: int = 4, seed: int = 0) -> Tensor:
        """The result [n, f, o..] of operands as `Layer.operands` gives them."""
        layer, x, inputs = self._layer, operands[0], arguments(self._layer, operands)
        channels = layer.groups * layer.outside
        pixels = [max(size, 0) for size in layer.pixels(x.shape[2:])]
        sizes = (*pixels, channels) if layer.last[1] else (channels, *pixels)
        with self._context:
            result = simulate(
                self._function,
                self.interface,
                inputs,
                torch.empty((x.shape[0], *sizes), dtype=DTYPES[layer.element]),
                [x.shape[0], *x.shape[2:]],
                multiprocessors=multiprocessors,
                seed=seed,
            )
        return torch.movedim(result, -1, 1) if layer.last[1] else result


def arguments(layer: Layer, operands: Sequence[Tensor]) -> list[Tensor]:
    """Operands, as `Layer.operands` gives them, as the kernel takes them."""
    x, weight, *others = operands
    made = [_laid_out(x, layer.last[0])]
    if layer.taps_first:
        made.append(weight.movedim(0, -1).squeeze(0).contiguous())
    else:
        made.append(weight if layer.panel is None else pack_filter(weight, layer.groups, 1))
    return [*made, others[0], _laid_out(others[1], layer.last[1])] if others else made


def _laid_out(x: Tensor, last: bool) -> Tensor:
    return torch.movedim(x, 1, -1).contiguous() if last else x.contiguous()


def check(
    layer: Layer,
    schedule: str,
    batch: int,
    image: Sequence[int],
    *,
    block: bool = False,
    ahead: bool = False,
    multiprocessors: int = 4,
    seed: int = 0,
) -> Tensor:
    """Runs a layer on random values and compares it with torch in float64.

    An element may differ by the rounding of its type, and by 2^-14 of the largest, as products of
    16 bits are exact in f32; of f32 itself by 2^-20 of that.
    """
    kernel = lowered(layer, schedule, block, ahead)
    torch.manual_seed(batch + sum(1000**i * size for i, size in enumerate(image, 1)))
    operands = layer.operands(batch, image)
    operands[1] /= math.sqrt(max(layer.inside * math.prod(layer.taps), 1))
    got = kernel.run(operands, multiprocessors=multiprocessors, seed=seed)
    expected = layer.reference([operand.double() for operand in operands])
    assert got.shape == expected.shape
    if expected.numel():
        half_ulp, sums = ERRORS[layer.element]
        allowed = half_ulp * expected.abs() + sums * expected.abs().max()
        worst = (got.double() - expected).abs() - allowed
        assert (worst <= 0).all(), f"{worst.max()} too far off at {batch=} {image=}"
    return got
