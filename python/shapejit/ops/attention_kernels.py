# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The kernels of one kind of attention calls on one GPU: which one serves which sizes.

Which variants there are, and for which sizes, is what `shapejit-choose-buckets` would state of a
kernel of any sizes. Numbers that a call needs (sizes on the axes of the buckets, the values of a
kernel's interface) are computed by functions that are made of the expressions once, so that a
length that was never seen costs no more than another one.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from shapejit import logs
from shapejit.cache.cubins import CubinRecipe, CubinUnit, unit_of
from shapejit.cache.problem import Problem
from shapejit.codegen.ptxas import find_ptxas
from shapejit.gpu.device import Device
from shapejit.gpu.launch import Kernel
from shapejit.ops.attention_spec import AttentionKind, KernelText
from shapejit.ops.kernels import Build, CodeMemory, LoadedKernel, Variants
from shapejit.symbolic import Expr
from shapejit.symbolic.python_code import compiled

_LOG = logs.logger("bucket")

LOWERING = "shapejit-lower-attention-to-nvgpu"
"""The pass that makes kernels of them."""

GENERIC = "tiles_64x64_c1"
"""A variant that serves all calls of any kind."""

Bucket: TypeAlias = "tuple[tuple[int, ...], tuple[int | None, ...], str]"
Numbers: TypeAlias = "Callable[[Sequence[int]], tuple[int, ...]]"


@dataclass(frozen=True)
class Choice:
    """The variants of a kind.

    Attributes:
        at: what the buckets are about, of the kernel's symbols.
        buckets: lower and upper corner, both included, and the variant.
    """

    at: Numbers
    buckets: tuple[Bucket, ...]

    def __call__(self, symbols: Sequence[int]) -> str:
        """The variant for a call."""
        sizes = self.at(symbols)
        for lower, upper, variant in self.buckets:
            if all(
                low <= size and (high is None or size <= high)
                for low, size, high in zip(lower, sizes, upper, strict=True)
            ):
                return variant
        return GENERIC

    @property
    def variants(self) -> list[str]:
        """The distinct variants, in the order of the buckets."""
        return list(dict.fromkeys(variant for _, _, variant in self.buckets))


class KindKernels:
    """The kernels of a kind on a device. Thread-safe.

    Args:
        kind: of the calls.
        device: where they run.
        memory: bounds what is loaded.
        build: begins a build.
    """

    def __init__(
        self, kind: AttentionKind, device: Device, memory: CodeMemory, build: Build
    ) -> None:
        self.kind, self.memory, self._device = kind, memory, device
        # No bound method: kernels of a kind that is gone go with it, without a garbage collection.
        make_unit = functools.partial(_unit, kind, device)
        self._variants: Variants[str] = Variants(device, memory, build, make_unit)
        self._lock = threading.Lock()
        self._refused: set[str] = set()
        self._values: dict[str, tuple[LoadedKernel[str], Numbers]] = {}

    @functools.cached_property
    def choice(self) -> Choice:
        """Which variant serves which sizes."""
        return choice_of(self.kind, self._device.multiprocessors)

    def choose(self, symbols: Sequence[int]) -> str:
        """The variant for a call."""
        chosen = self.choice(symbols)
        return GENERIC if chosen in self._refused else chosen

    def launch(
        self, addresses: Sequence[int], symbols: Sequence[int], stream: int, *, final: bool
    ) -> None:
        """Launches a call.

        Args:
            addresses: of the operands and the result.
            symbols: values of the kernel's symbols.
            stream: the stream's handle.
            final: whether to wait for the variant that is chosen.

        Raises:
            Exception: what the build of a kernel raised.
            CudaError: the device refuses the launch.
        """
        known = self._values.get(self.choose(symbols))
        kernel = None if known is None else known[0].kernel
        while known is None or kernel is None:  # not loaded yet, or evicted
            known = self._fetch(symbols, final)
            kernel = known[0].kernel
        self.memory.tick(known[0])
        _launch(kernel, addresses, known[1](symbols), stream)

    def build_all(self) -> list[str]:
        """Builds and loads all variants; their names.

        Raises:
            Exception: what the build of a kernel raised.
        """
        names = self.choice.variants
        for name in names:
            self._variants.begin(name, urgent=True)
        for name in names:
            self._prepared(self._variants.load(name))
        return names

    def _fetch(self, symbols: Sequence[int], final: bool) -> tuple[LoadedKernel[str], Numbers]:
        loaded, _ = self._variants.obtain(
            lambda: self.choose(symbols), GENERIC, self._refuse, final=final
        )
        return self._prepared(loaded)

    def _prepared(self, loaded: LoadedKernel[str]) -> tuple[LoadedKernel[str], Numbers]:
        made = loaded, compiled(loaded.values)
        self._values[loaded.schedule] = made
        return made

    def _refuse(self, chosen: str, error: BaseException) -> bool:
        """Chooses a variant that cannot be built no more; says whether there is another one."""
        if chosen == GENERIC:
            return False
        _LOG.warning("%s cannot be built; it is not used for %s: %s", chosen, self.kind, error)
        self._refused.add(chosen)
        return True


def _unit(kind: AttentionKind, device: Device, schedule: str) -> CubinUnit:
    alignment = 16 if kind.aligned else 1
    recipe = CubinRecipe(schedule=schedule, arch=device.arch, alignment=alignment)
    return unit_of(problem_of_kind(kind), LOWERING, recipe, find_ptxas())


def _launch(kernel: Kernel, addresses: Sequence[int], values: Sequence[int], stream: int) -> None:
    kernel.launch_packed(addresses, kernel.pack_values(addresses, values), stream)


@functools.lru_cache(maxsize=64)
def problem_of_kind(kind: AttentionKind) -> Problem:
    """What the kernels of a kind compute."""
    written = KernelText(kind)
    return Problem(
        kind="attention",
        text=written.text(),
        dtypes=written.dtypes,
        layouts=tuple(map(written.map, (*written.operands, "y"))),
        epilogue="",
    )


@functools.lru_cache(maxsize=256)
def choice_of(kind: AttentionKind, multiprocessors: int) -> Choice:
    """The variants of a kind on a GPU of so many multiprocessors."""
    # They bring MLIR, which gemms that come from the cache do without.
    import dataclasses

    import mlir.ir as ir

    from shapejit import ir as sir
    from shapejit.passes.buckets.device import H200
    from shapejit.passes.nvgpu.attention.lowering import choose

    written = KernelText(kind)
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(written.text())
        kernel = sir.kernels(module)["attention"]
        count = ir.IntegerAttr(kernel.attributes["symbols"]).value
        sizes: dict[int, tuple[int, int | None]] = dict.fromkeys(range(count), (0, None))
        device = dataclasses.replace(H200, multiprocessors=multiprocessors)
        axes, buckets = choose(kernel, sizes, device)
    found: tuple[Expr, ...] = tuple(axes)
    return Choice(compiled(found), tuple((lower, upper, name) for lower, upper, name, _ in buckets))
