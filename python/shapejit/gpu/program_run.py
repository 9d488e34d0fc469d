# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Programs on a GPU: their kernels in device memory, and calls that queue them in a stream.

A call queues all work of a program from native code, in the caller's current stream, and returns
before it runs: a graph that is made once for a region of sizes (`shapejit.gpu.graph`), or, where
there are no more than two of them, the launches themselves. Its working memory belongs to that
stream: the next call there may have it at once, as the stream runs one after the other; calls in
other streams have memory of their own.

A call that is captured takes working memory from the graph's own pool, as it does for its outputs;
the graph keeps both, and the machine code, for as long as it exists. Copies of weights that it
reads stay for as long as the process lives, as nothing tells when the graph is gone.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import threading
import weakref
from collections.abc import Callable, Sequence
from ctypes import c_int32, c_void_p
from typing import TYPE_CHECKING, Any, Protocol

import torch

from shapejit.arena import StreamArena, StreamArenas, stream_arena
from shapejit.artefacts import ENTRY_RUN, Artefacts
from shapejit.errors import ErrorId
from shapejit.execution import Place, host_library, plan_function
from shapejit.gpu.bindings import Runtime
from shapejit.gpu.device import Device
from shapejit.gpu.device_memory import device_arena
from shapejit.gpu.driver import Driver, driver
from shapejit.gpu.errors import NoDriverError
from shapejit.gpu.launch import Kernel
from shapejit.gpu.module import Module
from shapejit.gpu.program_code import GpuCode

if TYPE_CHECKING:
    from shapejit.gpu.graph import GraphUse

#: Of addresses of inputs and weights, in bytes: what tensor maps need.
_ALIGNMENT = 16

# Instead of the address of an empty tensor: zeros, which kernels may read at an index clamped to 0.
_EMPTY_BYTES = 256

#: Streams that have working memory of a program each: more rarely run it in turn.
_MOST_ARENAS = 16

#: ``int32_t shapejit_run(symbols, buffers, arena, kernels, stream)``; without the GIL.
_RUN = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)


class Streams(Protocol):
    """The streams of a device, as torch has them."""

    def current(self) -> tuple[int, bool]:
        """The caller's current stream, and whether it is being captured."""


# What captured calls read beside the user's own tensors: their graphs may be run at any time.
_kept: dict[int, torch.Tensor] = {}

# A stream's handle without the object around it, as torch's own generated code gets it.
_raw_stream: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)


# The function that torch.cuda's of that name calls.
_is_capturing: Callable[[], bool] = getattr(
    torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing
)


class TorchStreams:
    """The streams of a CUDA device of torch."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_alone = torch.cuda.device_count() == 1

    def current(self) -> tuple[int, bool]:
        """The caller's current stream, and whether it is being captured."""
        if _raw_stream is not None:
            stream = _raw_stream(self._device.index)
        else:
            stream = torch.cuda.current_stream(self._device).cuda_stream
        if self._is_alone or torch.cuda.current_device() == self._device.index:
            return stream, _is_capturing()
        with torch.cuda.device(self._device):
            return stream, _is_capturing()


