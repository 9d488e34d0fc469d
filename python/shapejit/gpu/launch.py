# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels, and their launches from Python.

All of a launch happens in native code that follows the kernel's interface: the grid, range checks,
tensor maps, the driver's call. A host program calls the same functions directly.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_void_p, cast
from typing import NoReturn

from shapejit.gpu.bindings import KernelInfo, NativeInterface, NativeParameter, NativeTile
from shapejit.gpu.errors import KernelInterfaceError, LaunchError
from shapejit.gpu.interface import (
    Im2colMap,
    KernelInterface,
    Parameter,
    Pointer,
    Size,
    TensorMap,
    Workspace,
)
from shapejit.gpu.module import Module

#: ``ShapejitRtCudaElement``: the element types of tensor maps.
_ELEMENTS = {
    "u8": 0,
    "i8": 0,
    "u16": 1,
    "i16": 1,
    "u32": 2,
    "i32": 3,
    "u64": 4,
    "i64": 5,
    "f16": 6,
    "f32": 7,
    "f64": 8,
    "bf16": 9,
    "tf32": 11,
}
_KINDS: dict[type[Parameter], int] = {
    TensorMap: 0,
    Pointer: 1,
    Size: 2,
    Workspace: 3,
    Im2colMap: 4,
}
_MOST_DIMS = 5


class Kernel:
    """A kernel that can be launched, from any number of threads.

    Args:
        interface: how it is called.
        module: its machine code.

    Attributes:
        interface: as given.
        module: as given.
        operand_count: operands of a launch.
        registers: of a thread.
        local_bytes: local memory of a thread; anything but 0 hints at spilled registers.
        resident_ctas: the most CTAs of a persistent grid: what the schedule wants as far as the
            device runs it at once; 0 if the grid is not persistent.
        workspace_bytes: of a workspace for `resident_ctas`; 0 if it takes none.

    Raises:
        KernelInterfaceError: the interface is wrong, or does not fit the code or the device.
        DriverCallError: a call of the driver failed.
    """

    def __init__(self, interface: KernelInterface, module: Module) -> None:
        self.interface = interface
        self.module = module
        self._runtime = module.device.runtime
        self._handle = self._create(interface)
        functions = self._runtime.functions
        release = weakref.finalize(self, functions["KernelRelease"], self._handle)
        release.atexit = False
        info = KernelInfo()
        functions["KernelInfo"](self._handle, byref(info))
        self.registers: int = info.registers
        self.local_bytes: int = info.local_bytes
        self.resident_ctas: int = info.resident_ctas
        self.workspace_bytes: int = info.workspace_bytes
        having = (TensorMap, Im2colMap, Pointer)
        numbers = [p.operand for p in interface.parameters if isinstance(p, having)]
        self.operand_count = max(numbers, default=-1) + 1
        self._pack_operands = struct.Struct(f"{self.operand_count}Q").pack
        self._pack_values = struct.Struct(f"{len(interface.values)}q").pack
        self._launch = functions["Launch"]

    @property
    def handle(self) -> int:
        """The ``ShapejitRtCudaKernel`` for native code, valid while this object lives."""
        return self._handle.value or 0

    @property
    def launch_address(self) -> int:
        """Address of the runtime's function that launches kernels, for native code."""
        return cast(self._launch, c_void_p).value or 0

    def check(self, status: int) -> None:
        """Raises what a launch from native code in this thread ended with.

        Raises:
            LaunchError, DriverCallError: as for `launch`.
        """
        self._runtime.check(status)

    def launch(
        self,
        operands: Sequence[int],
        values: Sequence[int],
        stream: int = 0,
        workspace: int | None = None,
    ) -> None:
        """Launches it into a stream, which may be captured.

        Args:
            operands: addresses in device memory, in the order of the interface's numbers.
            values: of the interface's expressions, int64.
            stream: handle of a stream of the module's device; 0 is the default stream.
            workspace: address of scratch memory for this launch alone; by default the stream's own,
                which see `shapejit.gpu.memory`.

        Raises:
            LaunchError: an operand or a value breaks a rule.
            DriverCallError: a call of the driver failed.
        """
        self.launch_packed(operands, self.pack_values(operands, values), stream, workspace)

    def pack_values(self, operands: Sequence[int], values: Sequence[int]) -> bytes:
        """The values of a launch as native code takes them, for many launches with the same ones.

        Raises:
            LaunchError: there are too few or too many operands or values, or they are no integers.
        """
        try:
            self._pack_operands(*operands)
            return self._pack_values(*values)
        except struct.error as error:
            self._reject(operands, values, error)

    def launch_packed(
        self, operands: Sequence[int], values: bytes, stream: int, workspace: int | None = None
    ) -> None:
        """Launches it with values that `pack_values` gave for as many operands; see `launch`."""
        packed = self._pack_operands(*operands)
        if status := self._launch(self._handle, packed, values, workspace, stream):
            self._runtime.check(status)

    def fill_block(
        self, operands: Sequence[int], values: Sequence[int], entry: int, workspace: int | None
    ) -> None:
        """Writes the parameters of a kernel in block form into host memory.

        Args:
            operands: as for `launch`.
            values: as for `launch`.
            entry: address of ``interface.block_bytes`` bytes at a multiple of 64.
            workspace: address of `workspace_bytes` bytes of device memory; None if it takes none.

        Raises:
            LaunchError: an operand or a value breaks a rule.
            DriverCallError: a call of the driver failed.
        """
        try:
            packed = self._pack_operands(*operands), self._pack_values(*values)
        except struct.error as error:
            self._reject(operands, values, error)
        self._runtime.call("FillBlock", self._handle, *packed, workspace, entry)

    def launch_block(self, entry: int, stream: int = 0) -> None:
        """Launches a kernel in block form whose entry lies at that address in device memory.

        Raises:
            LaunchError: it takes its parameters by value.
            DriverCallError: a call of the driver failed.
        """
        self._runtime.call("LaunchBlock", self._handle, entry, stream)

    def reserve(self, stream: int = 0) -> None:
        """Allocates the scratch memory that launches in a stream will need, if it is persistent.

        Raises:
            LaunchError: it is above the limit of `shapejit.gpu.memory`.
            DriverCallError: a call of the driver failed.
        """
        self._runtime.call("Reserve", self._handle, stream)

    def _create(self, interface: KernelInterface) -> c_void_p:
        names = (c_char_p * len(interface.values))(*(v.encode() for v in interface.values))
        tiles = (NativeTile * len(interface.grid.tiles))(
            *(NativeTile(value, length) for value, length in interface.grid.tiles)
        )
        parameters = (NativeParameter * len(interface.parameters))(
            *(_native(interface, number) for number in range(len(interface.parameters)))
        )
        native = NativeInterface(
            entry=interface.entry.encode(),
            threads=interface.threads,
            shared_bytes=interface.shared_bytes,
            cluster=interface.cluster,
            ctas_per_sm=interface.grid.ctas_per_sm,
            block=interface.block,
            programmatic=interface.programmatic,
            block_bytes=interface.block_bytes,
            values=names,
            value_count=len(names),
            tile_count=len(tiles),
            tiles=tiles,
            parameter_count=len(parameters),
            parameters=parameters,
        )
        handle = c_void_p()
        self._runtime.call("KernelCreate", self.module.handle, byref(native), byref(handle))
        return handle

    def _reject(
        self, operands: Sequence[int], values: Sequence[int], error: struct.error
    ) -> NoReturn:
        name = self.interface.entry
        if len(operands) != self.operand_count:
            raise LaunchError(
                f"kernel {name} takes {self.operand_count} operands, not {len(operands)}"
            )
        if len(values) != len(self.interface.values):
            names = ", ".join(self.interface.values)
            raise LaunchError(
                f"kernel {name} takes {len(self.interface.values)} values ({names}), not "
                f"{len(values)}"
            )
        raise LaunchError(
            f"kernel {name}: operands are addresses and values are integers of 64 bits, but they "
            f"are {list(operands)} and {list(values)} ({error})"
        )


