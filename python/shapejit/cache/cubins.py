# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels for NVIDIA GPUs in the cache: their keys, and what an entry holds.

A key is made from a kernel's IR before it is lowered, and from how it will be lowered, so that what
the cache has is neither lowered nor assembled. An entry holds all that a launch needs: the machine
code, the record of its interface, and what the code takes of the GPU::

    shapejit-cubin 1 612
    {"interface": {...}, "name": "gemm__persistent_128x256x64_s4_w2", "resources": {...}}
    <ELF>

Whoever holds a `CachedCubin` keeps its entry findable in memory, as `Lease` says; a module that is
loaded into a device holds the one it was made from.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import Any

from shapejit.cache import fingerprint
from shapejit.cache.key import Scalar, TargetKey, VariantKey, sorted_items, text_digest
from shapejit.cache.memory import Lease
from shapejit.cache.objects import Fetched, Origin
from shapejit.cache.problem import Problem, problem_of
from shapejit.codegen.cuda_tools import Tool
from shapejit.codegen.ptxas import Resources
from shapejit.gpu.interface import KernelInterface

TRIPLE = "nvptx64-nvidia-cuda"

_PARAMETERS = ("by-value", "block")
_VECTOR_BYTES = 16  # of the widest load and store of a thread
_MAGIC = b"shapejit-cubin 1 "


@dataclass(frozen=True)
class CubinRecipe:
    """How a kernel becomes machine code, apart from what the sources of the passes say.

    Attributes:
        schedule: the variant, by its text: ``persistent_128x256x64_s4_w2``. Clusters are part of
            it.
        arch: architecture: ``sm_90a``.
        parameters: ``by-value`` or ``block``: how the kernel receives sizes and pointers.
        alignment: bytes that strides and base addresses of operands are multiples of; 1 for any.
        programmatic: whether it may start before the kernel ahead of it in the stream ends.
        constant_weights: whether it may then load weights before that.
        multiprocessors: of the device, if the code has their number baked in; else 0.
        math_mode: ``ieee``, ``tf32``, ...
        opt_level: of ``ptxas``, 0 to 3.
    """

    schedule: str
    arch: str = "sm_90a"
    parameters: str = "by-value"
    alignment: int = 16
    programmatic: bool = False
    constant_weights: bool = False
    multiprocessors: int = 0
    math_mode: str = "ieee"
    opt_level: int = 3

    def __post_init__(self) -> None:
        if self.parameters not in _PARAMETERS:
            raise ValueError(
                f"parameters of a recipe must be {' or '.join(_PARAMETERS)}, got "
                f"{self.parameters!r}"
            )
        if re.fullmatch(r"\w+", self.schedule) is None:
            raise ValueError(f"a schedule is letters, digits and _, got {self.schedule!r}")


@dataclass(frozen=True)
class CubinUnit:
    """What becomes one cubin.

    Attributes:
        key: its key.
        text: the IR of a module with the kernel, from which it is made.
        pipeline: the passes that make a ``gpu.module`` of it.
        arch, opt_level: what ``ptxas`` is told.
        tool: the ``ptxas`` whose version the key has.
    """

    key: VariantKey
    text: str
    pipeline: str
    arch: str
    opt_level: int
    tool: Tool

    @property
    def name(self) -> str:
        """What it is called in reports: ``gemm persistent_128x256x64_s4_w2``."""
        return f"{self.key.kind} {dict(self.key.schedule)['name']}"


def cubin_unit(kernel: Any, recipe: CubinRecipe, tool: Tool) -> CubinUnit:
    """The unit of one variant of a ``shapejit.kernel``, which is left as it is.

    Args:
        kernel: the operation.
        recipe: how it is compiled.
        tool: the assembler, of `shapejit.codegen.ptxas.find_ptxas`.

    Raises:
        ValueError: no pass makes a GPU kernel of this kind.
    """
    from shapejit.passes.nvgpu.families import FAMILIES, family_of

    problem = problem_of(kernel)
    family = family_of(kernel)
    if family is None:
        names = ", ".join(each.name for each in FAMILIES)
        raise ValueError(f"no pass makes a GPU kernel of a {problem.kind}; kinds are {names}")
    return unit_of(problem, family.lowering, recipe, tool)


