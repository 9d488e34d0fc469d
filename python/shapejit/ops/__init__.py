# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Single operators on tensors, compiled for sizes that vary."""

from __future__ import annotations

from shapejit.ops.gemm import code_memory, compile_gemm, gemm

__all__ = ["code_memory", "compile_gemm", "gemm"]
