# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What a program tells of itself: `Program.stats()` and `Program.explain()`.

Both are plain data (`to_dict`), and print as tables.
"""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from shapejit.artefacts import Artefacts, HoistedSpec, KernelInfo, SymbolSpec
from shapejit.diagnosis import named
from shapejit.report_graphs import GraphStats, RegionRow, region_rows
from shapejit.report_memory import MemoryRow, memory_rows, total_bytes
from shapejit.symbolic import Expr

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from shapejit.gpu.program_code import GpuCode, GpuKernel

_WIDTH = 110


class Report:
    """Base of the reports: data that prints as tables."""

    def to_dict(self) -> dict[str, Any]:
        """The report as dicts, lists, strings and numbers."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    def __rich__(self) -> RenderableType:
        from rich.console import Group

        return Group(*self.tables())

    def __str__(self) -> str:
        from rich.console import Console

        out = io.StringIO()
        Console(file=out, width=_WIDTH, color_system=None).print(self)
        return "\n".join(line.rstrip() for line in out.getvalue().rstrip().split("\n"))

    def tables(self) -> list[Table]:
        """The tables to print."""
        raise AssertionError("every report overrides this")


@dataclass(frozen=True, repr=False)
class Stats(Report):
    """Counters of a program since it was made.

    Attributes:
        calls: calls that ran.
        compiles: compilations in this process: 1, or 0 for a loaded program.
        origin: where the program came from: built, found as a whole in the cache's memory or on
            its disk, shared with another compilation at the same time, or a saved file.
        distinct_shapes: different combinations of sizes seen, counted up to `MAX_SHAPES`.
        input_copies: inputs that were copied because they were not contiguous, or not aligned.
        arena_bytes: working memory held now, idle and in use.
        weight_bytes: memory of the weights themselves, as the model holds them.
        packed_bytes: memory of packed and contiguous copies of weights, on top.
        hoisted_bytes: memory of what was computed from weights alone, on top.
        bind_runs: how often that was computed: once, and again after a weight has changed.
        replacements: how often code that was built in the background took the place of the code
            before; see `CompileOptions.background`.
        is_complete: whether there is none on its way.
        code_bytes: machine code in the memory of the GPU.
        compile_seconds: wall time by stage of the compilation that made the program.
        graphs: of a program under constant graphs, what these are and did; else None.
    """

    calls: int
    compiles: int
    origin: str
    distinct_shapes: int
    input_copies: int
    arena_bytes: int
    weight_bytes: int
    packed_bytes: int
    code_bytes: int
    compile_seconds: Mapping[str, float]
    graphs: GraphStats | None = None
    hoisted_bytes: int = 0
    bind_runs: int = 0
    replacements: int = 0
    is_complete: bool = True

    def tables(self) -> list[Table]:
        counters = _table("Calls", "", "value")
        counts = ["calls", "compiles", "origin", "distinct_shapes", "input_copies", "bind_runs"]
        counts += ["replacements"] if self.replacements or not self.is_complete else []
        for name in counts:
            counters.add_row(name.replace("_", " "), str(getattr(self, name)))
        if not self.is_complete:
            counters.add_row("code on its way", "yes")
        sizes = ("arena_bytes", "weight_bytes", "packed_bytes", "hoisted_bytes", "code_bytes")
        for name in sizes:
            counters.add_row(name.replace("_bytes", ""), bytes_text(getattr(self, name)))
        tables = [counters]
        if self.graphs is not None:
            tables.append(_graphs_table(self.graphs))
        if not self.compile_seconds:
            return tables
        stages = _table("Compilation", "stage", "seconds")
        for stage, seconds in self.compile_seconds.items():
            stages.add_row(stage, f"{seconds:.3f}")
        stages.add_row("total", f"{sum(self.compile_seconds.values()):.3f}", style="bold")
        return [*tables, stages]


@dataclass(frozen=True)
class SymbolRow:
    """A dim of the program and its value for the inputs at hand; `max` None is unbounded."""

    name: str
    value: int
    min: int
    max: int | None
    opt: int | None
    divisor: int
    note: str


