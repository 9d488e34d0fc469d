# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What compiled modules compute: their host programs, with kernels on a simulated GPU.

The launch function that a host program is linked with runs the variant which it asks for on the
simulator, with the operands and values that it passes.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import math
from collections.abc import Sequence
from ctypes import c_int32, c_int64, c_void_p
from typing import Any

import mlir.ir as ir
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from reference.hopper.launch import Launch, kernel_function
from reference.hopper.machine import Machine
from reference.hopper.memory import GlobalMemory
from shapejit import ir as sir
from shapejit.artefacts import ENTRY_RUN, Artefacts, TensorInput, TensorOutput
from shapejit.cache.cubins import CubinUnit
from shapejit.codegen.builder import CubinBuilder
from shapejit.execution import host_library, plan_function
from shapejit.gpu import program_build
from shapejit.gpu.interface import KernelInterface
from shapejit.pass_host import run_pipeline
from shapejit.passes.host.launchers import LAUNCH
from shapejit.program import Program
from unit.gpu_programs import CPU, Gated, Residual, Scores, build, rows, tokens

_LAUNCH = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)
_RUN = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)


class Recorder(CubinBuilder):
    """A builder that remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.units: dict[tuple[str, str], CubinUnit] = {}

    def build_async(self, unit: CubinUnit, *, urgent: bool = False) -> Any:
        self.units[unit.key.text, str(dict(unit.key.schedule)["name"])] = unit
        return super().build_async(unit, urgent=urgent)


class Simulated:
    """The kernels of a program on a simulated GPU; an `Execution`.

    Attributes:
        launched: numbers of the variants that were launched.
    """

    device = CPU
    alignment = 16
    for_empty = 0
    arena_bytes = 0
    code_bytes = 0

    def __init__(self, artefacts: Artefacts, units: Sequence[CubinUnit]) -> None:
        assert artefacts.gpu is not None
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
        self._run = _RUN(self._library.lookup(ENTRY_RUN))
        self.launched: list[int] = []
        self.failure: Exception | None = None

    def run(self, symbols: Any, buffers: Any, arena_bytes: int) -> None:
        """Copies all buffers to the simulated GPU, runs, and copies the outputs back."""
        self._memory, self.failure = GlobalMemory(), None
        sizes = self._sizes(list(symbols))
        table = (c_void_p * len(sizes))()
        for position, size in enumerate(sizes):
            table[position] = self._memory.allocate(size)
            data = np.frombuffer(ctypes.string_at(buffers[position] or 0, size), np.uint8)
            self._memory.write(table[position], data)
        arena = self._memory.allocate(arena_bytes)
        kernels = (c_void_p * len(self._variants))(*range(1, 1 + len(self._variants)))
        status = self._run(symbols, table, arena, kernels, 7)
        if self.failure is not None:
            raise self.failure
        assert status == 0
        outputs = sum(isinstance(spec, TensorOutput) for spec in self._artefacts.outputs)
        for position in range(len(sizes) - outputs, len(sizes)):
            data = self._memory.read(table[position], sizes[position]).tobytes()
            ctypes.memmove(buffers[position], data, sizes[position])

    def _sizes(self, symbols: list[int]) -> list[int]:
        """Bytes of every buffer."""
        artefacts = self._artefacts
        inputs = [spec for spec in artefacts.inputs if isinstance(spec, TensorInput)]
        outputs = [spec for spec in artefacts.outputs if isinstance(spec, TensorOutput)]

        def bytes_(dtype: str, sizes: Sequence[int]) -> int:
            width: int = getattr(torch, dtype).itemsize
            return width * math.prod(sizes)

        return [
            *(bytes_(s.dtype, [d.evaluate(symbols=symbols) for d in s.dims]) for s in inputs),
            *(bytes_(spec.dtype, spec.shape) for spec in artefacts.weights),
            *(bytes_(s.dtype, [d.evaluate(symbols=symbols) for d in s.dims]) for s in outputs),
        ]

    def _launch(
        self, kernel: int, operands: int, values: int, workspace: int | None, stream: int
    ) -> int:
        """``shapejitRtCudaLaunch``"""
        try:
            assert (workspace, stream) == (None, 7)
            function, interface = self._lowered[kernel - 1]
            self.launched.append(kernel - 1)
            count = len(interface.values)
            given = (c_int64 * count).from_address(values)[:]
            addresses = (c_void_p * (self._operand_count(interface))).from_address(operands)[:]
            with self._context:
                launch = Launch(function, interface, [0] * 16, multiprocessors=4)
                launch._values = given  # those of the host program
                launch.memory = self._memory
                launch._machine = Machine(self._memory, 0)
                launch.run([address or 0 for address in addresses])
        except Exception as error:  # cannot pass through native code
            self.failure = error
            return 1
        return 0

    @staticmethod
    def _operand_count(interface: KernelInterface) -> int:
        numbers = [getattr(parameter, "operand", -1) for parameter in interface.parameters]
        return max(numbers) + 1


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


def simulated(model: nn.Module, args: Sequence[Tensor], shapes: Any) -> tuple[Program, Simulated]:
    """A model compiled for the simulated GPU."""
    recorder = Recorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program_build, "builder_for", lambda _dump: recorder)
        artefacts, weights = build(model, args, shapes)
    code = artefacts.gpu
    assert code is not None
    # Kernels are asked for in the order in which the program has them.
    texts = list(dict.fromkeys(text for text, _ in recorder.units))
    units: dict[int, CubinUnit] = {}
    for kernel, text in zip(code.kernels, texts, strict=True):
        for number in kernel.variants:
            units[number] = recorder.units[text, code.variants[number].schedule]
    execution = Simulated(artefacts, [units[number] for number in range(len(units))])
    return Program(artefacts, weights, execution=execution), execution


def check(program: Program, model: nn.Module, *args: Tensor) -> None:
    """Compares a call with float64; torch's own result in that type says what can be expected."""
    with torch.no_grad():
        got, theirs = program(*args), model(*args)
        exact = copy.deepcopy(model).double()(*(arg.double() for arg in args))
    assert (got.shape, got.dtype) == (theirs.shape, theirs.dtype)
    if exact.numel():
        ours, torchs = ((each.double() - exact).norm().item() for each in (got, theirs))
        assert ours <= 1.2 * max(torchs, exact.norm().item() * torch.finfo(got.dtype).eps / 8)


