# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""The compiler, from an imported model to native code: read `STAGES` (for the CPU) or `gpu_stages`
from top to bottom."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlir.ir as ir

from . import ir as sir
from . import logs, passes, precision
from .artefacts import (
    Artefacts,
    CopySpec,
    JoinSpec,
    KernelInfo,
    PackSpec,
    Sizes,
    SymbolSpec,
    WeightSpec,
)
from .cache import Fetched, ObjectCache, object_cache
from .cache.kernels import Recipe, Unit, host_unit, name_kernels, take_found
from .codegen import LLVM_PIPELINE, HostTarget, LLVMError, compile_object, to_llvm_dialect
from .cpu_features import host_target, target_info
from .describe import describe_kernels
from .dump import Dump
from .errors import ErrorId
from .hoisting import NOTHING_HOISTED, BindModule, Hoisting, take_bind_module, take_kept
from .knobs import knobs
from .pass_host import PipelineError, run_pipeline, write_reproducer
from .symbolic import Expr, linearize, map_exprs

if TYPE_CHECKING:
    from .codegen.builder import CubinBuilder
    from .gpu.program_build import BuiltCode
    from .gpu.program_code import GpuCode
    from .importer import ImportedModel
    from .options import CompileOptions
    from .progress import Progress


@dataclass(frozen=True)
class Stage:
    """Passes that run together, and whether the IR after them still carries shapes."""

    name: str
    pipeline: Callable[[HostTarget], str]
    has_shapes: bool = True


def _passes(text: str) -> Callable[[HostTarget], str]:
    return lambda target: text.format(panel=target.panel, vector_bytes=target.vector_bytes)


# One spelling for equal problems, so that later stages match and deduplicate.
_CANONICALIZE_SHAPES = Stage(
    "canonicalize-shapes", _passes("shapejit-canonicalize-shapes,canonicalize,cse")
)
# Reshapes, transposes and slices become index maps of the ops that read them.
_FOLD_VIEWS = Stage("fold-views", _passes("shapejit-fold-views,canonicalize,cse"))
# Pointwise loops move into their readers and into the epilogues of contractions.
_INLINE_POINTWISE = Stage("inline-pointwise", _passes("shapejit-inline-pointwise,canonicalize,cse"))
# Attention reads the keys that its mask can let through: what a cache holds, not all of it.
_LIMIT_ATTENTION = Stage("limit-attention", _passes("shapejit-limit-attention,canonicalize,cse"))
# What depends on weights alone leaves the calls. The part that computes it is compiled apart, by
# the stages from here on.
_HOIST_WEIGHTS = Stage("hoist-weights", _passes("shapejit-hoist-weights"))
# What remains is grouped into kernels; equal ones are built once.
_FORM_KERNELS = Stage("form-kernels", _passes("shapejit-form-kernels"))
# What may run at the same time, in the graphs of a GPU's program, does where it pays.
_PLAN_BRANCHES = Stage("plan-branches", _passes("shapejit-plan-branches"), has_shapes=False)
# Launch results get their place, the launches become the host program.
_PLAN_MEMORY = Stage("plan-memory", _passes("shapejit-plan-memory"), has_shapes=False)
_LOWER_TO_HOST = Stage("lower-to-host", _passes("shapejit-lower-to-host"), has_shapes=False)

#: For the CPU: the middle end and the back end, in order.
STAGES: tuple[Stage, ...] = (
    _CANONICALIZE_SHAPES,
    _FOLD_VIEWS,
    _INLINE_POINTWISE,
    _LIMIT_ATTENTION,
    _HOIST_WEIGHTS,
    # Weights get the layout that the micro-kernel streams.
    Stage("pack-weights", _passes("shapejit-pack-weights{{panel={panel}}},canonicalize,cse")),
    _FORM_KERNELS,
    # Kernels become loops and vector code.
    Stage(
        "lower-to-cpu",
        _passes("shapejit-lower-to-cpu{{vector-bytes={vector_bytes}}}"),
        has_shapes=False,
    ),
    _PLAN_MEMORY,
    _LOWER_TO_HOST,
)


