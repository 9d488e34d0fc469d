# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Programs under constant graphs for tests: chains of kernels whose words a test says itself."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from ctypes import c_int64
from dataclasses import dataclass, replace
from typing import Any

import mlir.ir as ir
import torch
from torch import Tensor

from shapejit import ir as sir
from shapejit.cache.cubins import CubinEntry, CubinRecipe, cubin_unit
from shapejit.codegen import HostTarget, JitLibrary, compile_object
from shapejit.codegen.builder import cubin_builder
from shapejit.codegen.ptx import private_context
from shapejit.codegen.ptxas import find_ptxas
from shapejit.gpu.device import Device
from shapejit.gpu.graph import GraphLaunch, GraphProgram, Head
from shapejit.gpu.interface import KernelInterface, TensorMap
from shapejit.gpu.launch import Kernel
from shapejit.gpu.module import Module
from shapejit.passes.nvgpu.head import head_unit
from shapejit.symbolic import Expr
from unit.simulated_gemms import Gemm

# A call's symbols are the number of its region, then all words.
_HOST = """
llvm.func @region_of(%symbols: !llvm.ptr) -> i64 {
  %region = llvm.load %symbols : !llvm.ptr -> i64
  llvm.return %region : i64
}
llvm.func @words_of(%symbols: !llvm.ptr, %buffers: !llvm.ptr, %arena: !llvm.ptr, %to: !llvm.ptr) {
  %from = llvm.getelementptr %symbols[1] : (!llvm.ptr) -> !llvm.ptr, i64
  "llvm.intr.memcpy.inline"(%to, %from) <{isVolatile = false, len = BYTES : i64}>
    : (!llvm.ptr, !llvm.ptr) -> ()
  llvm.return
}
"""


@functools.cache
def host_functions(words: int) -> JitLibrary:
    """The host program: ``region_of`` and ``words_of``."""
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(_HOST.replace("BYTES", str(8 * words)))
        return JitLibrary([compile_object(module, HostTarget.host())])


@functools.cache
def head(device: Device, words: int) -> Head:
    """The head kernel for so many words."""
    unit = head_unit(words, device.arch, find_ptxas())
    built = cubin_builder().build_async(unit).result()
    return Head.load(CubinEntry.decode(built.lease.data), device)


class TestProgram:
    """A program whose calls are given by their words.

    Args:
        regions: the launches of each region.
        call_words: how many words a call may change.
        word_count: all words.
    """

    __test__ = False

    def __init__(
        self,
        device: Device,
        regions: Mapping[int, Sequence[GraphLaunch]],
        call_words: int,
        word_count: int,
        **arguments: Any,
    ) -> None:
        host = host_functions(word_count)
        self._symbols = c_int64 * (1 + word_count)
        self.graph = GraphProgram(
            head(device, call_words),
            call_words=call_words,
            word_count=word_count,
            region_of=host.lookup("region_of"),
            words_of=host.lookup("words_of"),
            launches=regions.__getitem__,
            **arguments,
        )

    def prepare(self, keys: Sequence[int], words: Sequence[int]) -> None:
        """Makes the graphs of some regions ahead."""
        self.graph.add_regions(keys)
        self.graph.bind(self._symbols(0, *words), None)
        self.graph.prepare()

    def run(self, region: int, words: Sequence[int], stream: int | None = None) -> None:
        current = torch.cuda.current_stream().cuda_stream if stream is None else stream
        self.graph.run(self._symbols(region, *words), None, None, current)


def gemm_kernels(
    device: Device, gemm: Gemm, schedules: Sequence[str], *, ahead: bool = True
) -> list[Kernel]:
    """Variants of a product in block form that may start before the kernel ahead ends."""
    units = []
    for schedule in schedules:
        recipe = CubinRecipe(schedule, device.arch, parameters="block", programmatic=ahead)
        with private_context():
            module = ir.Module.parse(gemm.text)
            [kernel] = sir.kernels(module).values()
            units.append(cubin_unit(kernel, recipe, find_ptxas()))
    built = cubin_builder().build_all(units)
    return [
        Kernel(built[unit.key].interface, Module(built[unit.key].cubin, device)) for unit in units
    ]


@dataclass
class GemmChain:
    """``x[i + 1] = x[i] @ w[i].T`` with free rows and square weights.

    Attributes:
        weights: of all steps, [size, size].
        regions: variants of each step, by region.
        ctas: of all grids; 0 for as many as are resident.
    """

    weights: Sequence[Tensor]
    regions: Sequence[Sequence[Kernel]]
    ctas: int = 0

    @property
    def call_words(self) -> int:
        """Rows, and the addresses of all x."""
        return 2 + len(self.weights)

    @property
    def word_count(self) -> int:
        """And those of the weights, and the constants."""
        return self.call_words + len(self.weights) + len(self._constants)

    @property
    def _constants(self) -> list[int]:
        texts = {text for each in self.regions for k in each for text in k.interface.values}
        found = (Expr.parse(text).constant for text in texts)
        return sorted({value for value in found if value is not None})

    def launches(self, region: int) -> list[GraphLaunch]:
        """The launches of a region."""
        steps = len(self.weights)
        return [
            GraphLaunch(
                kernel,
                (1 + step, self.call_words + step, 2 + step),
                tuple(map(self._word_of, kernel.interface.values)),
                self.ctas,
            )
            for step, kernel in zip(range(steps), self.regions[region], strict=True)
        ]

    def _word_of(self, text: str) -> int:
        constant = Expr.parse(text).constant
        if constant is None:
            assert text == "s0", f"a size that is neither rows nor known: {text}"
            return 0
        return self.call_words + len(self.weights) + self._constants.index(constant)

    def words(self, rows: int, tensors: Sequence[Tensor]) -> list[int]:
        """The words of a call with these x."""
        addresses = [tensor.data_ptr() for tensor in tensors]
        weights = [weight.data_ptr() for weight in self.weights]
        return [rows, *addresses, *weights, *self._constants]

    def program(self, device: Device, **arguments: Any) -> TestProgram:
        """The program."""
        regions = {number: self.launches(number) for number in range(len(self.regions))}
        return TestProgram(device, regions, self.call_words, self.word_count, **arguments)

    def tensors(self, first: Tensor) -> list[Tensor]:
        """All x for a call, NaN but for the first."""
        shape = (first.shape[0], self.weights[0].shape[0])
        nan = float("nan")
        rest = [torch.full(shape, nan, dtype=first.dtype, device="cuda") for _ in self.weights]
        return [first, *rest]

    def reference(self, first: Tensor) -> Tensor:
        """The last x, as torch computes it."""
        for weight in self.weights:
            first = first @ weight.T
        return first


def with_more_maps(interface: KernelInterface, maps: Sequence[TensorMap]) -> KernelInterface:
    """A kernel in block form whose entry has tensor maps that the kernel does not look at."""
    start = interface.block_bytes
    assert start % 128 == 0
    placed = [replace(each, offset=start + 128 * n) for n, each in enumerate(maps)]
    return replace(
        interface,
        parameters=(*interface.parameters, *placed),
        block_bytes=start + 128 * len(placed),
    )
