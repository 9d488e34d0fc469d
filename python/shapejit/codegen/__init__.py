# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Code generation.

Host code through libLLVM's C API (what is exported here): lower, compile to objects, load. Code for
NVIDIA GPUs through PTX and ``ptxas``: `shapejit.codegen.cubin` and `shapejit.codegen.builder`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    # Imported on first use: it brings dialects of MLIR, which kernels from the cache do without.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shapejit.codegen import llvm

    return getattr(llvm, name)
