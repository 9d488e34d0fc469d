# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Programs under constant graphs, on a GPU.

What the compiler noted in numbers (`shapejit.gpu.program_graphs`) meets the kernels that are loaded
and the native code that runs them (`shapejit.gpu.graph`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from ctypes import c_int64
from typing import TYPE_CHECKING, Any

import torch

from shapejit.artefacts import ENTRY_REGION, ENTRY_WORDS, Artefacts
from shapejit.gpu.device import Device
from shapejit.gpu.graph import GraphLaunch, GraphProgram, GraphUse, Head
from shapejit.gpu.launch import Kernel
from shapejit.gpu.program_graphs import GraphCode
from shapejit.gpu.program_run import GpuExecution, Streams, code_of

if TYPE_CHECKING:
    from shapejit.execution import Place
    from shapejit.native_calls import Inputs
    from shapejit.shape_calls import ShapeCall

#: Streams that have a block and graphs of a program each.
_MOST_INSTANCES = 8


class GraphExecution(GpuExecution):
    """A program under constant graphs, one for each region of sizes."""

    def __init__(
        self,
        artefacts: Artefacts,
        gpu: Device,
        device: torch.device,
        streams: Streams,
        zeros: torch.Tensor | None = None,
    ) -> None:
        super().__init__(artefacts, gpu, device, streams, zeros)
        code = code_of(artefacts)
        assert code.graph is not None
        self._graph = code.graph
        variants = {kernel.name: kernel.variants for kernel in code.kernels}
        self._program = GraphProgram(
            Head.load(self._graph.head_entry, gpu),
            call_words=self._graph.call_words,
            word_count=len(self._graph.words),
            region_of=self._library.lookup(ENTRY_REGION),
            words_of=self._library.lookup(ENTRY_WORDS),
            # Nothing that has this object: it goes as soon as nobody uses it.
            launches=functools.partial(_launches, code.graph, variants, self.kernels),
            most_instances=_MOST_INSTANCES,
        )
        self._symbols = c_int64 * max(len(artefacts.symbols), 1)
        self._native = self._program.native

    def _queue(self, symbols: Any, buffers: Any, arena: int, stream: int) -> None:
        self._program.run(symbols, buffers, arena, stream)

    def run_tensors(
        self,
        inputs: Inputs,
        leaves: Sequence[Any],
        weights: bytes,
        outputs: Sequence[torch.Tensor],
        call: ShapeCall,
        place: Place | None,
    ) -> bool:
        """See `Execution`."""
        arena = self._arena(call.arena_bytes, place)
        assert place is not None, "calls on a GPU have a place"
        arguments = (
            leaves, weights, outputs, *self._native, call.address, arena.address, place[0],
        )  # fmt: skip
        status = inputs.run(*arguments)
        if status:

            def again() -> int:
                status = inputs.run(*arguments)
                assert status is not None, "the same inputs were read in place before"
                return status

            self._program.answer(status, call.native, again)
        return status is not None

    @property
    def code_bytes(self) -> int:
        """Machine code in device memory."""
        return super().code_bytes + self._program.head.module.image_bytes

    def prepare(self, buffers: Any) -> None:
        """Makes the graphs of the regions in which calls are expected."""
        order = self._graph.order
        if not order:
            return
        symbols = self._graph.regions[order[0]].symbols
        assert symbols is not None, "regions in the order have a sample"
        self._program.add_regions(order)
        self._program.bind(self._symbols(*symbols), buffers)
        self._program.prepare()

    def graph_use(self) -> GraphUse | None:
        """What the program's constant graphs are and did."""
        return self._program.use()


def _launches(
    graph: GraphCode,
    variants: Mapping[str, Sequence[int]],
    kernels: Sequence[Kernel],
    region: int,
) -> list[GraphLaunch]:
    """The launches of a region.

    Args:
        graph: of the program.
        variants: numbers of each kernel's variants, by its name.
        kernels: the variants.
        region: the number that the host program gave it.
    """
    found = graph.regions[region]
    return [
        GraphLaunch(
            kernels[variant],
            launch.operands,
            launch.values[variants[launch.kernel].index(variant)],
            _ctas(kernels[variant], units),
            waits,
        )
        for launch, variant, units, waits in zip(
            graph.launches, found.variants, found.units, graph.waits(found), strict=True
        )
    ]


def _ctas(kernel: Kernel, units: int) -> int:
    """CTAs of a launch with so many units of work: more would be of no use."""
    return min(units * kernel.interface.cluster, kernel.resident_ctas)
