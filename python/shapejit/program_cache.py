# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Whole programs in the cache: an exported program that was compiled before is not compiled again.

The key is made of the exported program's text (`shapejit.importer.fingerprint`), which has no
values of weights, of the options, and of the tools and sources that compile it. An entry holds what
a saved program holds, but for the weights: those of the exported program at hand are taken.

A compilation that dumps or verifies its stages has to run them, so it asks no cache.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor
from torch.export import ExportedProgram

from shapejit import logs
from shapejit.artefacts import Artefacts
from shapejit.cache import fingerprint, object_cache
from shapejit.cache.key import (
    PROGRAM,
    Scalar,
    TargetKey,
    VariantKey,
    sorted_items,
    split_features,
    text_digest,
)
from shapejit.cache.objects import Origin
from shapejit.cache.program_entry import ProgramEntryError, decode, encode
from shapejit.cpu_features import host_target
from shapejit.gpu.program_code import GpuCode
from shapejit.importer.fingerprint import (
    LIBRARIES,
    NoTextError,
    program_text,
    weight_tensor,
)
from shapejit.importer.registry import foreign_rules
from shapejit.knobs import knobs

if TYPE_CHECKING:
    from shapejit.importer import CapturedModel
    from shapejit.options import CompileOptions

_LOG = logs.logger("cache")


@dataclasses.dataclass(frozen=True)
class ProgramUnit:
    """What becomes one program.

    Attributes:
        key: its key.
        text: of the exported program, which the key covers.
        program: the exported program.
    """

    key: VariantKey
    text: str
    program: ExportedProgram


@dataclasses.dataclass(frozen=True)
class FoundProgram:
    """A program, compiled now or before.

    Attributes:
        artefacts: all of it but the weights.
        weights: of the exported program, in the order of `artefacts.tensors`.
        origin: "built", or found in the cache's "memory" or on its "disk"; "shared" with another
            compilation at the same time.
    """

    artefacts: Artefacts
    weights: Sequence[Tensor]
    origin: Origin


def program_unit(
    captured: CapturedModel, options: CompileOptions, gpu_target: str | None
) -> ProgramUnit | None:
    """The unit of a captured program; None if it is to be compiled in any case.

    Args:
        captured: the program with the user's dims.
        options: how it is compiled.
        gpu_target: the GPU, ``cuda:sm_90a:h200``; None for the CPU.

    Raises:
        TargetError: there is no assembler for the GPU's code (SJ-TARGET-005).
    """
    stages_run = options.dump_to or knobs.dump_to or options.verify_each or knobs.verify_each
    # Others' rules may change under an unchanged name; those for torch's operators, where they are
    # not used as well, by what torch decomposes.
    if stages_run or foreign_rules(LIBRARIES):
        return None
    try:
        text = program_text(captured)
    except NoTextError as error:
        _LOG.info("the program is compiled in any case: it has %s", error)
        return None
    return ProgramUnit(_key(text, captured, options, gpu_target), text, captured.program)


def find_or_compile(
    unit: ProgramUnit, compile_program: Callable[[], tuple[Artefacts, Sequence[Tensor]]]
) -> FoundProgram:
    """The program of a unit: of the cache, or compiled and put there.

    Threads that ask for one program at the same time compile it once.

    Args:
        unit: the program.
        compile_program: compiles it: the artefacts, and the weights in their order.

    Raises:
        Exception: what `compile_program` raises.
    """
    made: list[FoundProgram] = []

    def build() -> bytes:
        artefacts, weights = compile_program()
        made.append(FoundProgram(artefacts, weights, "built"))
        if not _finds(unit.program, artefacts, weights):
            raise _NotKept("it has constants that the exported program has not")
        try:
            return encode(artefacts)
        except ProgramEntryError as error:
            raise _NotKept(str(error)) from error

    try:
        fetched = object_cache().get_or_build(unit.key, build, note=unit.text)
        if made:
            return made[0]
        artefacts = _with_origin(decode(fetched.data), fetched.origin)
        weights = _weights(unit.program, artefacts)
        return FoundProgram(artefacts, weights, fetched.origin)
    except _NotKept as error:
        _LOG.info("the program is not kept: %s", error)
    except ProgramEntryError as error:
        _LOG.warning("the program's entry %s is not used: %s", unit.key.digest[:16], error)
    if made:
        return made[0]
    return FoundProgram(*compile_program(), "built")