class GpuExecution:
    """The code of a program on a GPU; see `shapejit.execution.Execution`.

    Args:
        artefacts: of a program for a GPU.
        gpu: where it runs.
        device: the same for torch.
        streams: its streams.
        zeros: what stands for empty tensors, of another execution; None for its own.

    Attributes:
        kernels: the program's variants on the device, in the order of the host program's table.

    Raises:
        LLVMError: the host program does not load.
        CudaError: the driver refuses the machine code.
    """

    alignment = _ALIGNMENT

    def __init__(
        self,
        artefacts: Artefacts,
        gpu: Device,
        device: torch.device,
        streams: Streams,
        zeros: torch.Tensor | None = None,
    ) -> None:
        code = code_of(artefacts)
        self.device = device
        self._gpu = gpu
        self._streams = streams
        self._runtime = gpu.runtime
        self.kernels = [load_kernel(code, number, gpu) for number in range(len(code.variants))]
        self._library = host_library(artefacts, gpu.runtime.symbols())
        self.plan = plan_function(self._library)
        self._arenas = StreamArenas(device, _MOST_ARENAS, functools.partial(device_arena, gpu))
        if zeros is None:
            zeros = torch.zeros(_EMPTY_BYTES, dtype=torch.uint8, device=device)
        self._zeros = zeros
        self.for_empty = self._zeros.data_ptr()

    @staticmethod
    def of(
        artefacts: Artefacts,
        gpu: Device,
        device: torch.device,
        streams: Streams,
        zeros: torch.Tensor | None = None,
    ) -> GpuExecution:
        """The execution that a program needs: under constant graphs, or launch by launch."""
        if code_of(artefacts).graph is None:
            return QueuedExecution(artefacts, gpu, device, streams, zeros)
        from shapejit.gpu.program_graphs_run import GraphExecution

        return GraphExecution(artefacts, gpu, device, streams, zeros)

    @staticmethod
    def on(artefacts: Artefacts, device: torch.device | None = None) -> GpuExecution:
        """The execution on a CUDA device of torch, by default the current one.

        Raises:
            TargetError: there is no such GPU, or the code is for another architecture
                (SJ-TARGET-006).
            LLVMError, CudaError: as for the class.
        """
        archs = (artefacts.target.arch,)
        number = current_device(archs) if device is None or device.index is None else device.index
        gpu = usable_gpu(number, archs)
        place = torch.device("cuda", number)
        return GpuExecution.of(artefacts, gpu, place, TorchStreams(place))

    @property
    def arena_bytes(self) -> int:
        """Working memory held now, without that of graphs of callers."""
        return self._arenas.bytes

    @property
    def code_bytes(self) -> int:
        """Machine code in device memory."""
        return sum(kernel.module.image_bytes for kernel in self.kernels)

    def beside(self, artefacts: Artefacts) -> GpuExecution:
        """See `Execution`."""
        return GpuExecution.of(artefacts, self._gpu, self.device, self._streams)

    def successor(self, artefacts: Artefacts) -> GpuExecution:
        """The execution of the same program with other code, made beside calls of this one: nothing
        is queued in a stream for it, which a capture of the caller's might not allow.

        It has working memory of its own, as long as there are both: calls in one stream may come
        from several threads, and those of one execution know nothing of the other's.

        Raises:
            LLVMError, CudaError: the code does not load.
        """
        return GpuExecution.of(artefacts, self._gpu, self.device, self._streams, self._zeros)

    def release(self) -> None:
        """See `Execution`."""
        self._arenas.release()

    def prepare(self, buffers: Any) -> None:
        """See `Execution`; here there is nothing to prepare."""

    def graph_use(self) -> GraphUse | None:
        """What the program's constant graphs are and did; None if it has none."""
        return None

    def place(self) -> Place:
        """The caller's current stream, and whether it is being captured."""
        return self._streams.current()

    def keep(self, tensors: Sequence[torch.Tensor]) -> None:
        """See `Execution`."""
        _kept.update((id(tensor), tensor) for tensor in (*tensors, self._zeros))

    def run(self, symbols: Any, buffers: Any, arena_bytes: int, place: Place | None) -> None:
        """Queues the program in a stream, which is the current one.

        Args:
            symbols, buffers, arena_bytes, place: see `Execution`.

        Raises:
            ArenaError: there is not enough memory.
            CudaError: a launch failed; names the kernel and its sizes.
        """
        arena = self._arena(arena_bytes, place)
        assert place is not None, "calls on a GPU have a place"
        self._queue(symbols, buffers, arena.address, place[0])

    def run_tensors(self, *_: Any, **__: Any) -> bool:
        """See `Execution`; programs of few launches go through `run`."""
        return False

    def _arena(self, arena_bytes: int, place: Place | None) -> StreamArena:
        """Working memory of a call, to be held until it is queued."""
        assert place is not None, "calls on a GPU have a place"
        stream, captured = place
        if captured:
            # Given back to the graph's pool, where what the graph runs later may have it.
            return stream_arena(arena_bytes, self.device)
        return self._arenas.of(stream, arena_bytes)

    def _queue(self, symbols: Any, buffers: Any, arena: int, stream: int) -> None:
        """Queues all work of a call in a stream."""
        raise AssertionError("both kinds override this")


