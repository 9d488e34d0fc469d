# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The two calls of the package: `compile` a model, `load` a saved program."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from shapejit import precision
from shapejit.archive import load
from shapejit.cpu_features import host_target
from shapejit.errors import ErrorId, join_names, quote
from shapejit.execution import execution_for
from shapejit.knobs import warn_of_unknown_variables
from shapejit.options import CompileOptions
from shapejit.program import Program
from shapejit.progress import Progress

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from shapejit.artefacts import Artefacts
    from shapejit.importer.model import ImportedModel
    from shapejit.program_cache import FoundProgram, ProgramUnit

__all__ = ["compile", "load"]

_IMPORT = "import"
_TARGETS = ("auto", "cpu", "cuda")


def compile(
    model_or_path: nn.Module | ExportedProgram | str | os.PathLike[str],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    target: str = "auto",
    options: CompileOptions = CompileOptions(),  # noqa: B008 - frozen
    **option_overrides: Any,
) -> Program:
    """Compile a model once, for every size that its inputs may have. ::

        program = shapejit.compile(
            model.eval(), (ids, mask),
            dynamic_shapes={"ids": {0: batch, 1: seq}, "mask": {0: batch, 1: seq}},
        )
        with torch.no_grad():
            program(other_ids, other_mask)

    Args:
        model_or_path: a module in eval mode, an exported program, or the path of a saved program
            (which is then loaded; see `load`).
        args, kwargs: an example call of a module; what they hold but tensors stays constant.
        dynamic_shapes: which sizes vary, as in torch.export; a dim may also be a triple
            ``(min, opt, max)``. Sizes not named stay as in the example.
        target: "auto" follows the device of weights and example inputs; nothing is ever moved. For
            "cuda" products have factors of float16, bfloat16 or float32, for which see
            `CompileOptions.float32_precision`.
        options: how to compile.
        **option_overrides: single fields of `options`, by name.

    Raises:
        ShapeJitError: the model, its example call or an option cannot be compiled as asked.
    """
    warn_of_unknown_variables()
    options = options.override(**option_overrides)
    if isinstance(model_or_path, (str, os.PathLike)):
        if args or kwargs or dynamic_shapes is not None:
            raise ErrorId.SJ_ARG_008.error(
                kind="a saved program",
                rule="takes no example call and no dynamic_shapes",
                remedy="Leave them out, or pass the model instead of the path",
            )
        return load(model_or_path)
    # Loading a program, above, does without torch.export.
    from torch.export import ExportedProgram

    if not isinstance(model_or_path, (nn.Module, ExportedProgram)):
        raise ErrorId.SJ_ARG_007.error(kind=_kind_of(model_or_path))
    if isinstance(model_or_path, Program):
        raise ErrorId.SJ_ARG_007.error(kind="a program that is compiled already")
    if args is None and kwargs is None and isinstance(model_or_path, nn.Module):
        raise ErrorId.SJ_ARG_008.error(
            kind="a module",
            rule="needs an example call",
            remedy="Pass args=(...) and, if the model takes keywords, kwargs={...}",
        )
    device = _device(target, _named_tensors(model_or_path, args, kwargs))
    options = precision.resolved_options(options)
    host_target(options.target_cpu)
    return _compile(model_or_path, args, kwargs, dynamic_shapes, options, device)


def _compile(
    model: nn.Module | ExportedProgram,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    options: CompileOptions,
    device: torch.device,
) -> Program:
    # They bring torch.export's machinery, which loading a program does not need.
    from shapejit import importer
    from shapejit.program_cache import FoundProgram, find_or_compile, program_unit

    gpu_target = _gpu_target(device) if device.type == "cuda" else None
    with Progress() as progress:
        with progress.stage("export"):
            captured = importer.capture(model, args, kwargs, dynamic_shapes)

        def imported() -> ImportedModel:
            with progress.stage(_IMPORT):
                made = importer.import_captured(captured)
            del progress.seconds[_IMPORT]  # its parts are listed
            progress.seconds.update(made.seconds)
            made.seconds = {"export": progress.seconds["export"], **made.seconds}
            return made

        def compile_captured() -> tuple[Artefacts, Sequence[Tensor]]:
            # A program that the cache has does without the passes and torch-mlir.
            from shapejit import pipeline

            model = imported()
            return pipeline.build(model, options, progress, gpu_target), model.tensors

        with progress.stage("program-cache"):
            unit = program_unit(captured, options, gpu_target)
        if unit is None:
            found = FoundProgram(*compile_captured(), "built")
        elif gpu_target is not None and options.background and not options.deterministic:
            return _compile_first(unit, imported, options, gpu_target, progress, device)
        else:
            found = find_or_compile(unit, compile_captured)
    return _program(found, options, progress, device)