def gpu_stages(
    max_regions: int,
    *,
    tf32: bool = False,
    conv_tf32: bool = False,
    winograd: str = "auto",
    max_rel_error: float = 2e-6,
) -> tuple[Stage, ...]:
    """For a GPU, in order. After `choose-buckets` every variant is built.

    Args:
        max_regions: see `CompileOptions`.
        tf32: whether products of float32 may round their factors to tf32.
        conv_tf32: whether convolutions may.
        winograd, max_rel_error: see `CompileOptions`.
    """
    wish = f"winograd={winograd} max-rel-error={max_rel_error!r}"
    rounded = f"products={str(tf32).lower()} convolutions={str(conv_tf32).lower()}"
    return (
        # There are no attention kernels of float32.
        Stage("decompose-attention", _passes("shapejit-decompose-attention")),
        # What may be rounded is said while products and convolutions can be told apart.
        Stage("round-factors", _passes(f"shapejit-round-factors{{{{{rounded}}}}}")),
        _CANONICALIZE_SHAPES,
        # Convolutions of 3x3 taps take fewer products.
        Stage("lower-winograd", _passes(f"shapejit-lower-winograd-to-nvgpu{{{{{wish}}}}}")),
        # There are no other kernels of convolutions of float32, but for those rounded to tf32.
        Stage(
            "unfold-convolutions",
            _passes("shapejit-unfold-convolutions,canonicalize,cse"),
        ),
        # Nor are there kernels of products of integers.
        Stage("multiply-integers", _passes("shapejit-multiply-integers,canonicalize,cse")),
        _FOLD_VIEWS,
        _INLINE_POINTWISE,
        _LIMIT_ATTENTION,
        # What one kernel computes stays in f32 until it is stored.
        Stage("widen-bodies", _passes("shapejit-widen-bodies,canonicalize,cse")),
        _HOIST_WEIGHTS,
        # Filters get the layout that TMA reads, channels last.
        Stage(
            "pack-weights",
            _passes("shapejit-pack-weights{{panel=1 products=false}},canonicalize,cse"),
        ),
        # Products of one input, such as q, k and v, become one.
        Stage("merge-products", _passes("shapejit-merge-products,canonicalize,cse")),
        _FORM_KERNELS,
        # So do the rows that a kernel's loops pass to each other.
        Stage("widen-kernels", _passes("shapejit-widen-bodies")),
        # Each kernel gets variants for intervals of its sizes, by the cost model alone.
        choose_buckets(max_regions),
        _PLAN_BRANCHES,
        _PLAN_MEMORY,
        _LOWER_TO_HOST,
    )


_CHOOSE_BUCKETS = "choose-buckets"


def choose_buckets(max_regions: int, schedules: Sequence[str] = ()) -> Stage:
    """The stage that decides on variants.

    Args:
        max_regions: see `CompileOptions`.
        schedules: the candidates; all if empty.
    """
    options = f"max-regions={max_regions}"
    if schedules:
        options += f" schedules={','.join(schedules)}"
    return Stage(_CHOOSE_BUCKETS, lambda _target: f"shapejit-choose-buckets{{{options}}}")


_IMPORT_LOG = logs.logger("import")
_PASSES_LOG = logs.logger("passes")
_BUCKET_LOG = logs.logger("bucket")
_CODEGEN_LOG = logs.logger("codegen")


def build(
    imported: ImportedModel,
    options: CompileOptions,
    progress: Progress,
    gpu_target: str | None = None,
) -> Artefacts:
    """Compiles an imported model. No GPU is needed to compile for one.

    Args:
        imported: the model; its module is consumed.
        options: how to compile.
        progress: receives the stages.
        gpu_target: the GPU as modules name it, ``cuda:sm_90a:h200``; None compiles for the CPU.

    Raises:
        ShapeJitError: SJ-INTERNAL-001 if a stage fails, with the command that repeats it; for a GPU
            SJ-TARGET-005 without its assembler, SJ-TARGET-007 if the model has operators that have
            no kernels there.
    """
    compilation = _begin(imported, options, progress)
    return (
        _build_for_cpu(compilation)
        if gpu_target is None
        else _build_for_gpu(compilation, gpu_target)
    )