def _native(interface: KernelInterface, number: int) -> NativeParameter:
    """The native form of a parameter. What fits its fields is validated there."""
    parameter = interface.parameters[number]
    native = NativeParameter(kind=_KINDS[type(parameter)], offset=parameter.offset)
    what = f"kernel {interface.entry}, parameter {number}"
    if isinstance(parameter, TensorMap):
        _describe_map(native, parameter, what)
    elif isinstance(parameter, Im2colMap):
        _describe_image(native, parameter, what)
    elif isinstance(parameter, Pointer):
        native.operand = parameter.operand
    elif isinstance(parameter, Size):
        native.value = parameter.value
        native.bytes = parameter.bytes
    else:
        native.bytes_per_cta = parameter.bytes_per_cta
        native.least_ctas = parameter.least_ctas
        native.zeroed = parameter.zeroed
    return native


def _describe_map(native: NativeParameter, given: TensorMap, what: str) -> None:
    rank = len(given.dims)
    if rank > _MOST_DIMS or len(given.box) != rank or len(given.strides) != max(rank - 1, 0):
        raise KernelInterfaceError(
            f"{what}: a tensor map has up to {_MOST_DIMS} dims, a box of as many and one stride "
            f"less; this one has {rank} dims, {len(given.box)} lengths of the box and "
            f"{len(given.strides)} strides"
        )
    _describe_tensor(native, given, what)
    native.box[:rank] = given.box


def _describe_image(native: NativeParameter, given: Im2colMap, what: str) -> None:
    spatial = len(given.dims) - 2
    lists = (given.lower, given.upper, given.steps)
    if (
        not 1 <= spatial <= _MOST_DIMS - 2
        or len(given.strides) != spatial + 1
        or any(len(each) != spatial for each in lists)
    ):
        raise KernelInterfaceError(
            f"{what}: an im2col map has 3 to {_MOST_DIMS} dims, one stride less, and corners and "
            f"steps of all dims but two; this one has {len(given.dims)} dims, "
            f"{len(given.strides)} strides and {', '.join(str(len(each)) for each in lists)} "
            "corners and steps"
        )
    _describe_tensor(native, given, what)
    native.box[:2] = given.box
    native.lower[:spatial] = given.lower
    native.upper[:spatial] = given.upper
    native.steps[:spatial] = given.steps


def _describe_tensor(native: NativeParameter, given: TensorMap | Im2colMap, what: str) -> None:
    rank = len(given.dims)
    if given.element not in _ELEMENTS:
        known = ", ".join(sorted(_ELEMENTS))
        raise KernelInterfaceError(
            f"{what}: tensor maps have no elements {given.element!r}; they have {known}"
        )
    native.operand = given.operand
    native.element = _ELEMENTS[given.element]
    native.rank = rank
    native.dims[:rank] = given.dims
    native.strides[: len(given.strides)] = given.strides
    native.swizzle = given.swizzle
    native.promotion = given.promotion