@functools.cache
def feed_forward(kind: type[nn.Module]) -> tuple[Program, Simulated, nn.Module]:
    torch.manual_seed(0)
    model = kind().eval()
    return *simulated(model, (rows(7),), tokens()), model


@pytest.mark.parametrize("count", [1, 2, 16, 17, 40])
@pytest.mark.parametrize("kind", [Residual, Gated])
def test_feed_forward(kind: type[nn.Module], count: int) -> None:
    program, execution, model = feed_forward(kind)
    execution.launched.clear()
    check(program, model, rows(count))
    assert len(execution.launched) == 2


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 128, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


def test_a_linear_layer_rounds_once() -> None:
    """Not after the product and again after the bias, which would give 1.4 times the error."""
    program, _, model = feed_forward(Linear)
    x = rows(40)
    with torch.no_grad():
        got = program(x).double()
        exact = copy.deepcopy(model).double()(x.double())
    rounded = exact.bfloat16().double()
    assert (got - exact).norm() <= 1.02 * (rounded - exact).norm()


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 3, 8), (1, 20, 33), (3, 1, 16)])
def test_products_of_two_inputs(sizes: tuple[int, int, int]) -> None:
    program, _, model = scores()
    batch, m, n = sizes
    generator = torch.Generator().manual_seed(n)
    q, k = (torch.randn(batch, size, 64, generator=generator).bfloat16() for size in (m, n))
    check(program, model, q, k)


@functools.cache
def scores() -> tuple[Program, Simulated, nn.Module]:
    model = Scores()
    args = [torch.zeros(2, size, 64, dtype=torch.bfloat16) for size in (5, 16)]
    batch = Dim("batch", min=1, max=8)
    shapes = {
        "q": {0: batch, 1: Dim("m", min=1, max=64)},
        "k": {0: batch, 1: Dim("n", min=1, max=64)},
    }
    return *simulated(model, args, shapes), model


class Product(nn.Module):
    """With the second factor's neighbours along n."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.bmm(a, b)


@functools.cache
def product(multiple: int) -> tuple[Program, Simulated, nn.Module]:
    inner = Dim("k", min=1, max=512 // multiple)
    k = multiple * inner if multiple != 1 else inner
    args = [torch.zeros(sizes, dtype=torch.float16) for sizes in ((2, 6, 16), (2, 16, 40))]
    shapes = {"a": {1: Dim("m", min=1, max=300), 2: k}, "b": {1: k}}
    return *simulated(Product(), args, shapes), Product()


@pytest.mark.parametrize(
    ("multiple", "m", "k"), [(8, 1, 8), (8, 20, 136), (1, 1, 1), (1, 20, 70), (1, 5, 64)]
)
def test_products_over_a_free_dim(multiple: int, m: int, k: int) -> None:
    """In f16; tensor maps can be used if the inner size is known to be a multiple of 8."""
    program, execution, model = product(multiple)
    generator = torch.Generator().manual_seed(k)
    check(
        program,
        model,
        torch.randn(2, m, k, generator=generator).half(),
        torch.randn(2, k, 40, generator=generator).half(),
    )
    assert program.artefacts.gpu is not None
    names = {program.artefacts.gpu.variants[n].schedule for n in execution.launched}
    assert all(name.startswith("unaligned") == (multiple == 1) for name in names)


class Transposed(nn.Module):
    """Weights as GPT-2 has them, [k, n], and n no multiple of 8."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = nn.Parameter(torch.randn(64, 33, generator=generator).bfloat16())
        self.bias = nn.Parameter(torch.randn(33, generator=generator).bfloat16())

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(torch.addmm(self.bias, x, self.weight))


@pytest.mark.parametrize("count", [1, 19])
def test_weights_along_the_other_dim(count: int) -> None:
    program, _, model = feed_forward(Transposed)
    check(program, model, rows(count))
