# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""The compiler, from an imported model to native code: read `STAGES` from top to bottom."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlir.ir as ir

from . import ir as sir
from . import logs, passes
from .artefacts import Artefacts, KernelInfo, PackSpec, SymbolSpec, WeightSpec
from .cache import Fetched, ObjectCache, object_cache
from .cache.kernels import Recipe, Unit, host_unit, name_kernels, take_found
from .codegen import LLVM_PIPELINE, HostTarget, LLVMError, compile_object, to_llvm_dialect
from .cpu_features import host_target, target_info
from .describe import describe_kernels
from .dump import Dump
from .errors import ErrorId
from .knobs import knobs
from .pass_host import PipelineError, run_pipeline, write_reproducer

if TYPE_CHECKING:
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


#: The middle end and the CPU back end, in order.
STAGES: tuple[Stage, ...] = (
    # One spelling for equal problems, so that later stages match and deduplicate.
    Stage("canonicalize-shapes", _passes("shapejit-canonicalize-shapes,canonicalize,cse")),
    # Reshapes, transposes and slices become index maps of the ops that read them.
    Stage("fold-views", _passes("shapejit-fold-views,canonicalize,cse")),
    # Pointwise loops move into their readers and into the epilogues of contractions.
    Stage("inline-pointwise", _passes("shapejit-inline-pointwise,canonicalize,cse")),
    # Weights get the layout that the micro-kernel streams.
    Stage("pack-weights", _passes("shapejit-pack-weights{{panel={panel}}},canonicalize,cse")),
    # What remains is grouped into kernels; equal ones are built once.
    Stage("form-kernels", _passes("shapejit-form-kernels")),
    # Kernels become loops and vector code.
    Stage(
        "lower-to-cpu",
        _passes("shapejit-lower-to-cpu{{vector-bytes={vector_bytes}}}"),
        has_shapes=False,
    ),
    # Launch results get their place, the launches become the host program.
    Stage("plan-memory", _passes("shapejit-plan-memory"), has_shapes=False),
    Stage("lower-to-host", _passes("shapejit-lower-to-host"), has_shapes=False),
)

_IMPORT_LOG = logs.logger("import")
_PASSES_LOG = logs.logger("passes")
_BUCKET_LOG = logs.logger("bucket")
_CODEGEN_LOG = logs.logger("codegen")


def build(imported: ImportedModel, options: CompileOptions, progress: Progress) -> Artefacts:
    """Compiles an imported model.

    Args:
        imported: the model; its module is consumed.
        options: how to compile.
        progress: receives the stages.

    Raises:
        ShapeJitError: SJ-INTERNAL-001 if a stage fails, with the command that repeats it.
    """
    passes.register_all()
    target = host_target(options.target_cpu)
    logs.configure()
    dump = Dump(options.dump_to or knobs.dump_to, "-".join(p.name for p in imported.parameters))
    verify = options.verify_each or knobs.verify_each
    module = imported.module
    dump.stage("import", module)
    for step, seconds in imported.seconds.items():
        _IMPORT_LOG.info("%s took %.3f s", step, seconds)
    kernels: tuple[KernelInfo, ...] = ()
    packs: tuple[PackSpec, ...] = ()
    weights = imported.weights
    # A dump shows every kernel, under the name that it has in reports: it does without the cache.
    cache = object_cache() if dump.folder is None else ObjectCache(0)
    recipe = Recipe(target, options.opt_level, _lowering(target))
    units: dict[str, Unit] = {}
    found: dict[str, Fetched] = {}
    symbols: dict[str, str] = {}  # of the kernels' code, by the kernels' names
    for stage in STAGES:
        with progress.stage(stage.name):
            run_stage(module, stage, target, verify=verify)
        dump.stage(stage.name, module)
        _PASSES_LOG.info("%s took %.3f s", stage.name, progress.seconds[stage.name])
        if stage.name == "form-kernels":
            kernels = describe_kernels(module)
            packs = _packs(module)
            weights = _weights_read(module, imported.weights)
            _log_kernels(kernels, packs, imported.symbols)
            if dump.folder is None:
                with progress.stage("cache"):
                    launched = _launched(module)
                    units = name_kernels(module, recipe)
                    symbols.update(zip(launched, _launched(module), strict=True))
                    found = take_found(module, units, cache)
    code = _generate(module, recipe, cache, units, found, progress, dump)
    dump.index(kernels, imported.symbols)
    kernels = tuple(
        dataclasses.replace(k, origin=code[symbols.get(k.name, k.name)].origin) for k in kernels
    )
    return Artefacts(
        objects=tuple(fetched.data for fetched in code.values()),
        leases=tuple(fetched.lease for fetched in code.values()),
        target=target_info(target),
        symbols=imported.symbols,
        parameters=imported.parameters,
        inputs=imported.inputs,
        weights=weights,
        packs=packs,
        outputs=imported.outputs,
        output_tree=imported.output_tree,
        kernels=kernels,
        constraints=imported.constraints,
    )


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


def _packs(module: Any) -> tuple[PackSpec, ...]:
    """The packed weights, in the order in which the host program expects them."""
    numbers = {argument: i for i, argument in enumerate(_weight_arguments(module))}
    found = []
    for op in sir.operations(sir.body(sir.functions(module)[0])):
        if op.name == "shapejit.pack":
            dim, panel = (ir.IntegerAttr(op.attributes[name]).value for name in ("dim", "panel"))
            found.append(PackSpec(numbers[op.operands[0]], dim, panel))
    return tuple(found)


def _weights_read(module: Any, weights: Sequence[WeightSpec]) -> tuple[WeightSpec, ...]:
    """The weights, with note of those of which only packed copies are read."""
    specs = []
    for spec, argument in zip(weights, _weight_arguments(module), strict=True):
        in_place = any(user.name != "shapejit.pack" for user, _ in sir.users(argument))
        specs.append(
            WeightSpec(spec.name, spec.dtype, spec.shape, spec.constant, read_in_place=in_place)
        )
    return tuple(specs)


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


def _log_kernels(
    kernels: Sequence[KernelInfo], packs: Sequence[PackSpec], symbols: Sequence[SymbolSpec]
) -> None:
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
    ranges = [f"{s.name} = {s.min}..{'' if s.max is None else s.max}" for s in symbols]
    _BUCKET_LOG.info(
        "one variant of each of %d kernels, for all of %s",
        len(kernels),
        ", ".join(ranges) or "the static sizes",
    )
