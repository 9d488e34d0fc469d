# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The part of a compiled program that runs on a GPU: machine code, and which sizes it serves.

It holds no MLIR and no loaded module, so that it can be built without a GPU, saved and loaded.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from shapejit.gpu.program_graphs import GraphCode
from shapejit.symbolic import Expr

if TYPE_CHECKING:
    from shapejit.cache.cubins import CubinEntry


@dataclass(frozen=True)
class GpuBucket:
    """A box of sizes that one variant of a kernel serves.

    Attributes:
        lower, upper: its corners on the axes of the kernel, both included; None is no bound.
        variant: number of the variant in the program.
        reason: why it was chosen.
    """

    lower: tuple[int, ...]
    upper: tuple[int | None, ...]
    variant: int
    reason: str

    def holds(self, sizes: Sequence[int]) -> bool:
        """Whether sizes on the axes are in the box."""
        return all(
            low <= size and (high is None or size <= high)
            for size, low, high in zip(sizes, self.lower, self.upper, strict=True)
        )


@dataclass(frozen=True)
class GpuKernel:
    """Which variants of a kernel serve which sizes.

    Attributes:
        name: of the kernel.
        axes: what buckets are about, over the kernel's symbols.
        buckets: which cover all sizes.
    """

    name: str
    axes: tuple[Expr, ...]
    buckets: tuple[GpuBucket, ...]

    @property
    def variants(self) -> tuple[int, ...]:
        """Numbers of the kernel's variants in the program, in the order of the buckets."""
        return tuple(dict.fromkeys(bucket.variant for bucket in self.buckets))

    def bucket(self, symbols: Sequence[int]) -> GpuBucket:
        """The bucket of a launch, as the host program finds it.

        Args:
            symbols: values of the kernel's symbols.
        """
        sizes = [axis.evaluate(symbols=symbols) for axis in self.axes]
        return next((b for b in self.buckets if b.holds(sizes)), self.buckets[-1])


@dataclass(frozen=True)
class GpuVariant:
    """A kernel's code for some of its sizes.

    Attributes:
        name: of the kernel and its schedule: ``gemm0__persistent_128x256x64_s4_w2``.
        schedule: how it computes.
        data: machine code with the record of its call, as `shapejit.cache.cubins.CubinEntry`
            writes it.
        origin: where it came from when the program was compiled: built, memory, disk or shared.
    """

    name: str
    schedule: str
    data: bytes
    origin: str = "built"

    @cached_property
    def entry(self) -> CubinEntry:
        """The contents of `data`.

        Raises:
            CubinEntryError: it is damaged.
        """
        from shapejit.cache.cubins import CubinEntry

        return CubinEntry.decode(self.data)


@dataclass(frozen=True)
class GpuCode:
    """What a program needs beside its host program.

    Attributes:
        arch: architecture that the code is for: ``sm_90a``.
        variants: in the order of the table of kernels that the host program takes.
        kernels: by which the host program chooses among them.
        graph: how it runs under constant graphs; None if the host program queues the launches.
    """

    arch: str
    variants: tuple[GpuVariant, ...]
    kernels: tuple[GpuKernel, ...]
    graph: GraphCode | None = None

    def kernel(self, name: str) -> GpuKernel:
        """The kernel of that name.

        Raises:
            KeyError: there is none.
        """
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """All but machine code, as dicts, lists and scalars."""
        return {
            "arch": self.arch,
            "graph": None if self.graph is None else self.graph.to_json(),
            "variants": [
                {"name": v.name, "schedule": v.schedule, "origin": v.origin} for v in self.variants
            ],
            "kernels": [
                {
                    "name": kernel.name,
                    "axes": [str(axis) for axis in kernel.axes],
                    "buckets": [
                        [list(b.lower), list(b.upper), b.variant, b.reason] for b in kernel.buckets
                    ],
                }
                for kernel in self.kernels
            ],
        }

    @staticmethod
    def from_json(text: str | bytes, data: Sequence[bytes], head: bytes | None = None) -> GpuCode:
        """The inverse of `to_json`, as JSON, with machine code put back.

        Args:
            text: what `to_json` gave, as JSON.
            data, head: as for `from_record`.

        Raises:
            ValueError: it is not what `to_json` gives, or not for so many variants.
        """
        return GpuCode.from_record(json.loads(text), data, head)

    @staticmethod
    def from_record(record: Any, data: Sequence[bytes], head: bytes | None = None) -> GpuCode:
        """The inverse of `to_json`, with machine code put back.

        Args:
            record: what `to_json` gave.
            data: of the variants.
            head: of the head kernel, if there is one.

        Raises:
            ValueError: it is not what `to_json` gives, or not for so many variants.
        """
        try:
            variants = tuple(
                GpuVariant(str(v["name"]), str(v["schedule"]), code, str(v["origin"]))
                for v, code in zip(record["variants"], data, strict=True)
            )
            kernels = tuple(_kernel(each, len(variants)) for each in record["kernels"])
            graph = None
            if (record["graph"] is None) != (head is None):
                raise ValueError("a head kernel belongs to a program under graphs, and only there")
            if head is not None:
                known = {kernel.name: kernel.variants for kernel in kernels}
                graph = GraphCode.from_json(record["graph"], head, known)
            return GpuCode(str(record["arch"]), variants, kernels, graph)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"not the record of a program's GPU code: {error!r}") from error


def _kernel(record: dict[str, Any], variants: int) -> GpuKernel:
    axes = tuple(map(Expr.parse, record["axes"]))
    buckets = []
    for lower, upper, variant, reason in record["buckets"]:
        if not len(lower) == len(upper) == len(axes) or not 0 <= int(variant) < variants:
            raise ValueError(f"a bucket of {record['name']} is damaged")
        high = tuple(None if size is None else int(size) for size in upper)
        buckets.append(GpuBucket(tuple(map(int, lower)), high, int(variant), str(reason)))
    if not buckets:
        raise ValueError(f"{record['name']} has no bucket")
    return GpuKernel(str(record["name"]), axes, tuple(buckets))


__all__ = ["GpuBucket", "GpuCode", "GpuKernel", "GpuVariant"]