def _compile_first(
    unit: ProgramUnit,
    imported: Callable[[], ImportedModel],
    options: CompileOptions,
    gpu_target: str,
    progress: Progress,
    device: torch.device,
) -> Program:
    """The program of a unit: of the cache, or one that gets most of its code in the background."""
    from shapejit import background, program_cache

    found = program_cache.find(unit)
    if found is not None:
        return _program(found, options, progress, device)
    from shapejit import pipeline

    model = imported()
    artefacts, build_rest = pipeline.build_first(model, options, progress, gpu_target)
    first = program_cache.FoundProgram(artefacts, model.tensors, "built")
    program = _program(first, options, progress, device)

    def rest(running: Progress) -> Artefacts:
        start = time.perf_counter()
        made = build_rest(running)
        seconds = {"in the background": time.perf_counter() - start}
        return dataclasses.replace(made, compile_seconds=seconds)

    def keep(made: Artefacts) -> None:
        program_cache.keep(unit, made, model.tensors)

    program.complete_with(background.complete(program, rest, keep))
    return program


def _program(
    found: FoundProgram, options: CompileOptions, progress: Progress, device: torch.device
) -> Program:
    artefacts = dataclasses.replace(found.artefacts, compile_seconds=dict(progress.seconds))
    return Program(
        artefacts,
        found.weights,
        free_original=options.free_original,
        execution=execution_for(artefacts, device),
        origin=found.origin,
    )


def _gpu_target(device: torch.device) -> str:
    """The GPU as modules of the compiler name it: ``cuda:sm_90a``, with its name if it is known.

    Raises:
        TargetError: there is no such GPU, or there are no kernels for it (SJ-TARGET-006).
    """
    from shapejit.gpu.program_run import current_device, usable_gpu
    from shapejit.passes.buckets.device import DEVICES

    archs = tuple(dict.fromkeys(known.arch for known in DEVICES))
    number = current_device(archs) if device.index is None else device.index
    gpu = usable_gpu(number, archs)
    names = [known.target for known in DEVICES if known.arch == gpu.arch]
    words = gpu.name.lower().split()
    return next((name for name in names if name.rpartition(":")[2] in words), f"cuda:{gpu.arch}")


def _kind_of(value: Any) -> str:
    name = type(value).__qualname__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _device(target: str, tensors: Iterator[tuple[str, Tensor]]) -> torch.device:
    """The device of all tensors, which `target` has to fit; of a model without any, the target.

    Raises:
        DeviceError: weights and inputs are on several devices (SJ-DEVICE-002).
        TargetError: unknown or unavailable target, or not where the tensors are.
    """
    if target not in _TARGETS:
        raise ErrorId.SJ_TARGET_002.error(target=target, targets=join_names(_TARGETS, "or"))
    devices: dict[torch.device, str] = {}
    for name, tensor in tensors:
        devices.setdefault(tensor.device, name)
    if len(devices) > 1:
        listed = ", ".join(f"{device} ({name})" for device, name in devices.items())
        raise ErrorId.SJ_DEVICE_002.error(devices=listed)
    device = next(iter(devices), torch.device("cpu" if target == "auto" else target))
    if target not in ("auto", device.type):
        raise ErrorId.SJ_TARGET_003.error(target=target, device=device)
    if device.type not in _TARGETS:
        raise ErrorId.SJ_TARGET_001.error(
            target=device.type,
            missing="there is no back end for that kind of device",
            remedy="Move model and inputs to the CPU or to an NVIDIA GPU",
        )
    return device


def _named_tensors(
    model: nn.Module | ExportedProgram,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
) -> Iterator[tuple[str, Tensor]]:
    """Weights and example inputs, each with a name for messages."""
    if not isinstance(model, nn.Module):
        for name, value in (*model.state_dict.items(), *model.constants.items()):
            if isinstance(value, Tensor):
                yield f"weight {quote(name)}", value
        return
    for name, weight in (*model.named_parameters(), *model.named_buffers()):
        yield f"weight {quote(name)}", weight
    for position, value in enumerate(pytree.tree_leaves((args, kwargs))):
        if isinstance(value, Tensor):
            yield f"example input {position}", value
