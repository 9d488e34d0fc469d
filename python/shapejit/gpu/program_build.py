# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Between the passes of a compilation for a GPU: its kernels are checked, and then built.

Every variant that the dispatches name is found in the cache or built, all side by side. An empty
``gpu.module`` with its interface then stands for it in the IR, which is what the host program is
made from::

    shapejit.dispatch @gemm0 by .. [#shapejit.bucket<[1], [64], "small_m_64x32x64_s7_w1", ".."> ..]
    gpu.module @gemm0__small_m_64x32x64_s7_w1 attributes {shapejit.interface = ".."} {}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import mlir.ir as ir

from shapejit import ir as sir
from shapejit.artefacts import KernelInfo
from shapejit.cache.cubins import CachedCubin, CubinRecipe, CubinUnit, cubin_unit
from shapejit.cache.objects import ObjectCache
from shapejit.codegen.builder import CubinBuilder, cubin_builder
from shapejit.codegen.cuda_tools import Tool
from shapejit.codegen.ptxas import AssemblyError, PtxasError
from shapejit.dump import Dump
from shapejit.errors import ErrorId
from shapejit.gpu.assembler import TARGET, assembler
from shapejit.gpu.interface import Im2colMap
from shapejit.gpu.program_code import GpuBucket, GpuCode, GpuKernel, GpuVariant
from shapejit.gpu.program_graphs import Branches, GraphCode, Region, WordedLaunch
from shapejit.pass_host import PipelineError
from shapejit.passes.branches.launches import sections_in
from shapejit.passes.hoisting.split import is_bind_part
from shapejit.passes.host.dispatches import Dispatch, dispatches, interfaces
from shapejit.passes.host.graphs import (
    CALL_WORDS,
    LAUNCHES,
    ORDERS,
    REGIONS,
    SAMPLES,
    UNITS,
    WAITS,
    WORDS,
)
from shapejit.passes.host.program import KERNELS
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.families import MODELLED, Family, family_of
from shapejit.passes.nvgpu.head import MAP_WORDS, head_unit
from shapejit.passes.nvgpu.lowering import INTERFACE
from shapejit.passes.nvgpu.schedule import (
    ALL_CANDIDATES,
    GENERIC,
    SIMT_GENERIC,
    UNALIGNED,
    GemmSchedule,
)
from shapejit.passes.nvgpu.target import MAP_ALIGNMENT
from shapejit.passes.plan_memory import source_of

#: Launches up to which a program queues them one by one: for so few a graph saves nothing.
MOST_QUEUED = 2


def builder_for(dump: Dump) -> CubinBuilder:
    """The builder of a compilation: the process's, or one that dumps and does without the cache."""
    if dump.folder is None:
        return cubin_builder()
    cache = ObjectCache(0)
    return CubinBuilder(lambda: cache, dump=dump)


# What there are kernels for -----------------------------------------------------------------------


def check_kernels(module: Any, kernels: Sequence[KernelInfo]) -> None:
    """Checks that every kernel of a module can be lowered to a GPU.

    Args:
        module: the module after ``shapejit-form-kernels``.
        kernels: its kernels, described.

    Raises:
        TargetError: some cannot; names all their operators, with source lines (SJ-TARGET-007).
    """
    ops = sir.kernels(module)
    reasons = {kernel.name: _why_not(ops[kernel.name], kernel) for kernel in kernels}
    rows = [
        f"  {source}: {reasons[kernel.name]}"
        for kernel in kernels
        if reasons[kernel.name] is not None
        for source in _sources(kernel)
    ]
    if rows:
        count = f"{len(rows)} operator{'s' if len(rows) > 1 else ''}"
        table = "\n".join(rows)
        raise ErrorId.SJ_TARGET_007.error(count=count, target=TARGET, table=table)


def _why_not(kernel: Any, info: KernelInfo) -> str | None:
    """Why a kernel has no lowering to a GPU; None if it has one."""
    family = family_of(kernel)
    if family is None:
        article = "an" if info.kind[0] in "aeiou" else "a"
        return f"it is left as {article} {info.kind} ({info.why})"
    try:
        with kernel.context, kernel.location:
            family.check(kernel)
    except LoweringError as error:
        return f"its {_KERNELS_OF[family.name]} {error}"
    return None


# What a family's errors are about, in messages.
_KERNELS_OF = {
    "gemm": "product",
    "conv": "convolution",
    "depthwise": "convolution",
    "attention": "attention",
    "loops": "kernel",
}


def _sources(kernel: KernelInfo) -> tuple[str, ...]:
    """The operators of all launches, with their source lines."""
    sources = dict.fromkeys(source for launch in kernel.launches for source in launch.sources)
    return tuple(sources) or (f"kernel {kernel.name}",)


# Building -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Request:
    """A variant to build.

    Attributes:
        name: of its module.
        family: of its kernel.
        schedule: how it computes.
        unit: what becomes its code.
    """

    name: str
    family: Family
    schedule: str
    unit: CubinUnit


@dataclass(frozen=True)
class BuiltCode:
    """What `build_variants` gives.

    Attributes:
        cubins: the variants by the names of their modules.
        digests: of their keys, by the names of the kernels that they are of.
        refused: schedules that cannot be built, with the reasons.
    """

    cubins: Mapping[str, CachedCubin]
    digests: Mapping[str, Sequence[str]]
    refused: Mapping[str, str]


def build_variants(
    module: Any,
    arch: str,
    builder: CubinBuilder,
    advance: Callable[[], None],
    *,
    urgent: bool = True,
) -> BuiltCode:
    """Finds or builds every variant that a module's dispatches name, and notes their interfaces.

    A schedule that a kernel does not fit, or for which the assembler does not give code as it has
    to be, is no reason to give up: others compute the same. Interfaces are noted if none is
    refused.

    Args:
        module: the module after ``shapejit-choose-buckets``.
        arch: ``sm_90a``.
        builder: gives the code.
        advance: called whenever another variant is there.
        urgent: whether they come before builds in the background.

    Raises:
        ShapeJitError: there is no assembler (SJ-TARGET-005), or a variant that has no alternative
            cannot be built (SJ-INTERNAL-002).
    """
    requests = _requests(module, arch, assembler())
    # Not one after the other: the builder's threads work on all of them.
    futures = [
        (request, builder.build_async(request.unit, urgent=urgent))
        for each in requests.values()
        for request in each
    ]
    cubins: dict[str, CachedCubin] = {}
    refused: dict[str, str] = {}
    for request, future in futures:
        try:
            cubins[request.name] = future.result()
        except (AssemblyError, PipelineError) as error:
            refused[request.schedule] = _refusal(request, error)
        except PtxasError as error:
            reason = str(error).rstrip(".")
            raise ErrorId.SJ_TARGET_005.error(target=TARGET, reason=reason) from error
        advance()
    if not refused:
        _note_interfaces(module, requests, cubins)
    digests = {
        kernel: tuple(request.unit.key.digest for request in each)
        for kernel, each in requests.items()
    }
    return BuiltCode(cubins, digests, refused)


def candidates(refused: Iterable[str]) -> list[str]:
    """The schedules to choose from, without those that cannot be built."""
    names = map(str, ALL_CANDIDATES)
    without = set(refused)
    return [name for name in names if name not in without]


def _refusal(request: _Request, error: AssemblyError | PipelineError) -> str:
    """Why a variant cannot be built.

    Raises:
        InternalError: nothing else computes what it does (SJ-INTERNAL-002).
    """
    if isinstance(error, AssemblyError):
        reason, reproduction = error.reason, f"the file {error.ptx}"
    else:
        reason, reproduction = error.diagnostics, error.command
    reason = reason.strip().partition("\n")[0].rstrip(".")
    # The choice among a family's own variants is that family's, so it has no other one.
    if request.family not in MODELLED or _is_last_resort(request.schedule):
        raise ErrorId.SJ_INTERNAL_002.error(
            kernel=request.name, reason=reason, reproduction=reproduction
        ) from error
    return reason


def _is_last_resort(schedule: str) -> bool:
    """Whether a schedule is one that others fall back on."""
    made = GemmSchedule.parse(schedule)
    return made in (GENERIC, SIMT_GENERIC) or made.family == UNALIGNED.family


def is_graph_form(module: Any) -> bool:
    """Whether a module's program runs under constant graphs, with its kernels in block form.

    What is computed from weights alone runs once: a graph for it would never be used again.
    """
    return not is_bind_part(module) and len(_launches(module)) > MOST_QUEUED


def _requests(module: Any, arch: str, tool: Tool) -> dict[str, list[_Request]]:
    graph = is_graph_form(module)
    kernels = sir.kernels(module)
    requests: dict[str, list[_Request]] = {}
    for name, dispatch in dispatches(module).items():
        kernel, family = kernels[name], family_of(kernels[name])
        assert family is not None, "kernels were checked"
        constant = (
            graph and family in MODELLED and _has_constant_weights(module, name, kernel, family)
        )
        requests[name] = []
        for schedule in dispatch.variants:
            recipe = _recipe(family, schedule, arch)
            if graph:
                recipe = dataclasses.replace(
                    recipe, parameters="block", programmatic=True, constant_weights=constant
                )
            unit = cubin_unit(kernel, recipe, tool)
            requests[name].append(_Request(dispatch.module_name(schedule), family, schedule, unit))
    return requests


def _recipe(family: Family, schedule: str, arch: str) -> CubinRecipe:
    unaligned = family in MODELLED and GemmSchedule.parse(schedule).takes_any_address
    return CubinRecipe(schedule, arch, alignment=1 if unaligned else MAP_ALIGNMENT)


def _launches(module: Any) -> list[Any]:
    return [
        op
        for function in sir.functions(module)
        for op in sir.operations(sir.body(function))
        if op.name == "shapejit.launch"
    ]


def _has_constant_weights(module: Any, name: str, kernel: Any, family: Family) -> bool:
    """Whether no launch of a product has weights that a launch before it computed."""
    operands = family.weights(kernel)
    read = (
        sir.defining_op(source_of(launch.operands[number]))
        for launch in _launches(module)
        if ir.FlatSymbolRefAttr(launch.attributes["kernel"]).value == name
        for number in operands
    )
    return all(op is None or op.name in sir.COPIES for op in read)


def _note_interfaces(
    module: Any, requests: Mapping[str, Sequence[_Request]], cubins: Mapping[str, CachedCubin]
) -> None:
    """Puts empty modules behind each kernel, which stand for its variants."""
    kernels = sir.kernels(module)
    for name, each in requests.items():
        with kernels[name].context, kernels[name].location:
            for request in each:
                interface = cubins[request.name].interface
                op = ir.Operation.create(
                    "gpu.module",
                    attributes={
                        "sym_name": ir.StringAttr.get(request.name),
                        INTERFACE: ir.StringAttr.get(interface.to_json()),
                    },
                    regions=1,
                    ip=ir.InsertionPoint.after(kernels[name]),
                )
                op.regions[0].blocks.append()


# The result ---------------------------------------------------------------------------------------


def gpu_code(
    module: Any, arch: str, cubins: Mapping[str, CachedCubin], head: CachedCubin | None
) -> GpuCode:
    """The part of a program that runs on the GPU.

    Args:
        module: the module after ``shapejit-lower-to-host``.
        arch: ``sm_90a``.
        cubins: the variants by the names of their modules.
        head: the head kernel of a program under constant graphs.
    """
    host = _host_module(module)
    table = [ir.StringAttr(name).value for name in host.attributes[KERNELS]]
    found = dispatches(module)
    numbers = {name: number for number, name in enumerate(table)}
    schedules = {d.module_name(v): v for d in found.values() for v in d.variants}
    variants = tuple(
        GpuVariant(name, schedules[name], cubins[name].lease.data, cubins[name].origin)
        for name in table
    )
    launched = [d for d in found.values() if d.module_name(d.variants[0]) in numbers]
    kernels = tuple(_kernel(each, numbers) for each in launched)
    return GpuCode(arch, variants, kernels, None if head is None else _graph_code(host, head))


def head_kernel(module: Any, arch: str, builder: CubinBuilder) -> Future[CachedCubin] | None:
    """The head kernel of a program under constant graphs, on its way; None for other programs.

    Args:
        module: the module after ``shapejit-lower-to-host``.
        arch: ``sm_90a``.
        builder: gives the code.

    Raises:
        TargetError: there is none for so many words (SJ-TARGET-008).
    """
    attributes = _host_module(module).attributes
    if CALL_WORDS not in attributes:
        return None
    words = ir.IntegerAttr(attributes[CALL_WORDS]).value + _encoded_words(module)
    try:
        unit = head_unit(words, arch, assembler())
    except ValueError as error:
        reason = str(error).partition(". ")[0].rstrip(".")
        raise ErrorId.SJ_TARGET_008.error(target=TARGET, reason=reason) from error
    return builder.build_async(unit, urgent=True)


def _encoded_words(module: Any) -> int:
    """The words of the maps in im2col mode of a region, in the largest one: calls encode them."""
    attributes, found = _host_module(module).attributes, interfaces(module)
    maps = [
        sum(isinstance(p, Im2colMap) for p in found[ir.StringAttr(name).value].parameters)
        for name in attributes[KERNELS]
    ]
    counts: list[int] = [sum(maps[number] for number in each) for each in attributes[REGIONS]]
    return MAP_WORDS * max(counts)


def _host_module(module: Any) -> Any:
    [host] = (op for op in sir.operations(sir.module_block(module)) if op.name == "builtin.module")
    return host


def _graph_code(host: Any, head: CachedCubin) -> GraphCode:
    """What the attributes of a host module say."""
    attributes = host.attributes
    samples = {region: tuple(values) for region, *values in map(list, attributes[SAMPLES])}
    return GraphCode(
        words=tuple(ir.StringAttr(word).value for word in attributes[WORDS]),
        call_words=ir.IntegerAttr(attributes[CALL_WORDS]).value,
        launches=tuple(
            WordedLaunch(
                ir.FlatSymbolRefAttr(kernel).value,
                tuple(operands),
                tuple(map(tuple, values)),
            )
            for kernel, operands, values in attributes[LAUNCHES]
        ),
        regions=tuple(
            Region(tuple(chosen), tuple(units), samples.get(number), order)
            for number, (chosen, units, order) in enumerate(
                zip(attributes[REGIONS], attributes[UNITS], _orders(attributes), strict=True)
            )
        ),
        order=tuple(samples),
        head=head.lease.data,
        orders=tuple(tuple(map(tuple, order)) for order in attributes[WAITS])
        if WAITS in attributes
        else (),
        branches=tuple(
            Branches(each.launches.start, each.launches.stop - 1, each.regions, each.reason)
            for each in sections_in(host)
        ),
    )


def _orders(attributes: Any) -> list[int | None]:
    """The order of each region; None where its launches run one after the other."""
    if ORDERS not in attributes:
        return [None] * len(attributes[REGIONS])
    return [None if order < 0 else order for order in attributes[ORDERS]]


def _kernel(dispatch: Dispatch, numbers: Mapping[str, int]) -> GpuKernel:
    buckets = tuple(
        GpuBucket(b.lower, b.upper, numbers[dispatch.module_name(b.variant)], b.reason)
        for b in dispatch.buckets
    )
    return GpuKernel(dispatch.kernel, dispatch.axes, buckets)


def with_origins(kernels: Sequence[KernelInfo], code: GpuCode) -> tuple[KernelInfo, ...]:
    """The kernels, with note of where their code came from: the dearest of their variants."""
    order = ("memory", "disk", "shared", "built")
    result = []
    for kernel in kernels:
        origins = [code.variants[number].origin for number in code.kernel(kernel.name).variants]
        result.append(dataclasses.replace(kernel, origin=max(origins, key=order.index)))
    return tuple(result)


__all__ = [
    "BuiltCode",
    "assembler",
    "build_variants",
    "builder_for",
    "candidates",
    "check_kernels",
    "gpu_code",
    "head_kernel",
    "is_graph_form",
    "with_origins",
]