def build_first(
    imported: ImportedModel, options: CompileOptions, progress: Progress, gpu_target: str
) -> tuple[Artefacts, Callable[[Progress], Artefacts]]:
    """Compiles an imported model for a GPU in two steps: first with one variant of each kernel.

    Args:
        imported, options, progress, gpu_target: as for `build`.

    Returns:
        The program with one variant of each kernel, for all sizes, and what compiles the one that
        `build` would give: with the same inputs, weights and outputs, from the same kernels. It is
        called once, with what is to receive its stages.

    Raises:
        ShapeJitError: as `build`; the second step raises the same.
    """
    compilation = _begin(imported, options, progress)
    stages = _gpu_stages(options)
    formed = _form_gpu_kernels(compilation, gpu_target, stages)
    module = imported.module
    with module.context:
        copied = ir.Module.parse(module.operation.get_asm(enable_debug_info=True))
    later = dataclasses.replace(
        compilation, imported=dataclasses.replace(imported, module=copied), urgent=False
    )
    single = dataclasses.replace(options, max_regions=1)
    first = dataclasses.replace(compilation, options=single)
    artefacts = _build_gpu_kernels(first, gpu_target, _gpu_stages(single), formed)

    def build_rest(progress: Progress) -> Artefacts:
        compilation = dataclasses.replace(later, progress=progress)
        return _build_gpu_kernels(compilation, gpu_target, stages, formed)

    return artefacts, build_rest


def _begin(imported: ImportedModel, options: CompileOptions, progress: Progress) -> _Compilation:
    """A compilation of which no stage has run."""
    logs.configure()
    name = "-".join(parameter.name for parameter in imported.parameters)
    compilation = _Compilation(
        imported,
        options,
        progress,
        target=host_target(options.target_cpu),
        dump=Dump(options.dump_to or knobs.dump_to, name),
        verify=options.verify_each or knobs.verify_each,
    )
    compilation.dump.stage("import", imported.module)
    for step, seconds in imported.seconds.items():
        _IMPORT_LOG.info("%s took %.3f s", step, seconds)
    return compilation


@dataclass(frozen=True)
class _Compilation:
    """What all stages of one compilation share."""

    imported: ImportedModel
    options: CompileOptions
    progress: Progress
    target: HostTarget
    dump: Dump
    verify: bool
    urgent: bool = True  # whether its builds come before those in the background

    def run(self, stage: Stage) -> None:
        """Runs a stage on the model's module."""
        with self.progress.stage(stage.name):
            run_stage(self.imported.module, stage, self.target, verify=self.verify)
        self.dump.stage(stage.name, self.imported.module)
        _PASSES_LOG.info("%s took %.3f s", stage.name, self.progress.seconds[stage.name])

    def cache(self) -> ObjectCache:
        """The cache to use. A dump shows every kernel, under its name in reports, so without."""
        return object_cache() if self.dump.folder is None else ObjectCache(0)

    def artefacts(
        self,
        kernels: Sequence[KernelInfo],
        code: Mapping[str, Fetched],
        weights: Sequence[WeightSpec],
        *,
        packs: Sequence[CopySpec] = (),
        arena: Sequence[Sizes] = (),
        gpu: GpuCode | None = None,
        hoisting: Hoisting = NOTHING_HOISTED,
    ) -> Artefacts:
        """The result of the compilation; see `Artefacts`.

        Args:
            code: the host program's objects by name.
        """
        imported = self.imported
        return Artefacts(
            objects=tuple(fetched.data for fetched in code.values()),
            leases=tuple(fetched.lease for fetched in code.values()),
            target=target_info(self.target),
            symbols=imported.symbols,
            parameters=imported.parameters,
            inputs=imported.inputs,
            weights=tuple(weights),
            packs=tuple(packs),
            outputs=imported.outputs,
            output_tree=imported.output_tree,
            kernels=tuple(kernels),
            constraints=imported.constraints,
            gpu=gpu,
            arena=tuple(arena),
            states=imported.states,
            updates=imported.updates,
            bind=hoisting.bind,
            kept=hoisting.kept,
        )

    def of_bind_part(self, part: BindModule) -> _Compilation:
        """The compilation of what is computed from weights alone."""
        imported = part.imported(self.imported)
        return dataclasses.replace(self, imported=imported, dump=self.dump.part("bind"))


