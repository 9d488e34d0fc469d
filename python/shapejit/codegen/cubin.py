# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""From the IR of a kernel to machine code for a GPU.

A build lowers one kernel in a context of its own, has LLVM translate it to PTX, and has ``ptxas``
assemble that. `shapejit.codegen.builder` has builds done in the background, each once.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import mlir.ir as ir

from shapejit import logs, passes
from shapejit.cache.cubins import CubinEntry, CubinUnit
from shapejit.codegen.ptx import DeviceCode, private_context, translate
from shapejit.codegen.ptxas import Cubin, Resources, assemble
from shapejit.pass_host import run_pipeline

if TYPE_CHECKING:
    from shapejit.dump import Dump

_LOG = logs.logger("codegen")


class BuildError(RuntimeError):
    """A kernel cannot be built, since what lowered it did not leave one kernel."""


def build_cubin(unit: CubinUnit, dump: Dump | None = None) -> CubinEntry:
    """Builds a kernel, in this thread. Safe to call from several threads.

    Args:
        unit: what to build.
        dump: receives the IR, PTX, SASS and machine code.

    Raises:
        PipelineError: a pass refused the kernel; holds the command that repeats it.
        AssemblyError: ``ptxas`` refused its PTX.
        BuildError: the passes left no kernel, or several.
    """
    start = time.perf_counter()
    lowered, code = _lower(unit, keep_ir=dump is not None)
    middle = time.perf_counter()
    cubin = assemble(code.ptx, unit.arch, tool=unit.tool, opt_level=unit.opt_level)
    end = time.perf_counter()
    entry = CubinEntry(code.name, code.interface, _resources(cubin, code), cubin.data)
    _LOG.debug(
        "%s: %d bytes, %d registers, PTX in %.3f s, ptxas in %.3f s",
        code.name,
        len(cubin.data),
        entry.resources.registers,
        middle - start,
        end - middle,
    )
    for warning in cubin.warnings:
        _LOG.warning("%s: %s", code.name, warning)
    if dump is not None:
        dump.device_code(unit.key.digest, entry, lowered, code.ptx)
    return entry


def _lower(unit: CubinUnit, *, keep_ir: bool) -> tuple[str, DeviceCode]:
    """The IR of the kernel on the GPU dialects (empty unless it is to be kept), and its PTX."""
    from shapejit.passes.nvgpu import pipeline

    passes.register_in(unit.pipeline)
    with private_context():
        with _emission:
            module = ir.Module.parse(unit.text)
            run_pipeline(module, unit.pipeline, stage="lower-to-nvgpu")
            lowered = str(module) if keep_ir else ""
        run_pipeline(module, pipeline.NVVM_PIPELINE, stage="lower-to-nvvm")
        pipeline.finish(module)
        codes = translate(module)
    if len(codes) != 1:
        names = ", ".join(code.name for code in codes) or "none"
        raise BuildError(
            f"{unit.pipeline} must leave one gpu.module of {unit.name}, but left {names}"
        )
    return lowered, codes[0]


# Emission is Python code, so threads take turns at it anyway. One kernel after the other, the first
# ones are with LLVM and ptxas while the next are emitted; all at once, all would be late.
_emission = threading.Lock()


def _after_fork_in_child() -> None:
    """The thread that held the lock is not there any more."""
    global _emission
    _emission = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _resources(cubin: Cubin, code: DeviceCode) -> Resources:
    found = cubin.resources.get(code.interface.entry)
    if found is None:
        raise BuildError(f"ptxas did not report on kernel {code.interface.entry!r} of {code.name}")
    return found


__all__ = ["BuildError", "build_cubin"]