class QueuedExecution(GpuExecution):
    """A program whose host program queues the launches one by one."""

    def __init__(
        self,
        artefacts: Artefacts,
        gpu: Device,
        device: torch.device,
        streams: Streams,
        zeros: torch.Tensor | None = None,
    ) -> None:
        super().__init__(artefacts, gpu, device, streams, zeros)
        handles = [kernel.handle for kernel in self.kernels]
        self._table = (c_void_p * max(len(handles), 1))(*handles)
        self._run: Callable[..., int] = _RUN(self._library.lookup(ENTRY_RUN))
        self._queueing = threading.Lock()

    def _queue(self, symbols: Any, buffers: Any, arena: int, stream: int) -> None:
        # Calls of several threads in one stream have one arena: launches of two must not mix.
        with self._queueing:
            status = self._run(symbols, buffers, arena, self._table, stream)
        if status:
            self._runtime.check(status)


def code_of(artefacts: Artefacts) -> GpuCode:
    """What runs on the GPU."""
    if artefacts.gpu is None:
        raise ValueError("artefacts for a GPU have no GPU code")
    return artefacts.gpu


def load_kernel(code: GpuCode, number: int, gpu: Device) -> Kernel:
    """A variant of a program in the memory of a device, where all programs that have it share it.

    Raises:
        CudaError: the driver refuses it.
        CubinEntryError: its data is damaged.
    """
    variant = code.variants[number]
    key = (gpu.runtime, gpu.number, hashlib.sha256(variant.data).digest())
    with _loaded_lock:
        kernel = _loaded.get(key)
        if kernel is None:
            entry = variant.entry
            kernel = _loaded[key] = Kernel(entry.interface, Module(entry.cubin, gpu))
        return kernel


# Kernels of programs that are alive, by device and code.
_loaded: weakref.WeakValueDictionary[tuple[Runtime, int, bytes], Kernel] = (
    weakref.WeakValueDictionary()
)
_loaded_lock = threading.Lock()


# Finding the GPU ----------------------------------------------------------------------------------


def current_device(archs: tuple[str, ...]) -> int:
    """Number of torch's current CUDA device.

    Args:
        archs: the architectures that would do, for the message.

    Raises:
        TargetError: torch sees no GPU (SJ-TARGET-006).
    """
    if not torch.cuda.is_available():
        built = torch.version.cuda is not None
        reason = "torch sees none" if built else "this torch is a build without CUDA"
        raise _unusable(reason, archs)
    return torch.cuda.current_device()


def usable_gpu(number: int, archs: tuple[str, ...], find: Callable[[], Driver] = driver) -> Device:
    """The GPU of that number, which has one of the architectures.

    Raises:
        TargetError: there is no such GPU, or it has another architecture (SJ-TARGET-006).
    """
    try:
        gpu = find().device(number)
    except NoDriverError as error:
        raise _unusable(error.fields["reason"], archs) from error
    if gpu.arch not in archs:
        raise _unusable(f"device {number}, {gpu.name}, has {gpu.arch}", archs)
    return gpu


def _unusable(reason: str, archs: tuple[str, ...]) -> Exception:
    return ErrorId.SJ_TARGET_006.error(target="cuda", archs=" or ".join(archs), reason=reason)


__all__ = [
    "GpuExecution",
    "QueuedExecution",
    "Streams",
    "TorchStreams",
    "current_device",
    "load_kernel",
    "usable_gpu",
]
