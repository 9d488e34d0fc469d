# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Host code: a module of upstream dialects to the LLVM dialect, to an object file.

Objects are position independent, need no C++ run time, and call nothing but libm and libc
(`memcpy`, `memset`), so that they can be stored and loaded by another process through `JitLibrary`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_void_p
from dataclasses import dataclass
from typing import Any

from mlir.dialects import llvm as llvm_dialect

from shapejit.codegen import _libllvm
from shapejit.codegen._libllvm import LLVMError, check, library, memory_buffer, take_message
from shapejit.codegen.jit import JitLibrary
from shapejit.codegen.target import HostTarget
from shapejit.pass_host import run_pipeline

# The order matters: polynomials before libm, which takes what is left; memrefs before control flow,
# since a lowered alloca_scope must not hold blocks. No arith-expand: it turns maximumf into chains
# of compares and selects that are not vectorised.
LLVM_PIPELINE: tuple[str, ...] = (
    "shapejit-math-polynomials",
    "canonicalize",
    "cse",
    "expand-strided-metadata",
    "lower-affine",
    "convert-vector-to-llvm",
    "convert-math-to-llvm",
    "convert-math-to-libm",
    "finalize-memref-to-llvm",
    "convert-scf-to-cf",
    "convert-index-to-llvm",
    "convert-arith-to-llvm",
    "convert-func-to-llvm",
    "convert-cf-to-llvm",
    "convert-openmp-to-llvm",
    "reconcile-unrealized-casts",
)
"""Passes that turn arith, math, memref, vector, scf and func into the LLVM dialect."""


def to_llvm_dialect(module: Any) -> None:
    """Lowers a module of upstream dialects to the LLVM dialect, in place, without the GIL.

    Args:
        module: an ``ir.Module`` (or its operation).

    Raises:
        shapejit.pass_host.PipelineError: a pass failed.
    """
    run_pipeline(module, ",".join(LLVM_PIPELINE), stage="to-llvm", verify=False)


def compile_object(module: Any, target: HostTarget, opt_level: int = 2) -> bytes:
    """Compiles a module of the LLVM dialect to an ELF object.

    Safe to call from several threads, also on modules of one context; LLVM's part of the work
    runs without the GIL.

    Args:
        module: an ``ir.Module`` (or its operation) that holds the LLVM dialect only.
        target: the CPU to compile for.
        opt_level: 0 to 3, as in ``-O2``.

    Raises:
        LLVMError: LLVM refused the module; the text says why.
        ValueError: ``opt_level`` is out of range.
    """
    if opt_level not in _libllvm.CODEGEN_LEVELS:
        raise ValueError(f"compile_object requires an opt_level of 0 to 3, got {opt_level}")
    text = llvm_dialect.translate_module_to_llvmir(module.operation)
    return compile_llvm_ir(text, target, opt_level)


def compile_llvm_ir(text: str, target: HostTarget, opt_level: int = 2) -> bytes:
    """`compile_object` for a module given as LLVM IR text."""
    with _optimized(text, target, opt_level) as (module, machine):
        return _emit(module, machine, _libllvm.OBJECT_FILE)


@dataclass(frozen=True)
class Listing:
    """What an object file is made from, for readers.

    Attributes:
        optimized: LLVM IR after LLVM's passes.
        assembly: what the object file holds, for an assembler.
    """

    optimized: str
    assembly: str


def list_llvm_ir(text: str, target: HostTarget, opt_level: int = 2) -> Listing:
    """What `compile_llvm_ir` makes an object file from, for equal arguments.

    The module is compiled afresh: emitting code changes it, so that a second file made from the
    same one would differ.

    Raises:
        LLVMError: LLVM refused the module; the text says why.
    """
    with _optimized(text, target, opt_level) as (module, machine):
        optimized = take_message(library().LLVMPrintModuleToString(module))
        assembly = _emit(module, machine, _libllvm.ASSEMBLY_FILE)
        return Listing(optimized, assembly.decode(errors="replace"))


