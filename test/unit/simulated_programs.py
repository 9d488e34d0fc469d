# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Compiled modules on a simulated GPU: their host programs, with simulated kernels."""

from __future__ import annotations

import ctypes
import math
import random
from collections.abc import Sequence
from ctypes import c_int32, c_int64, c_void_p
from typing import Any

import mlir.ir as ir
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from reference.hopper.launch import Launch, kernel_function
from reference.hopper.machine import Machine
from reference.hopper.memory import GlobalMemory
from shapejit import ir as sir
from shapejit.artefacts import (
    ENTRY_REGION,
    ENTRY_RUN,
    ENTRY_WORDS,
    Artefacts,
    CopySpec,
    PackSpec,
    TensorInput,
    TensorOutput,
)
from shapejit.cache.cubins import CubinUnit
from shapejit.execution import host_library, plan_function
from shapejit.gpu import program_build
from shapejit.gpu.interface import KernelInterface
from shapejit.pass_host import run_pipeline
from shapejit.passes.hoisting.split import is_bind_part
from shapejit.passes.host.launchers import LAUNCH
from shapejit.program import Program
from unit.gpu_programs import CPU, build

_LAUNCH = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)
_RUN = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)
_REGION = ctypes.CFUNCTYPE(c_int64, c_void_p)
_WORDS = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_void_p, c_void_p)


