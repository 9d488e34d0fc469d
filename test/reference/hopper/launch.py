# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Launches a kernel on the simulated GPU by its interface record, as the runtime does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reference.hopper.im2col_maps import Im2colTensor, places
from reference.hopper.interpreter import Function
from reference.hopper.machine import Cta, Machine, Warp
from reference.hopper.memory import Bytes, GlobalMemory, SimulationError, TiledMap
from shapejit import ir as sir
from shapejit.gpu.interface import (
    Im2colMap,
    KernelInterface,
    Parameter,
    Pointer,
    Size,
    TensorMap,
    Workspace,
)
from shapejit.symbolic import Expr

_ELEMENT_BYTES = {"bf16": 2, "f16": 2, "f32": 4, "tf32": 4}


class Launch:
    """One launch of a kernel.

    Args:
        function: its ``llvm.func``.
        interface: its record.
        symbols: values of s0, s1, ..
        multiprocessors: of the simulated GPU.
        seed: of the order of events.
        places: clusters that run at once; all of the grid by default.
    """

    def __init__(
        self,
        function: Any,
        interface: KernelInterface,
        symbols: Sequence[int],
        *,
        multiprocessors: int = 3,
        seed: int = 0,
        places: int | None = None,
    ) -> None:
        self._function, self._interface = Function(function), interface
        self._values = [Expr.parse(text).evaluate(symbols) for text in interface.values]
        self._multiprocessors = multiprocessors
        self.memory = GlobalMemory()
        self._machine = Machine(self.memory, seed)
        self._machine.places = places
        self._workspaces: list[tuple[int, int]] = []

    @property
    def grid(self) -> int:
        """CTAs of the launch."""
        record, cluster = self._interface.grid, self._interface.cluster
        units = math.prod(-(-self._values[value] // tile) for value, tile in record.tiles)
        if record.ctas_per_sm:
            most = record.ctas_per_sm * self._multiprocessors // cluster
            assert most, "not even one cluster fits"
            units = min(units, most)
        return units * cluster

    def run(self, addresses: Sequence[int]) -> None:
        """Runs the kernel on operands at these addresses.

        Raises:
            SimulationError: the kernel is wrong.
        """
        if not self.grid:
            return
        arguments = self._arguments(addresses)

        def start(cta: Cta, number: int) -> Warp:
            warp = Warp(cta, number, self._function.slots)
            warp.steps = self._function.start(warp, arguments)
            return warp

        warps = self._interface.threads // 32
        with np.errstate(all="ignore"):
            self._machine.run(self.grid, self._interface.cluster, start, warps)
        for address, size in self._workspaces:
            if self.memory.read(address, size).any():
                raise SimulationError("the workspace is not left at zero")

    # Parameters -----------------------------------------------------------------------------------

    def _arguments(self, addresses: Sequence[int]) -> list[Any]:
        if self._interface.block:
            return [np.uint64(self._fill_block(addresses))]
        arguments: list[Any] = []
        for number, parameter in enumerate(self._interface.parameters):
            if isinstance(parameter, TensorMap | Im2colMap):
                place = 128 * (number + 1)
                self._encode(place, parameter, addresses)
                arguments.append(np.uint64(place))
            else:
                word, size = self._word(parameter, addresses)
                arguments.append(np.uint32(word) if size == 4 else np.uint64(word))
        return arguments

    def _fill_block(self, addresses: Sequence[int]) -> int:
        block = self.memory.allocate(self._interface.block_bytes)
        self._machine.acquire_needed = True
        for parameter in self._interface.parameters:
            place = block + parameter.offset
            if isinstance(parameter, TensorMap | Im2colMap):
                self._encode(place, parameter, addresses)
            else:
                word, size = self._word(parameter, addresses)
                self.memory.write(place, np.array([word], f"u{size}").view(np.uint8))
        return block

    def _word(self, parameter: Parameter, addresses: Sequence[int]) -> tuple[int, int]:
        match parameter:
            case Pointer(operand=operand):
                return addresses[operand], 8
            case Size(value=value, bytes=size):
                word = self._values[value]
                assert abs(word) < 1 << (8 * size - 1), f"{word} does not fit {size} bytes"
                return word % (1 << 8 * size), size  # it may be negative
            case Workspace(bytes_per_cta=each, zeroed=zeroed, least_ctas=least):
                size = zeroed + each * max(self.grid, least)
                address = self.memory.allocate(size)
                self._workspaces.append((address, zeroed))
                return address, 8
        raise AssertionError(parameter)

    def _encode(self, place: int, record: TensorMap | Im2colMap, addresses: Sequence[int]) -> None:
        """Makes a tensor map known at an address. One without elements cannot be used at all."""
        width = _ELEMENT_BYTES[record.element]
        dims = tuple(self._values[value] for value in record.dims)
        if not all(dims):
            return
        strides = (width, *(self._values[value] * width for value in record.strides))
        address = addresses[record.operand]
        if isinstance(record, TensorMap):
            self._machine.tensor_maps[place] = TiledMap(
                address,
                width,
                dims,
                strides,
                record.box,
                record.swizzle,
                tf32=record.element == "tf32",
            )
            return
        if min(places(dims[1:-1], record.lower, record.upper, record.steps)) < 1:
            return
        self._machine.tensor_maps[place] = Im2colTensor(
            address,
            width,
            dims,
            strides,
            record.channels,
            record.pixels,
            record.lower,
            record.upper,
            record.steps,
            record.swizzle,
            tf32=record.element == "tf32",
        )


def simulate(
    function: Any,
    interface: KernelInterface,
    inputs: Sequence[Tensor],
    result: Tensor,
    symbols: Sequence[int],
    *,
    shifts: Sequence[int] = (),
    multiprocessors: int = 3,
    seed: int = 0,
    places: int | None = None,
) -> Tensor:
    """The result of a kernel.

    Args:
        function: its ``llvm.func``.
        interface: its record.
        inputs: contiguous, in the order of the kernel's arguments.
        result: contiguous; gives size and type, and is filled with NaN before.
        symbols: values of s0, s1, ..
        shifts: bytes by which each operand's address, the result's last, misses a multiple of 256.
        multiprocessors: of the simulated GPU.
        seed: of the order of events.
        places: clusters that run at once; all of the grid by default.

    Raises:
        SimulationError: the kernel reads or writes out of bounds, races, hangs, ...
    """
    launch = Launch(
        function, interface, symbols, multiprocessors=multiprocessors, seed=seed, places=places
    )
    tensors = [*inputs, torch.full_like(result, float("nan"))]
    addresses = []
    for tensor, shift in zip(tensors, shifts or [0] * len(tensors), strict=True):
        data = _bytes(tensor)
        addresses.append(launch.memory.allocate(data.size, shift=shift))
        launch.memory.write(addresses[-1], data)
    launch.run(addresses)
    size = result.numel() * result.element_size()
    data = launch.memory.read(addresses[-1], size).tobytes()
    if not data:
        return torch.empty_like(result)
    return torch.frombuffer(bytearray(data), dtype=result.dtype).reshape(result.shape)


def _bytes(tensor: Tensor) -> Bytes:
    if not tensor.numel():
        return np.zeros(0, np.uint8)
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()


def kernel_function(module: Any) -> Any:
    """The function of a ``gpu.module``."""
    return next(op for op in sir.operations(sir.body(module)) if op.name == "llvm.func")