def unit_of(problem: Problem, lowering: str, recipe: CubinRecipe, tool: Tool) -> CubinUnit:
    """The unit of one variant of a kernel that is known by its text.

    Args:
        problem: what the kernel computes.
        lowering: the pass that makes a GPU kernel of it.
        recipe: how it is compiled.
        tool: the assembler, of `shapejit.codegen.ptxas.find_ptxas`.
    """
    options = f"schedule={recipe.schedule} parameters={recipe.parameters}"
    options += f" programmatic={str(recipe.programmatic).lower()}"
    if recipe.constant_weights:
        options += " constant-weights=true"
    pipeline = f"{lowering}{{{options}}}"
    schedule: dict[str, Scalar] = {
        "name": recipe.schedule,
        "pipeline": pipeline,
        "programmatic": recipe.programmatic,
        "constant_weights": recipe.constant_weights,
        "multiprocessors": recipe.multiprocessors,
    }
    key = VariantKey(
        kind=problem.kind,
        dtypes=problem.dtypes,
        layouts=problem.layouts,
        math_mode=recipe.math_mode,
        epilogue=problem.epilogue,
        text=text_digest(problem.text),
        schedule=sorted_items(schedule),
        alignment=recipe.alignment,
        parameters=recipe.parameters,
        index_bits=32,  # of coordinates; where addresses are computed, they have 64
        target=TargetKey(TRIPLE, recipe.arch, (), _VECTOR_BYTES),
        opt_level=recipe.opt_level,
        toolchain=sorted_items({**dict(fingerprint.toolchain()), "ptxas": tool.version}),
        passes=fingerprint.pass_digest(),
    )
    text = f'module attributes {{shapejit.target = "cuda:{recipe.arch}"}} {{\n{problem.text}\n}}\n'
    return CubinUnit(key, text, pipeline, recipe.arch, recipe.opt_level, tool)


# Entries.


class CubinEntryError(ValueError):
    """Bytes are not the entry of a kernel for a GPU."""


@dataclass(frozen=True)
class CubinEntry:
    """What an entry holds.

    Attributes:
        name: the variant's, as the lowering pass gave it.
        interface: how the kernel is called.
        resources: what it takes of the GPU.
        cubin: the machine code.
    """

    name: str
    interface: KernelInterface
    resources: Resources
    cubin: bytes

    def encode(self) -> bytes:
        """The entry as bytes; equal entries give equal bytes."""
        fields = {
            "interface": json.loads(self.interface.to_json()),
            "name": self.name,
            "resources": dataclasses.asdict(self.resources),
        }
        text = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
        return b"%s%d\n%s\n%s" % (_MAGIC, len(text), text, self.cubin)

    @staticmethod
    def decode(data: bytes) -> CubinEntry:
        """The inverse of `encode`.

        Raises:
            CubinEntryError: the bytes are no such entry.
        """
        text, cubin = _parts(data)
        try:
            fields = json.loads(text)
            interface = KernelInterface.from_record(fields["interface"])
            resources = Resources(**fields["resources"])
            return CubinEntry(str(fields["name"]), interface, resources, cubin)
        except (ValueError, KeyError, TypeError) as error:
            raise CubinEntryError(f"its description cannot be read: {error}") from error


def _parts(data: bytes) -> tuple[bytes, bytes]:
    """The description of an entry, and its machine code.

    Raises:
        CubinEntryError: the bytes are no such entry.
    """
    start = data.index(b"\n") + 1 if b"\n" in data else 0
    line = data[: start - 1] if start else data
    digits = line.removeprefix(_MAGIC)
    if line == digits or not digits.isdigit():
        raise CubinEntryError("it does not begin as the entry of a kernel for a GPU does")
    end = start + int(digits)
    return data[start:end], data[end + 1 :]


@dataclass(frozen=True)
class CachedCubin:
    """A kernel from the cache, which is kept in memory as long as this object lives.

    Attributes:
        key: its key.
        name: the variant's, as the lowering pass gave it.
        interface: how it is called.
        resources: what it takes of the GPU.
        lease: what keeps its entry findable.
        origin: where it was found: ``memory``, ``disk``, ``built``, or ``shared`` if a build that
            another caller had asked for gave it.
    """

    key: VariantKey
    name: str
    interface: KernelInterface
    resources: Resources
    lease: Lease
    origin: Origin

    @staticmethod
    def of(key: VariantKey, fetched: Fetched) -> CachedCubin:
        """What the cache gave for a key.

        Raises:
            CubinEntryError: it is not the entry of a kernel for a GPU.
        """
        entry = CubinEntry.decode(fetched.data)
        return CachedCubin(
            key, entry.name, entry.interface, entry.resources, fetched.lease, fetched.origin
        )

    @property
    def cubin(self) -> bytes:
        """The machine code, copied from the entry."""
        return _parts(self.lease.data)[1]


__all__ = [
    "CachedCubin",
    "CubinEntry",
    "CubinEntryError",
    "CubinRecipe",
    "CubinUnit",
    "cubin_unit",
    "unit_of",
]