def find(unit: ProgramUnit) -> FoundProgram | None:
    """The program of a unit, if the cache has it."""
    fetched = object_cache().get(unit.key)
    if fetched is None:
        return None
    try:
        artefacts = _with_origin(decode(fetched.data), fetched.origin)
        return FoundProgram(artefacts, _weights(unit.program, artefacts), fetched.origin)
    except ProgramEntryError as error:
        _LOG.warning("the program's entry %s is not used: %s", unit.key.digest[:16], error)
        return None


def keep(unit: ProgramUnit, artefacts: Artefacts, weights: Sequence[Tensor]) -> None:
    """Puts a program into the cache, unless it cannot be an entry."""
    if not _finds(unit.program, artefacts, weights):
        _LOG.info("the program is not kept: it has constants that the exported program has not")
        return
    try:
        data = encode(artefacts)
    except ProgramEntryError as error:
        _LOG.info("the program is not kept: %s", error)
        return
    object_cache().get_or_build(unit.key, lambda: data, note=unit.text)


class _NotKept(Exception):  # noqa: N818 - no error: it leaves `ObjectCache.get_or_build`
    """A program that was compiled and cannot be an entry."""


def _key(
    text: str, captured: CapturedModel, options: CompileOptions, gpu_target: str | None
) -> VariantKey:
    target = host_target(options.target_cpu)
    toolchain = dict(fingerprint.import_toolchain())
    schedule: dict[str, Scalar] = {"options": options.hash(), "gpu": gpu_target or ""}
    if gpu_target is not None:
        from shapejit.gpu.assembler import assembler

        toolchain["ptxas"] = assembler().version
    values = [leaf.value for leaf in captured.leaves]
    dtypes = [str(v.dtype).removeprefix("torch.") for v in values if isinstance(v, Tensor)]
    return VariantKey(
        kind=PROGRAM,
        dtypes=tuple(dtypes),
        layouts=(),
        math_mode="ieee",
        epilogue="",
        text=text_digest(text),
        schedule=sorted_items(schedule),
        alignment=1,
        parameters="by-value",
        index_bits=64,
        target=TargetKey(
            target.triple, target.cpu, split_features(target.features), target.vector_bytes
        ),
        opt_level=options.opt_level,
        toolchain=tuple(sorted(toolchain.items())),
        passes=fingerprint.program_digest(),
    )


def _finds(program: ExportedProgram, artefacts: Artefacts, weights: Sequence[Tensor]) -> bool:
    """Whether the exported program has the weights that an import of it gave, by their names."""
    return all(
        (found := weight_tensor(program, spec.name)) is not None
        and (found is tensor or found.data_ptr() == tensor.data_ptr())
        for spec, tensor in zip(artefacts.tensors, weights, strict=True)
    )


def _weights(program: ExportedProgram, artefacts: Artefacts) -> list[Tensor]:
    tensors = [weight_tensor(program, spec.name) for spec in artefacts.tensors]
    found = [tensor for tensor in tensors if tensor is not None]
    if len(found) != len(tensors):
        raise ProgramEntryError("it names weights that the exported program has not")
    return found


def _with_origin(artefacts: Artefacts, origin: str) -> Artefacts:
    """The artefacts with note that all their code was found."""
    kernels = tuple(dataclasses.replace(k, origin=origin) for k in artefacts.kernels)
    gpu: GpuCode | None = artefacts.gpu
    if gpu is not None:
        variants = tuple(dataclasses.replace(v, origin=origin) for v in gpu.variants)
        gpu = dataclasses.replace(gpu, variants=variants)
    bind = artefacts.bind
    if bind is not None:
        bind = dataclasses.replace(bind, program=_with_origin(bind.program, origin))
    return dataclasses.replace(artefacts, kernels=kernels, gpu=gpu, bind=bind)


__all__ = ["FoundProgram", "ProgramUnit", "find", "find_or_compile", "keep", "program_unit"]