def _hoisted(
    compilation: _Compilation,
    stages: Sequence[Stage],
    build_part: Callable[[_Compilation, Sequence[Stage]], Artefacts],
) -> Hoisting:
    """What the stage that hoists has found, the bind part compiled.

    Args:
        stages: of the program; the bind part goes through those that follow that stage.
        build_part: compiles a program by some stages.
    """
    module = compilation.imported.module
    part, kept = take_bind_module(module), take_kept(module)
    for reason in kept:
        _PASSES_LOG.info("depends on weights alone and stays in calls: %s", reason)
    if part is None:
        return Hoisting(None, kept)
    rest = stages[stages.index(_HOIST_WEIGHTS) + 1 :]
    bind = part.bind_part(build_part(compilation.of_bind_part(part), rest))
    _PASSES_LOG.info("%d tensors are computed from weights alone", len(bind.hoisted))
    return Hoisting(bind, kept)


def _build_for_cpu(compilation: _Compilation, stages: Sequence[Stage] | None = None) -> Artefacts:
    stages = STAGES if stages is None else stages
    imported, dump, progress = compilation.imported, compilation.dump, compilation.progress
    module = imported.module
    kernels: tuple[KernelInfo, ...] = ()
    packs: tuple[CopySpec, ...] = ()
    arena: tuple[Sizes, ...] = ()
    weights = imported.weights
    cache = compilation.cache()
    recipe = Recipe(
        compilation.target, compilation.options.opt_level, _lowering(compilation.target)
    )
    units: dict[str, Unit] = {}
    found: dict[str, Fetched] = {}
    symbols: dict[str, str] = {}  # of the kernels' code, by the kernels' names
    hoisting = NOTHING_HOISTED
    for stage in stages:
        compilation.run(stage)
        if stage is _HOIST_WEIGHTS:
            hoisting = _hoisted(compilation, stages, _build_for_cpu)
        elif stage is _FORM_KERNELS:
            kernels = describe_kernels(module)
            packs = _packs(module)
            weights = _weights_read(module, imported.weights)
            hoisting = hoisting.with_reads(_reads_in_place(module))
            _log_kernels(kernels, packs)
            _log_ranges(kernels, imported.symbols)
            if dump.folder is None:
                with progress.stage("cache"):
                    launched = _launched(module)
                    units = name_kernels(module, recipe)
                    symbols.update(zip(launched, _launched(module), strict=True))
                    found = take_found(module, units, cache)
        elif stage is _PLAN_MEMORY:
            arena = _arena(module)
    code = _generate(module, recipe, cache, units, found, progress, dump)
    dump.index(kernels, imported.symbols)
    kernels = tuple(
        dataclasses.replace(k, origin=code[symbols.get(k.name, k.name)].origin) for k in kernels
    )
    return compilation.artefacts(
        kernels, code, weights, packs=packs, arena=arena, hoisting=hoisting
    )


def _gpu_stages(options: CompileOptions) -> tuple[Stage, ...]:
    """The stages for a GPU as options say."""
    return gpu_stages(
        options.max_regions,
        tf32=options.float32_precision == "tf32",
        conv_tf32=precision.of_convolutions(options) == "tf32",
        winograd=options.winograd,
        max_rel_error=options.max_rel_error,
    )


def _build_for_gpu(
    compilation: _Compilation, gpu_target: str, stages: Sequence[Stage] | None = None
) -> Artefacts:
    stages = stages or _gpu_stages(compilation.options)
    formed = _form_gpu_kernels(compilation, gpu_target, stages)
    return _build_gpu_kernels(compilation, gpu_target, stages, formed)


@dataclass(frozen=True)
class _Formed:
    """What is known of a program for a GPU when its kernels are formed.

    Attributes:
        kernels, weights, packs, hoisting: as `Artefacts` have them.
    """

    kernels: tuple[KernelInfo, ...]
    weights: tuple[WeightSpec, ...]
    packs: tuple[CopySpec, ...]
    hoisting: Hoisting


def _choice(stages: Sequence[Stage]) -> int:
    """The number of the stage that decides on variants."""
    return next(i for i, stage in enumerate(stages) if stage.name == _CHOOSE_BUCKETS)


