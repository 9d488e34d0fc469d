# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Models that compile for a GPU, and their programs on the fake driver.

The machine code is built as for a GPU and then exchanged for what the fake driver takes, so that
all the rest is real: the host program, the runtime library, the calls from Python. Device memory is
host memory; the kernels do not run.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from shapejit import importer, pipeline
from shapejit.artefacts import Artefacts
from shapejit.gpu.interface import Im2colMap, KernelInterface, Parameter, Size, TensorMap
from shapejit.gpu.program_code import GpuVariant
from shapejit.gpu.program_graphs import GraphCode
from shapejit.gpu.program_run import GpuExecution
from shapejit.options import CompileOptions
from shapejit.program import Program
from shapejit.progress import Progress
from unit.fake_cuda import Fake

TARGET = "cuda:sm_90a:h200"

CPU = torch.device("cpu")


class Residual(nn.Module):
    """Two linear layers with gelu between them, added to the input."""

    def __init__(self, width: int = 64, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width, dtype=dtype)
        self.down = nn.Linear(2 * width, width, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.gelu(self.up(x)))


class Deep(nn.Module):
    """Two of `Residual`: four launches, so that it runs under constant graphs."""

    def __init__(self, width: int = 64, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.first = Residual(width, dtype)
        self.second = Residual(width, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class Gated(nn.Module):
    """The feed-forward part of a Llama block."""

    def __init__(self, width: int = 64, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 2 * width, bias=False, dtype=dtype)
        self.up = nn.Linear(width, 2 * width, bias=False, dtype=dtype)
        self.down = nn.Linear(2 * width, width, bias=False, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Scores(nn.Module):
    """Products of two inputs."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.matmul(q, k.mT) * 0.125


def tokens(most: int = 8192) -> dict[str, Any]:
    """Dynamic shapes of a model of one input whose rows vary."""
    return {"x": {0: Dim("tokens", min=1, max=most)}}


def rows(count: int, width: int = 64, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Random rows."""
    return torch.randn(count, width, generator=torch.Generator().manual_seed(count)).to(dtype)


def build(
    model: nn.Module, args: Sequence[Tensor], dynamic_shapes: Any, **options: Any
) -> tuple[Artefacts, list[Tensor]]:
    """Compiles a model for a GPU, wherever its tensors are: the artefacts, and the weights."""
    imported = importer.import_model(model.eval(), args, None, dynamic_shapes=dynamic_shapes)
    with Progress() as progress:
        artefacts = pipeline.build(imported, CompileOptions(**options), progress, TARGET)
    return artefacts, list(imported.tensors)


@functools.cache
def residual() -> tuple[Artefacts, list[Tensor]]:
    """`Residual`, compiled."""
    torch.manual_seed(0)
    return build(Residual(), (rows(7),), tokens())


@functools.cache
def deep() -> tuple[Artefacts, list[Tensor]]:
    """`Deep`, compiled."""
    torch.manual_seed(0)
    return build(Deep(), (rows(7),), tokens())


# On the fake driver -------------------------------------------------------------------------------


def with_fake_code(artefacts: Artefacts) -> Artefacts:
    """The same with code that the fake driver takes, in which every variant has its own entry."""
    assert artefacts.gpu is not None
    variants = tuple(
        dataclasses.replace(variant, data=_fake_data(variant)) for variant in artefacts.gpu.variants
    )
    graph = artefacts.gpu.graph
    if graph is not None:
        graph = dataclasses.replace(graph, head=_fake_head(graph))
    gpu = dataclasses.replace(artefacts.gpu, variants=variants, graph=graph)
    bind = artefacts.bind
    if bind is not None:
        bind = dataclasses.replace(bind, program=with_fake_code(bind.program))
    return dataclasses.replace(artefacts, gpu=gpu, bind=bind)


def _fake_head(graph: GraphCode) -> bytes:
    """A head kernel that the fake driver runs."""
    entry = graph.head_entry
    words = int(entry.interface.entry.rpartition("_")[2])
    image = f"fake\n{entry.interface.entry} 16 0 1024 8 8 8 4 {8 * words}\n".encode()
    return dataclasses.replace(entry, cubin=image).encode()


def _fake_data(variant: GpuVariant) -> bytes:
    entry = variant.entry
    interface = dataclasses.replace(entry.interface, entry=variant.name)
    return dataclasses.replace(entry, interface=interface, cubin=_image(interface)).encode()


def _image(interface: KernelInterface) -> bytes:
    parameters = [8] if interface.block else map(_bytes, interface.parameters)
    sizes = " ".join(map(str, parameters))
    return f"fake\n{interface.entry} 168 0 {interface.threads} {sizes}\n".encode()


def _bytes(parameter: Parameter) -> int:
    match parameter:
        case TensorMap() | Im2colMap():
            return 128
        case Size(bytes=size):
            return size
        case _:
            return 8


@dataclass
class FakeStreams:
    """Streams of the fake driver, which stand for those of torch.

    Attributes:
        handle: of the current stream.
        captured: whether it is being captured.
    """

    handle: int = 0
    captured: bool = False

    def current(self) -> tuple[int, bool]:
        return self.handle, self.captured


@dataclass
class FakeProgram:
    """A program on the fake driver.

    Attributes:
        fake: the driver.
        program: to call.
        streams: on which it is called.
    """

    fake: Fake
    program: Program
    streams: FakeStreams = field(default_factory=FakeStreams)

    def launches(self, call: Callable[[], Any]) -> list[Any]:
        """What a call launches, in order."""
        before = self.fake.launches
        call()
        return [
            self.fake.controls.fakeLaunchAt(number)[0]
            for number in range(before, self.fake.launches)
        ]


def on_fake(artefacts: Artefacts, weights: Sequence[Tensor], fake: Fake) -> FakeProgram:
    """A program for a GPU on the fake driver, with tensors on the CPU."""
    streams = FakeStreams()
    made = with_fake_code(artefacts)
    execution = GpuExecution.of(made, fake.driver.device(0), CPU, streams)
    return FakeProgram(fake, Program(made, weights, execution=execution), streams)


__all__ = [
    "CPU",
    "Deep",
    "FakeProgram",
    "FakeStreams",
    "Gated",
    "Residual",
    "Scores",
    "build",
    "deep",
    "on_fake",
    "residual",
    "rows",
    "tokens",
    "with_fake_code",
]
