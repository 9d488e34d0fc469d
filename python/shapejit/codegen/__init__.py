# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Host code generation through libLLVM's C API: lower, compile to objects, load."""

from __future__ import annotations

from shapejit.codegen.llvm import (
    LLVM_PIPELINE,
    HostTarget,
    JitLibrary,
    LLVMError,
    compile_llvm_ir,
    compile_object,
    to_llvm_dialect,
)

__all__ = [
    "LLVM_PIPELINE",
    "HostTarget",
    "JitLibrary",
    "LLVMError",
    "compile_llvm_ir",
    "compile_object",
    "to_llvm_dialect",
]
