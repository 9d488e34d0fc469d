# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Programs on a GPU: their kernels in device memory, and calls that queue them in a stream.

A call queues all launches of a program from native code, in the caller's current stream, and
returns before they run. Its working memory belongs to that stream: the next call there may have it
at once, as the stream runs one after the other; calls in other streams have memory of their own.

A call that is captured takes working memory from the graph's own pool, as it does for its outputs;
the graph keeps both, and the machine code, for as long as it exists.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
import weakref
from collections.abc import Callable
from ctypes import c_int32, c_void_p
from typing import Any, Protocol

import torch

from shapejit.arena import ArenaPool, new_arena
from shapejit.artefacts import ENTRY_RUN, Artefacts
from shapejit.errors import ErrorId
from shapejit.execution import host_library, plan_function
from shapejit.gpu.bindings import Runtime
from shapejit.gpu.device import Device
from shapejit.gpu.driver import Driver, driver
from shapejit.gpu.errors import NoDriverError
from shapejit.gpu.launch import Kernel
from shapejit.gpu.module import Module
from shapejit.gpu.program_code import GpuCode

#: Of addresses of inputs and weights, in bytes: what tensor maps need.
_ALIGNMENT = 16

# Instead of the address of an empty tensor: this many bytes of zeros, which kernels may read.
_EMPTY_BYTES = 256

#: Arenas that a program keeps for calls to come: more streams rarely run it in turn.
_MOST_IDLE_ARENAS = 16

#: ``int32_t shapejit_run(symbols, buffers, arena, kernels, stream)``; without the GIL.
_RUN = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)


class Streams(Protocol):
    """The streams of a device, as torch has them."""

    def current(self) -> tuple[int, bool]:
        """The caller's current stream, and whether it is being captured."""


class TorchStreams:
    """The streams of a CUDA device of torch."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def current(self) -> tuple[int, bool]:
        """The caller's current stream, and whether it is being captured."""
        stream: int = torch.cuda.current_stream(self._device).cuda_stream
        if torch.cuda.current_device() == self._device.index:
            return stream, torch.cuda.is_current_stream_capturing()
        with torch.cuda.device(self._device):
            return stream, torch.cuda.is_current_stream_capturing()


class GpuExecution:
    """The code of a program on a GPU; see `shapejit.execution.Execution`.

    Args:
        artefacts: of a program for a GPU.
        gpu: where it runs.
        device: the same for torch.
        streams: its streams.

    Attributes:
        kernels: the program's variants on the device, in the order of the host program's table.

    Raises:
        LLVMError: the host program does not load.
        CudaError: the driver refuses the machine code.
    """

    alignment = _ALIGNMENT

    def __init__(
        self, artefacts: Artefacts, gpu: Device, device: torch.device, streams: Streams
    ) -> None:
        code = artefacts.gpu
        if code is None:
            raise ValueError("artefacts for a GPU have no GPU code")
        self.device = device
        self._streams = streams
        self._runtime = gpu.runtime
        self.kernels = [load_kernel(code, number, gpu) for number in range(len(code.variants))]
        handles = [kernel.handle for kernel in self.kernels]
        self._table = (c_void_p * max(len(handles), 1))(*handles)
        self._library = host_library(artefacts, gpu.runtime.symbols())
        self.plan = plan_function(self._library)
        self._run: Callable[..., int] = _RUN(self._library.lookup(ENTRY_RUN))
        self._arenas = ArenaPool(device, _MOST_IDLE_ARENAS)
        self._zeros = torch.zeros(_EMPTY_BYTES, dtype=torch.uint8, device=device)
        self.for_empty = self._zeros.data_ptr()

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
        return GpuExecution(artefacts, gpu, place, TorchStreams(place))

    @property
    def arena_bytes(self) -> int:
        """Working memory held now, without that of graphs."""
        return self._arenas.bytes

    @property
    def code_bytes(self) -> int:
        """Machine code in device memory."""
        return sum(kernel.module.image_bytes for kernel in self.kernels)

    def run(self, symbols: Any, buffers: Any, arena_bytes: int) -> None:
        """Queues the program in the current stream.

        Args:
            symbols, buffers, arena_bytes: see `Execution`.

        Raises:
            ArenaError: there is not enough memory.
            CudaError: a launch failed; names the kernel and its sizes.
        """
        stream, captured = self._streams.current()
        if captured:
            # Given back to the graph's pool, where what the graph runs later may have it.
            self._queue(symbols, buffers, new_arena(arena_bytes, self.device), stream)
            return
        arena = self._arenas.acquire(arena_bytes, stream)
        try:
            self._queue(symbols, buffers, arena, stream)
        finally:
            self._arenas.release(arena, stream)

    def _queue(self, symbols: Any, buffers: Any, arena: torch.Tensor, stream: int) -> None:
        status = self._run(symbols, buffers, arena.data_ptr(), self._table, stream)
        if status:
            self._runtime.check(status)


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
    "Streams",
    "TorchStreams",
    "current_device",
    "load_kernel",
    "usable_gpu",
]
