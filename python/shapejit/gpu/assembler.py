# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""NVIDIA's assembler, as compilations for a GPU find it."""

from __future__ import annotations

from shapejit.codegen.cuda_tools import Tool
from shapejit.codegen.ptxas import PtxasError, find_ptxas
from shapejit.errors import ErrorId

TARGET = "cuda"


def assembler() -> Tool:
    """NVIDIA's assembler.

    Raises:
        TargetError: there is none that can be used (SJ-TARGET-005).
    """
    try:
        return find_ptxas()
    except PtxasError as error:
        reason = str(error).rstrip(".")
        raise ErrorId.SJ_TARGET_005.error(target=TARGET, reason=reason) from error


__all__ = ["TARGET", "assembler"]