@contextmanager
def _optimized(text: str, target: HostTarget, opt_level: int) -> Iterator[tuple[int, int]]:
    """The module of a text after LLVM's passes, and the target machine.

    What LLVM reports as an error until the end of the block is raised there.
    """
    lib = library()
    with _llvm_context() as (context, errors), _target_machine(target, opt_level) as machine:
        with _parsed(context, text) as module:
            layout = lib.LLVMCreateTargetDataLayout(machine)
            lib.LLVMSetModuleDataLayout(module, layout)
            lib.LLVMDisposeTargetData(layout)
            lib.LLVMSetTarget(module, target.triple.encode())
            _optimize(module, machine, opt_level)
            yield module, machine
        if errors:
            raise LLVMError("\n".join(errors))


@contextmanager
def _llvm_context() -> Iterator[tuple[int, list[str]]]:
    """A new LLVMContext and the list that its errors go to (LLVM's own handler would exit)."""
    lib = library()
    errors: list[str] = []

    def collect(info: int, _context: int) -> None:
        text = take_message(lib.LLVMGetDiagInfoDescription(info))
        if lib.LLVMGetDiagInfoSeverity(info) == _libllvm.SEVERITY_ERROR:
            errors.append(text)

    handler = _libllvm.Callback(collect)
    context = lib.LLVMContextCreate()
    try:
        lib.LLVMContextSetDiagnosticHandler(context, handler, None)
        yield context, errors
    finally:
        lib.LLVMContextDispose(context)


@contextmanager
def _target_machine(target: HostTarget, opt_level: int) -> Iterator[int]:
    lib = library()
    reference, message = c_void_p(), c_void_p()
    triple = target.triple.encode()
    if lib.LLVMGetTargetFromTriple(triple, byref(reference), byref(message)):
        raise LLVMError(take_message(message.value))
    machine = lib.LLVMCreateTargetMachine(
        reference,
        triple,
        target.cpu.encode(),
        target.features.encode(),
        opt_level,
        _libllvm.RELOC_PIC,
        _libllvm.CODE_MODEL_DEFAULT,
    )
    if not machine:
        raise LLVMError(f"no target machine for {target}")
    try:
        yield machine
    finally:
        lib.LLVMDisposeTargetMachine(machine)


@contextmanager
def _parsed(context: int, text: str) -> Iterator[int]:
    lib = library()
    module, message = c_void_p(), c_void_p()
    buffer = memory_buffer(text.encode(), "shapejit")
    failed = lib.LLVMParseIRInContext2(context, buffer, byref(module), byref(message))
    lib.LLVMDisposeMemoryBuffer(buffer)
    if failed or module.value is None:
        raise LLVMError(take_message(message.value))
    try:
        yield module.value
    finally:
        lib.LLVMDisposeModule(module)


def _optimize(module: int, machine: int, opt_level: int) -> None:
    lib = library()
    options = lib.LLVMCreatePassBuilderOptions()
    # Kernels are bound by arithmetic or memory, not by loop control: unrolling only costs a third
    # of the compile time.
    lib.LLVMPassBuilderOptionsSetLoopUnrolling(options, 0)
    try:
        passes = f"default<O{opt_level}>".encode()
        check(lib.LLVMRunPasses(module, passes, machine, options), "LLVM passes")
    finally:
        lib.LLVMDisposePassBuilderOptions(options)


def _emit(module: int, machine: int, kind: int) -> bytes:
    """The file of a module; `kind` is a member of ``LLVMCodeGenFileType``."""
    lib = library()
    buffer, message = c_void_p(), c_void_p()
    if lib.LLVMTargetMachineEmitToMemoryBuffer(
        machine, module, kind, byref(message), byref(buffer)
    ):
        raise LLVMError(take_message(message.value))
    try:
        size = lib.LLVMGetBufferSize(buffer)
        return ctypes.string_at(lib.LLVMGetBufferStart(buffer), size)
    finally:
        lib.LLVMDisposeMemoryBuffer(buffer)


__all__ = [
    "LLVM_PIPELINE",
    "HostTarget",
    "JitLibrary",
    "LLVMError",
    "Listing",
    "compile_llvm_ir",
    "compile_object",
    "list_llvm_ir",
    "to_llvm_dialect",
]
