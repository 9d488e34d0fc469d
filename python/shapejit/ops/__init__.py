# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Single operators on tensors, compiled for sizes that vary."""

from __future__ import annotations

from shapejit.ops.attention import attention, compile_attention
from shapejit.ops.gemm import compile_gemm, gemm
from shapejit.ops.kernels import code_memory

__all__ = ["attention", "code_memory", "compile_attention", "compile_gemm", "gemm"]