@dataclass(frozen=True)
class LaunchRow:
    """Launches of a kernel with the same iteration space."""

    sizes: tuple[int, ...]
    count: int
    sources: tuple[str, ...]


@dataclass(frozen=True)
class BucketRow:
    """Sizes that one variant of a kernel serves on a GPU.

    Attributes:
        lower, upper: the first and the last size on each axis; None is no bound.
        schedule: how the variant computes.
        launches: how many launches of the call it serves.
        registers: 32-bit registers of a thread.
        spill_bytes: of the instructions that store registers for which there was no room.
        reason: why it serves these sizes.
    """

    lower: tuple[int, ...]
    upper: tuple[int | None, ...]
    schedule: str
    launches: int
    registers: int
    spill_bytes: int
    reason: str


@dataclass(frozen=True)
class KernelRow:
    """A kernel: what it fuses, why, where its code came from, how often and how large it runs.

    On a GPU `buckets` has the variants by sizes, and `axes` says which sizes these are.
    """

    name: str
    kind: str
    why: str
    fuses: tuple[str, ...]
    origin: str
    launches: int
    at: tuple[LaunchRow, ...]
    axes: tuple[str, ...] = ()
    buckets: tuple[BucketRow, ...] = ()


@dataclass(frozen=True)
class HoistedRow:
    """A tensor that is computed from weights alone, once when a program is bound to them.

    Attributes:
        name: of the tensor.
        sizes: its sizes.
        dtype: torch's name of its dtype.
        bytes: memory that it takes; 0 if only packed or joined copies of it are kept.
        weights: names of the weights that it is computed from.
        sources: the operators that it is the result of, with their source lines.
    """

    name: str
    sizes: tuple[int, ...]
    dtype: str
    bytes: int
    weights: tuple[str, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Explanation(Report):
    """What the program does for one set of inputs.

    Attributes:
        symbols: the dims with their values.
        kernels: the kernels, in the order of their first launch.
        launches: kernel launches of one call.
        arena_bytes: working memory that the call needs.
        packed_bytes: memory of copies of weights.
        outputs: sizes of the output tensors.
        regions: of a program under constant graphs, those that calls are expected in.
        origin: where the program came from; see `Stats`.
        memory: what the call needs, and what the program holds beside.
        hoisted: what calls do without, as it is computed when weights are bound.
        kept: operators that depend on weights alone and run in calls all the same, with reasons.
    """

    symbols: tuple[SymbolRow, ...]
    kernels: tuple[KernelRow, ...]
    launches: int
    arena_bytes: int
    packed_bytes: int
    outputs: tuple[tuple[int, ...], ...]
    regions: tuple[RegionRow, ...] = ()
    origin: str = dataclasses.field(default="built", compare=False)
    memory: tuple[MemoryRow, ...] = ()
    hoisted: tuple[HoistedRow, ...] = ()
    kept: tuple[str, ...] = ()

    def tables(self) -> list[Table]:
        symbols = _table("Symbols", "name", "value", "range", "note")
        for row in self.symbols:
            bounds = f"{row.min}..{'' if row.max is None else row.max}"
            symbols.add_row(row.name, str(row.value), bounds, row.note)
        title = f"{len(self.kernels)} kernels, {self.launches} launches, {_ORIGINS[self.origin]}"
        kernels = _table(title, "kernel", "kind", "launches", "sizes", "fuses", "why", "code")
        for kernel in self.kernels:
            sizes = [f"{_sizes_text(row.sizes)} x{row.count}" for row in kernel.at]
            fuses = ", ".join(kernel.fuses)
            kernels.add_row(
                kernel.name,
                kernel.kind,
                str(kernel.launches),
                "\n".join(sizes),
                fuses,
                kernel.why,
                kernel.origin,
            )
        memory = _table("Memory", "what", "bytes are", "size")
        for piece in self.memory:
            memory.add_row(piece.what, piece.formula, bytes_text(piece.bytes))
        memory.add_row("all of it", "", bytes_text(total_bytes(self.memory)), style="bold")
        dispatches = [_dispatch_table(kernel) for kernel in self.kernels if kernel.buckets]
        regions = [_regions_table(self)] if self.regions else []
        return [symbols, kernels, *_hoisted_tables(self), *dispatches, *regions, memory]


_ORIGINS = {
    "built": "compiled",
    "memory": "all from the cache's memory",
    "disk": "all from the cache on disk",
    "shared": "shared with another compilation",
    "file": "from a file",
}

MAX_SHAPES = 65536
"""Most combinations of sizes that are told apart, so that counting takes bounded memory."""


def explain(
    artefacts: Artefacts,
    values: Sequence[int],
    plan: Sequence[int],
    packed_bytes: int,
    origin: str = "built",
    held: Mapping[str, int] | None = None,
) -> Explanation:
    """The report for symbols' `values` (derived ones included) and what shapejit_plan gave.

    Args:
        held: bytes that the program holds whatever the sizes, by what they are for.
    """
    kernels = tuple(_kernel_row(artefacts, kernel, values) for kernel in artefacts.kernels)
    return Explanation(
        symbols=tuple(
            _symbol_row(spec, value, artefacts.symbols)
            for spec, value in zip(artefacts.symbols, values, strict=True)
        ),
        kernels=kernels,
        launches=sum(kernel.launches for kernel in kernels),
        arena_bytes=plan[0],
        packed_bytes=packed_bytes,
        outputs=tuple(split_sizes(artefacts, plan)),
        regions=region_rows(artefacts, values),
        origin=origin,
        memory=memory_rows(artefacts, values, plan, held or {}),
        hoisted=tuple(_hoisted_row(artefacts, spec) for spec in artefacts.hoisted),
        kept=artefacts.kept,
    )


def split_sizes(artefacts: Artefacts, plan: Sequence[int]) -> list[tuple[int, ...]]:
    """The sizes of each tensor output from what shapejit_plan gave."""
    sizes = []
    start = 1
    for rank in artefacts.output_ranks:
        sizes.append(tuple(plan[start : start + rank]))
        start += rank
    return sizes


def _symbol_row(spec: SymbolSpec, value: int, symbols: Sequence[SymbolSpec]) -> SymbolRow:
    notes = []
    if spec.equal_to is not None:
        notes.append(f"always equal to {symbols[spec.equal_to].name}")
    if spec.derived is not None:
        notes.append(f"{spec.derived.kind} of other sizes")
    if spec.divisor != 1:
        notes.append(f"multiple of {spec.divisor}")
    if spec.opt is not None:
        notes.append(f"most often {spec.opt}")
    return SymbolRow(spec.name, value, spec.min, spec.max, spec.opt, spec.divisor, ", ".join(notes))


def _hoisted_row(artefacts: Artefacts, spec: HoistedSpec) -> HoistedRow:
    width: int = getattr(torch, spec.dtype).itemsize
    return HoistedRow(
        spec.name,
        spec.shape,
        spec.dtype,
        math.prod(spec.shape) * width if spec.read_in_place else 0,
        tuple(artefacts.weights[number].name for number in spec.weights),
        spec.sources,
    )


def _kernel_row(artefacts: Artefacts, kernel: KernelInfo, values: Sequence[int]) -> KernelRow:
    sources_at: dict[tuple[int, ...], list[str]] = {}
    launches: dict[tuple[int, ...], int] = {}
    bound = [[size.evaluate(symbols=values) for size in each.symbols] for each in kernel.launches]
    for launch, local in zip(kernel.launches, bound, strict=True):
        sizes = tuple(size.evaluate(symbols=local) for size in kernel.sizes)
        sources_at.setdefault(sizes, []).extend(launch.sources)
        launches[sizes] = launches.get(sizes, 0) + 1
    at = tuple(
        LaunchRow(sizes, launches[sizes], tuple(dict.fromkeys(sources)))
        for sizes, sources in sources_at.items()
    )
    axes: tuple[str, ...] = ()
    buckets: tuple[BucketRow, ...] = ()
    if artefacts.gpu is not None:
        dispatch = artefacts.gpu.kernel(kernel.name)
        axes = tuple(_axis_text(artefacts, kernel, axis) for axis in dispatch.axes)
        buckets = _bucket_rows(artefacts.gpu, dispatch, bound)
    return KernelRow(
        kernel.name,
        kernel.kind,
        kernel.why,
        kernel.fuses,
        kernel.origin,
        len(kernel.launches),
        at,
        axes,
        buckets,
    )


def _axis_text(artefacts: Artefacts, kernel: KernelInfo, axis: Expr) -> str:
    """An axis of a kernel in the user's names of the dims: ``batch*seq``."""
    bound = dict.fromkeys(
        axis.substitute(symbols=dict(enumerate(launch.symbols))) for launch in kernel.launches
    )
    return " or ".join(named(size, artefacts.symbols) for size in bound)


def _bucket_rows(
    code: GpuCode, dispatch: GpuKernel, launches: Sequence[Sequence[int]]
) -> tuple[BucketRow, ...]:
    """The buckets of a kernel for launches with these values of its symbols."""
    used = [dispatch.bucket(symbols) for symbols in launches]
    rows = []
    for bucket in dispatch.buckets:
        variant = code.variants[bucket.variant]
        resources = variant.entry.resources
        rows.append(
            BucketRow(
                bucket.lower,
                bucket.upper,
                variant.schedule,
                sum(each is bucket for each in used),
                resources.registers,
                resources.spill_store_bytes,
                bucket.reason,
            )
        )
    return tuple(rows)


def _hoisted_tables(explanation: Explanation) -> list[Table]:
    """What is computed from weights alone, once and in every call; none if nothing is."""
    tables = []
    if explanation.hoisted:
        once = _table("Computed once, when weights are bound", "what", "sizes", "of", "by", "size")
        for row in explanation.hoisted:
            once.add_row(
                row.name,
                f"{_sizes_text(row.sizes)} {row.dtype}",
                ", ".join(row.weights) or "constants",
                ", ".join(row.sources),
                bytes_text(row.bytes) if row.bytes else "as copies",
            )
        tables.append(once)
    if explanation.kept:
        always = _table("Of weights alone, and yet in every call: results are too large", "what")
        for text in explanation.kept:
            always.add_row(text)
        tables.append(always)
    return tables


def _dispatch_table(kernel: KernelRow) -> Table:
    """The variants of a kernel for a GPU by sizes."""
    title = f"Variants of {kernel.name}" + (f" by {', '.join(kernel.axes)}" if kernel.axes else "")
    table = _table(title, "sizes", "schedule", "launches", "registers", "spilled", "why")
    for row in kernel.buckets:
        intervals = (
            f"{low}..{'' if high is None else high}"
            for low, high in zip(row.lower, row.upper, strict=True)
        )
        table.add_row(
            ", ".join(intervals) or "all",
            row.schedule,
            str(row.launches),
            str(row.registers),
            bytes_text(row.spill_bytes),
            row.reason,
        )
    return table


def _graphs_table(stats: GraphStats) -> Table:
    table = _table("Constant graphs", "", "value")
    for name, value in dataclasses.asdict(stats).items():
        is_bytes = name.endswith("_bytes")
        label = name.removesuffix("_bytes").replace("_", " ")
        table.add_row(label, bytes_text(value) if is_bytes else str(value))
    return table


def _regions_table(explanation: Explanation) -> Table:
    """The regions, and in what they differ."""
    side_by_side = any(row.branches for row in explanation.regions)
    columns = ("region", "at", "with", *(("side by side",) if side_by_side else ()))
    table = _table("Regions, with one graph each", *columns)
    for row in explanation.regions:
        sizes = zip(explanation.symbols, row.example or (), strict=False)
        example = ", ".join(f"{symbol.name} {value}" for symbol, value in sizes)
        here = " (this call)" if row.here else ""
        cells = [f"{row.number}{here}", example or "any", "\n".join(row.variants)]
        table.add_row(*cells, *(["\n".join(row.branches)] if side_by_side else []))
    return table


def bytes_text(count: int) -> str:
    """``512 B``, ``1.5 KiB``, ``86.6 MiB``."""
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def _sizes_text(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes)) if sizes else "scalar"


def _table(title: str, *columns: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        right = column in ("value", "seconds", "launches", "size", "registers", "spilled")
        # Names that are looked for elsewhere stay whole.
        whole = column in ("schedule", "with")
        table.add_column(column, justify="right" if right else "left", no_wrap=whole)
    return table