class Simulated:
    """The kernels of a program on a simulated GPU; an `Execution`.

    The host program is the real one. By value, the launch function that it is linked with runs the
    variant which it asks for, with the operands and values that it passes. Under constant graphs,
    the launches of the region that it names run with the words that it gives, those that may run
    side by side in a random order.

    Attributes:
        launched: numbers of the variants that were launched.
        bind: what runs when weights are bound; None if nothing does.
    """

    device = CPU
    alignment = 16
    for_empty = 0
    arena_bytes = 0
    code_bytes = 0

    def __init__(
        self,
        artefacts: Artefacts,
        units: Sequence[CubinUnit],
        bind_units: Sequence[CubinUnit] = (),
    ) -> None:
        assert artefacts.gpu is not None
        self._bind_units = bind_units
        self.bind: Simulated | None = None
        self._artefacts = artefacts
        self._variants = artefacts.gpu.variants
        self._context = ir.Context()
        self._lowered = [_lowered(self._context, unit) for unit in units]
        self._memory = GlobalMemory()
        self._callback = _LAUNCH(self._launch)
        address = ctypes.cast(self._callback, c_void_p).value
        assert address is not None
        self._library = host_library(artefacts, {LAUNCH: address})
        self.plan = plan_function(self._library)
        self._graph = artefacts.gpu.graph
        self._random = random.Random(0)
        self.launched: list[int] = []
        self.failure: Exception | None = None

    def beside(self, artefacts: Artefacts) -> Simulated:
        """The bind part of the program on a simulated GPU of its own."""
        self.bind = Simulated(artefacts, self._bind_units)
        return self.bind

    def release(self) -> None:
        """No memory is kept."""

    def place(self) -> None:
        """Calls run at once."""

    def keep(self, tensors: Sequence[Tensor]) -> None:
        """Nothing is captured."""

    def run_tensors(self, *_: Any) -> bool:
        return False

    def run(self, symbols: Any, buffers: Any, arena_bytes: int, place: Any) -> None:
        """Copies all buffers to the simulated GPU, runs, and copies what was written back."""
        self._memory, self.failure = GlobalMemory(), None
        self.launched.clear()
        sizes = self._sizes(list(symbols))
        table = (c_void_p * len(sizes))()
        for position, size in enumerate(sizes):
            table[position] = self._memory.allocate(size)
            data = np.frombuffer(ctypes.string_at(buffers[position] or 0, size), np.uint8)
            self._memory.write(table[position], data)
        arena = self._memory.allocate(arena_bytes)
        # What a launch reads before it was written shows.
        self._memory.write(arena, np.full(arena_bytes, 0xFF, np.uint8))
        (self._run_queued if self._graph is None else self._run_graph)(symbols, table, arena)
        outputs = sum(isinstance(spec, TensorOutput) for spec in self._artefacts.outputs)
        for position in (*self._changed(), *range(len(sizes) - outputs, len(sizes))):
            data = self._memory.read(table[position], sizes[position]).tobytes()
            ctypes.memmove(buffers[position], data, sizes[position])

    def prepare(self, buffers: Any) -> None:
        """Nothing is made ahead of time."""

    def graph_use(self) -> None:
        """There are no graphs."""

    def _run_queued(self, symbols: Any, buffers: Any, arena: int) -> None:
        kernels = (c_void_p * len(self._variants))(*range(1, 1 + len(self._variants)))
        run = _RUN(self._library.lookup(ENTRY_RUN))
        status = run(symbols, buffers, arena, kernels, 7)
        if self.failure is not None:
            raise self.failure
        assert status == 0

    def _run_graph(self, symbols: Any, buffers: Any, arena: int) -> None:
        graph = self._graph
        assert graph is not None
        region = _REGION(self._library.lookup(ENTRY_REGION))(symbols)
        words = (c_int64 * len(graph.words))()
        _WORDS(self._library.lookup(ENTRY_WORDS))(symbols, buffers, arena, words)
        chosen = graph.regions[region]
        for number in self._some_order(graph.waits(chosen)):
            launch, variant = graph.launches[number], chosen.variants[number]
            of_kernel = self._artefacts.gpu.kernel(launch.kernel).variants  # type: ignore[union-attr]
            values = launch.values[of_kernel.index(variant)]
            self._simulate(
                variant, [words[number] for number in launch.operands], [words[n] for n in values]
            )

    def _some_order(self, waits: Sequence[tuple[int, ...] | None]) -> list[int]:
        """The launches in a random order that lets each one come behind all that it waits for."""
        left, order = set(range(len(waits))), list[int]()
        while left:
            free = [n for n in sorted(left) if left.isdisjoint(_waited(n, waits[n]))]
            order.append(self._random.choice(free))
            left.remove(order[-1])
        return order

    def _simulate(self, variant: int, operands: Sequence[int], values: Sequence[int]) -> None:
        """Runs a launch."""
        function, interface = self._lowered[variant]
        self.launched.append(variant)
        with self._context:
            launch = Launch(function, interface, [0] * 16, multiprocessors=4)
            launch._values = list(values)  # those of the host program
            launch.memory = self._memory
            launch._machine = Machine(self._memory, 0)
            launch.run(operands)

    def _sizes(self, symbols: list[int]) -> list[int]:
        """Bytes of every buffer."""
        artefacts = self._artefacts
        inputs = [spec for spec in artefacts.inputs if isinstance(spec, TensorInput)]
        outputs = [spec for spec in artefacts.outputs if isinstance(spec, TensorOutput)]

        return [
            *(_bytes(s.dtype, [d.evaluate(symbols=symbols) for d in s.dims]) for s in inputs),
            *(_bytes(spec.dtype, spec.shape) for spec in (*artefacts.states, *artefacts.weights)),
            *(_bytes(spec.dtype, spec.shape) for spec in artefacts.hoisted),
            *map(self._copy_bytes, artefacts.packs),
            *(_bytes(s.dtype, [d.evaluate(symbols=symbols) for d in s.dims]) for s in outputs),
        ]

    def _changed(self) -> list[int]:
        """Buffers of the inputs and states that change."""
        artefacts = self._artefacts
        tensors = [i for i, spec in enumerate(artefacts.inputs) if isinstance(spec, TensorInput)]
        changed = [tensors.index(leaf) for leaf in artefacts.updates]
        return [*changed, *range(len(tensors), len(tensors) + len(artefacts.states))]

    def _copy_bytes(self, spec: CopySpec) -> int:
        """Bytes of a copy of weights."""
        known = (*self._artefacts.weights, *self._artefacts.hoisted)
        if isinstance(spec, PackSpec):
            weight = known[spec.weight]
            sizes = list(spec.over(weight.shape).sizes)
            sizes[spec.dim] = -(-sizes[spec.dim] // spec.panel) * spec.panel
            return _bytes(weight.dtype, sizes)
        parts = [known[number] for number in spec.weights]
        return sum(_bytes(part.dtype, part.shape) for part in parts)

    def _launch(
        self, kernel: int, operands: int, values: int, workspace: int | None, stream: int
    ) -> int:
        """``shapejitRtCudaLaunch``"""
        try:
            assert (workspace, stream) == (None, 7)
            interface = self._lowered[kernel - 1][1]
            given = (c_int64 * len(interface.values)).from_address(values)[:]
            addresses = (c_void_p * self._operand_count(interface)).from_address(operands)[:]
            self._simulate(kernel - 1, [address or 0 for address in addresses], given)
        except Exception as error:  # cannot pass through native code
            self.failure = error
            return 1
        return 0

    @staticmethod
    def _operand_count(interface: KernelInterface) -> int:
        numbers = [getattr(parameter, "operand", -1) for parameter in interface.parameters]
        return max(numbers) + 1


def _waited(number: int, waits: tuple[int, ...] | None) -> tuple[int, ...]:
    """The launches that one waits for, in a region's order."""
    return (number - 1,) if waits is None else waits


def _bytes(dtype: str, sizes: Sequence[int]) -> int:
    width: int = getattr(torch, dtype).itemsize
    return width * math.prod(sizes)


def _lowered(context: Any, unit: CubinUnit) -> tuple[Any, KernelInterface]:
    """The function of a variant, and how it is called."""
    with context, ir.Location.unknown():
        module = ir.Module.parse(unit.text)
        run_pipeline(module, unit.pipeline, stage="test")
        [op] = (op for op in sir.operations(module.body) if op.name == "gpu.module")
        text = ir.StringAttr(op.attributes[program_build.INTERFACE]).value
        # The function is part of the module, which has to live as long.
        _modules.append(module)
        return kernel_function(op), KernelInterface.from_json(text)


_modules: list[Any] = []


def simulated(
    model: nn.Module, args: Sequence[Tensor], shapes: Any, **options: Any
) -> tuple[Program, Simulated]:
    """A model compiled for the simulated GPU."""
    asked: dict[bool, dict[str, CubinUnit]] = {False: {}, True: {}}
    requests = program_build._requests

    def recorded(module: Any, *others: Any) -> Any:
        """The variants that are asked for, apart for the program and for its bind part."""
        found = requests(module, *others)
        named = {each.name: each.unit for kernel in found.values() for each in kernel}
        asked[is_bind_part(module)] |= named
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program_build, "_requests", recorded)
        artefacts, weights = build(model, args, shapes, **options)
    bind = () if artefacts.bind is None else _units(artefacts.bind.program, asked[True])
    execution = Simulated(artefacts, _units(artefacts, asked[False]), bind)
    return Program(artefacts, weights, execution=execution), execution


def _units(artefacts: Artefacts, asked: dict[str, CubinUnit]) -> list[CubinUnit]:
    """What the variants of a program were made of, in their order."""
    assert artefacts.gpu is not None
    return [asked[variant.name] for variant in artefacts.gpu.variants]
