# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How a program's native code runs: what differs from target to target.

`shapejit.program.Program` checks calls, allocates outputs and hands addresses over; an `Execution`
has the native code, its working memory and the place where it runs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch

from shapejit import threads
from shapejit.arena import ArenaPool
from shapejit.artefacts import ENTRY_PLAN, ENTRY_RUN, Artefacts
from shapejit.codegen import JitLibrary

if TYPE_CHECKING:
    from shapejit.gpu.graph import GraphUse
    from shapejit.native_calls import Inputs
    from shapejit.shape_calls import ShapeCall

# shapejit_plan takes about as long as giving up the GIL would; shapejit_run gives it up.
_PLAN = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)

Place: TypeAlias = tuple[int, bool]
"""The handle of a stream, and whether it is being captured into a graph of the caller's."""

# An empty tensor has no memory, but kernels may read it at an index that is clamped to 0, and
# discard the value: joining parts that can be empty does so.
_EMPTY = ctypes.create_string_buffer(64)


class Execution(Protocol):
    """The native code of one program, ready to run. Thread-safe.

    Attributes:
        device: where inputs, weights and outputs are.
        alignment: bytes that the addresses of inputs and weights are multiples of; 1 for any.
        for_empty: an address that stands for that of an empty tensor.
    """

    device: torch.device
    alignment: int
    for_empty: int

    @property
    def arena_bytes(self) -> int:
        """Working memory held now."""

    @property
    def code_bytes(self) -> int:
        """Machine code in the memory of the device; 0 on a CPU."""

    def graph_use(self) -> GraphUse | None:
        """What the program's constant graphs are and did; None if it has none."""

    def plan(self, symbols: Any, out: Any) -> None:
        """``shapejit_plan``: sizes of the arena and of the outputs, see `Artefacts`.

        Args:
            symbols: a ctypes array of int64.
            out: another one, that is written.
        """

    def beside(self, artefacts: Artefacts) -> Execution:
        """The execution of another program for the same target, in the same place.

        Raises:
            LLVMError, CudaError: its code does not load.
        """

    def successor(self, artefacts: Artefacts) -> Execution:
        """The execution of the same program with other code, in the same place.

        Raises:
            LLVMError, CudaError: its code does not load.
        """

    def release(self) -> None:
        """Gives working memory back that no running call has."""

    def prepare(self, buffers: Any) -> None:
        """Does ahead of time what calls need.

        Args:
            buffers: as for `run`; the addresses of inputs and outputs may be 0.

        Raises:
            CudaError: the GPU's driver refuses it.
        """

    def place(self) -> Place | None:
        """Where a call queues its work; None if it runs at once."""

    def keep(self, tensors: Sequence[torch.Tensor]) -> None:
        """Keeps what a captured call reads for as long as the process lives: its graph may."""

    def run(self, symbols: Any, buffers: Any, arena_bytes: int, place: Place | None) -> None:
        """``shapejit_run``, with working memory of its own.

        Args:
            symbols: as for `plan`.
            buffers: a ctypes array of addresses.
            arena_bytes: what `plan` said.
            place: what `place` said.

        Raises:
            ArenaError: there is not enough memory.
        """

    def run_tensors(
        self,
        inputs: Inputs,
        leaves: Sequence[Any],
        weights: bytes,
        outputs: Sequence[torch.Tensor],
        call: ShapeCall,
        place: Place | None,
    ) -> bool:
        """The same as `run`, with the addresses read from tensors by native code.

        Args:
            inputs: which leaves are read, in order.
            leaves: of the call.
            weights: the addresses that come after those of the inputs.
            outputs: the tensors that come after these.
            call: what the program needs for these sizes.
            place: as for `run`.

        Returns:
            Whether it was done. It is not where it would be of no use, or where an input has to be
            copied first: `run` is to be called then.

        Raises:
            ArenaError: as for `run`.
        """


def host_library(artefacts: Artefacts, symbols: dict[str, int]) -> JitLibrary:
    """The host program of a program, linked with functions that it calls by address."""
    return JitLibrary(artefacts.objects, symbols)


def plan_function(library: JitLibrary) -> Any:
    """``shapejit_plan`` of a host program."""
    return _PLAN(library.lookup(ENTRY_PLAN))


class CpuExecution:
    """The code of a program for the CPU.

    Args:
        artefacts: of a program for it.

    Raises:
        LLVMError: the code does not load.
    """

    alignment = 1
    code_bytes = 0
    for_empty = ctypes.addressof(_EMPTY)

    def __init__(self, artefacts: Artefacts) -> None:
        self.device = torch.device("cpu")
        self._library = host_library(artefacts, threads.symbols())
        self.plan = plan_function(self._library)
        self._run = threads.entry_point(self._library.lookup(ENTRY_RUN))
        self._arenas = ArenaPool()

    @property
    def arena_bytes(self) -> int:
        """Working memory held now."""
        return self._arenas.bytes

    def graph_use(self) -> None:
        """See `Execution`; graphs are for GPUs."""

    def beside(self, artefacts: Artefacts) -> CpuExecution:
        """See `Execution`."""
        return CpuExecution(artefacts)

    def successor(self, artefacts: Artefacts) -> CpuExecution:
        """See `Execution`."""
        return CpuExecution(artefacts)

    def release(self) -> None:
        """See `Execution`."""
        self._arenas.release_idle()

    def prepare(self, buffers: Any) -> None:
        """See `Execution`; here there is nothing to prepare."""

    def place(self) -> None:
        """See `Execution`: calls run at once."""

    def keep(self, tensors: Sequence[torch.Tensor]) -> None:
        """See `Execution`; nothing is captured here."""

    def run(self, symbols: Any, buffers: Any, arena_bytes: int, place: Place | None) -> None:
        """``shapejit_run``; see `Execution`."""
        arena = self._arenas.acquire(arena_bytes)
        try:
            self._run(symbols, buffers, arena.data_ptr(), torch.get_num_threads())
        finally:
            self._arenas.release(arena)

    def run_tensors(self, *_: Any, **__: Any) -> bool:
        """See `Execution`; on a CPU, calls take far longer than what there would be to gain."""
        return False


def execution_for(artefacts: Artefacts, device: torch.device | None = None) -> Execution:
    """The execution of a program on a device.

    Args:
        artefacts: what to run.
        device: a CUDA device for a program that runs on one; by default the current one.

    Raises:
        LLVMError: the host program does not load.
        TargetError: there is no GPU that it was built for (SJ-TARGET-006).
        CudaError: the GPU's driver refuses its code.
    """
    if artefacts.target.kind == "cpu":
        return CpuExecution(artefacts)
    from shapejit.gpu.program_run import GpuExecution

    return GpuExecution.on(artefacts, device)


__all__ = ["CpuExecution", "Execution", "execution_for"]