def _form_gpu_kernels(
    compilation: _Compilation, gpu_target: str, stages: Sequence[Stage]
) -> _Formed:
    """Runs the stages before the one that decides on variants."""
    # What compilations for the CPU do without.
    from .gpu import program_build as gpu

    imported = compilation.imported
    module = imported.module
    gpu.assembler()  # that there is one is known at once
    with module.context:
        module.operation.attributes["shapejit.target"] = ir.StringAttr.get(gpu_target)
    kernels: tuple[KernelInfo, ...] = ()
    packs: tuple[CopySpec, ...] = ()
    weights = imported.weights
    hoisting = NOTHING_HOISTED
    for stage in stages[: _choice(stages)]:
        compilation.run(stage)
        if stage is _HOIST_WEIGHTS:
            hoisting = _hoisted(
                compilation, stages, lambda part, rest: _build_for_gpu(part, gpu_target, rest)
            )
        elif stage is _FORM_KERNELS:
            kernels = describe_kernels(module)
            gpu.check_kernels(module, kernels)
            packs = _packs(module)
            weights = _weights_read(module, imported.weights)
            hoisting = hoisting.with_reads(_reads_in_place(module))
            _log_kernels(kernels, packs)
    return _Formed(kernels, tuple(weights), packs, hoisting)


def _build_gpu_kernels(
    compilation: _Compilation, gpu_target: str, stages: Sequence[Stage], formed: _Formed
) -> Artefacts:
    """Runs the rest of the stages, and makes code of all that they leave."""
    from .gpu import program_build as gpu
    from .passes.buckets.device import device_of_target

    imported, dump, progress = compilation.imported, compilation.dump, compilation.progress
    module, options = imported.module, compilation.options
    arch = device_of_target(gpu_target).arch
    arena: tuple[Sizes, ...] = ()
    built = gpu.BuiltCode({}, {}, {})
    builder = gpu.builder_for(dump)
    for stage in stages[_choice(stages) :]:
        compilation.run(stage)
        if stage.name == _CHOOSE_BUCKETS:
            built = _build_variants(compilation, arch, builder)
        elif stage is _PLAN_MEMORY:
            arena = _arena(module)
    recipe = Recipe(compilation.target, options.opt_level, ",".join(LLVM_PIPELINE))
    head = gpu.head_kernel(module, arch, builder)  # beside the host program
    code = _generate(module, recipe, compilation.cache(), {}, {}, progress, dump)
    found_head = None if head is None else head.result()
    gpu_code = gpu.gpu_code(module, arch, built.cubins, found_head)
    dump.index(formed.kernels, imported.symbols, built.digests)
    artefacts = compilation.artefacts(
        gpu.with_origins(formed.kernels, gpu_code),
        code,
        formed.weights,
        packs=formed.packs,
        arena=arena,
        gpu=gpu_code,
        hoisting=formed.hoisting,
    )
    cubins = [*built.cubins.values(), *([] if found_head is None else [found_head])]
    return dataclasses.replace(
        artefacts,
        target=dataclasses.replace(artefacts.target, kind="cuda", arch=arch),
        leases=(*artefacts.leases, *(cubin.lease for cubin in cubins)),
    )


def _build_variants(compilation: _Compilation, arch: str, builder: CubinBuilder) -> BuiltCode:
    """Builds what the dispatches name; chooses again without schedules that cannot be built."""
    from .gpu import program_build as gpu

    refused: dict[str, str] = {}
    while True:
        with compilation.progress.stage("gpu-codegen") as running:
            module = compilation.imported.module
            built = gpu.build_variants(
                module, arch, builder, running.advance, urgent=compilation.urgent
            )
        _log_variants(built, compilation.progress.seconds["gpu-codegen"])
        if not built.refused:
            return built
        for schedule, reason in built.refused.items():
            _BUCKET_LOG.warning("%s cannot be built and is not used: %s", schedule, reason)
        refused |= built.refused
        rest = gpu.candidates(refused)
        compilation.run(choose_buckets(compilation.options.max_regions, rest))


def run_stage(module: Any, stage: Stage, target: HostTarget, *, verify: bool = False) -> None:
    """Runs one stage on a module, in place.

    Args:
        verify: re-derive every shape afterwards, where the IR still carries them.

    Raises:
        ShapeJitError: SJ-INTERNAL-001 names the stage, what the pass said and the command that
            repeats the failure.
    """
    pipeline = stage.pipeline(target)
    if verify and stage.has_shapes:
        pipeline += ",shapejit-verify-shapes"
    passes.register_in(pipeline)
    try:
        run_pipeline(module, pipeline, stage=stage.name)
    except PipelineError as error:
        raise ErrorId.SJ_INTERNAL_001.error(
            stage=stage.name,
            reason=error.diagnostics.strip().partition("\n")[0],
            reproduction=error.command,
        ) from error


# ---------------------------------------------------------------------------
# Weights
# ---------------------------------------------------------------------------


def _weight_arguments(module: Any) -> list[Any]:
    """The function's arguments that are weights, in order."""
    function = sir.functions(module)[0]
    arguments = sir.body(function).arguments
    return [a for i, a in enumerate(arguments) if sir.argument_kind(function, i) == "weight"]


def _packs(module: Any) -> tuple[CopySpec, ...]:
    """The copies of weights, in the order in which the host program expects them."""
    numbers = {argument: i for i, argument in enumerate(_weight_arguments(module))}
    found: list[CopySpec] = []
    for op in sir.operations(sir.body(sir.functions(module)[0])):
        if op.name == "shapejit.pack":
            found.append(_pack(op, numbers[op.operands[0]]))
        elif op.name == "shapejit.join":
            dim = ir.IntegerAttr(op.attributes["dim"]).value
            found.append(JoinSpec(tuple(numbers[value] for value in op.operands), dim))
    return tuple(found)


def _pack(op: Any, weight: int) -> PackSpec:
    """The record of a ``shapejit.pack``."""
    dim, panel = (ir.IntegerAttr(op.attributes[name]).value for name in ("dim", "panel"))
    if "space" not in op.attributes:
        return PackSpec(weight, dim, panel)
    sizes = [_number(size) for size in sir.attr_sizes(op.attributes["space"])]
    place = linearize(map_exprs(op.attributes["map"].value), sir.shape_of(op.operands[0]))
    start = _number(place.substitute(dims=dict.fromkeys(range(len(sizes)), 0)))
    # A dim of size one has no stride that could be read off.
    strides = [
        _number(place.substitute(dims={i: int(i == dim) for i in range(len(sizes))})) - start
        if size != 1
        else 0
        for dim, size in enumerate(sizes)
    ]
    return PackSpec(weight, dim, panel, tuple(sizes), tuple(strides), start)


def _number(size: Expr) -> int:
    assert size.constant is not None, "the sizes of a weight are constant"
    return size.constant


def _weights_read(module: Any, weights: Sequence[WeightSpec]) -> tuple[WeightSpec, ...]:
    """The weights, with note of those of which only copies are read."""
    return tuple(
        dataclasses.replace(spec, read_in_place=in_place)
        for spec, in_place in zip(weights, _reads_in_place(module), strict=False)
    )


def _reads_in_place(module: Any) -> list[bool]:
    """Whether launches read the weights, and after them the hoisted tensors, themselves."""
    return [
        any(user.name not in sir.COPIES for user, _ in sir.users(argument))
        for argument in _weight_arguments(module)
    ]


def _arena(module: Any) -> tuple[Sizes, ...]:
    """The slots of working memory of a module after the memory plan."""
    from .passes.plan_memory import arena_slots

    return tuple(arena_slots(sir.functions(module)[0]))


# ---------------------------------------------------------------------------
# Code generation
# ---------------------------------------------------------------------------


def _launched(module: Any) -> list[str]:
    """The kernel of every launch, in program order."""
    return [
        ir.FlatSymbolRefAttr(op.attributes["kernel"]).value
        for op in sir.walk(module.operation)
        if op.name == "shapejit.launch"
    ]


def _lowering(target: HostTarget) -> str:
    """The pipelines, with their options, that a kernel passes on its way to LLVM."""
    stage = next(stage for stage in STAGES if stage.name == "lower-to-cpu")
    return ",".join((stage.pipeline(target), *LLVM_PIPELINE))


def _generate(
    module: Any,
    recipe: Recipe,
    cache: ObjectCache,
    units: dict[str, Unit],
    found: dict[str, Fetched],
    progress: Progress,
    dump: Dump,
) -> dict[str, Fetched]:
    """Code of every kernel and of the host program by name: found, or built side by side.

    Args:
        units: the kernels by name; a part that is none of them is the host program.
        found: the code of kernels that were not lowered, since the cache has it.
    """
    parts = {
        ir.StringAttr(op.attributes["sym_name"]).value: op
        for op in sir.operations(sir.module_block(module))
        if op.name == "builtin.module"
    }
    threads = min(knobs.compile_threads(), len(parts))
    with (
        progress.stage("codegen", steps=len(parts)) as stage,
        ThreadPoolExecutor(threads, thread_name_prefix="shapejit-codegen") as pool,
    ):

        def compile_part(name: str) -> bytes:
            start = time.perf_counter()
            try:
                data = compile_object(parts[name], recipe.target, recipe.opt_level)
                seconds = time.perf_counter() - start
                dump.code(parts[name], data, recipe.target, recipe.opt_level)
            except LLVMError as error:
                path = write_reproducer(str(parts[name]), "codegen")
                raise ErrorId.SJ_INTERNAL_002.error(
                    kernel=name, reason=str(error), reproduction=path
                ) from error
            _CODEGEN_LOG.debug("%s: %d bytes in %.3f s", name, len(data), seconds)
            return data

        def fetch(unit: Unit, name: str) -> Fetched:
            build = functools.partial(compile_part, name)
            fetched = cache.get_or_build(unit.key, build, note=unit.text)
            stage.advance()
            return fetched

        code = dict(found)
        stage.advance(len(code))
        futures = {}
        for name, part in parts.items():
            if name in found:
                continue
            unit = units.get(name) or host_unit(part, recipe)
            # The kernels were looked for before they were lowered.
            hit = None if name in units else cache.get(unit.key)
            if hit is not None:
                code[name] = hit
                stage.advance()
                continue
            # MLIR's passes hold the interpreter lock, so they run here, one part after the
            # other, while LLVM compiles the parts before in the pool.
            to_llvm_dialect(part)
            futures[name] = pool.submit(fetch, unit, name)
        code.update({name: future.result() for name, future in futures.items()})
    _CODEGEN_LOG.info(
        "%d objects, %d bytes, %d of them built, by %d threads in %.3f s",
        len(code),
        sum(len(fetched.data) for fetched in code.values()),
        sum(fetched.origin == "built" for fetched in code.values()),
        threads,
        progress.seconds["codegen"],
    )
    return code


# ---------------------------------------------------------------------------
# Logging
# ---------------------------------------------------------------------------


def _log_kernels(kernels: Sequence[KernelInfo], packs: Sequence[CopySpec]) -> None:
    launches = sum(len(kernel.launches) for kernel in kernels)
    _PASSES_LOG.info(
        "%d kernels, %d launches, %d packed weights", len(kernels), launches, len(packs)
    )
    for kernel in kernels:
        _PASSES_LOG.debug(
            "%s: a %s of %s, launched %d times: %s",
            kernel.name,
            kernel.kind,
            ", ".join(kernel.fuses),
            len(kernel.launches),
            kernel.why,
        )


def _log_ranges(kernels: Sequence[KernelInfo], symbols: Sequence[SymbolSpec]) -> None:
    ranges = [f"{s.name} = {s.min}..{'' if s.max is None else s.max}" for s in symbols]
    _BUCKET_LOG.info(
        "one variant of each of %d kernels, for all of %s",
        len(kernels),
        ", ".join(ranges) or "the static sizes",
    )


def _log_variants(built: BuiltCode, seconds: float) -> None:
    origins = Counter(cubin.origin for cubin in built.cubins.values())
    _BUCKET_LOG.info("%d variants of %d kernels", len(built.cubins), len(built.digests))
    _CODEGEN_LOG.info(
        "%d variants in %.3f s: %s",
        len(built.cubins),
        seconds,
        ", ".join(f"{count} {origin}" for origin, count in sorted(origins.items())) or "none",
    )
