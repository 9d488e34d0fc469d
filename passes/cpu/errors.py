# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Why a kernel cannot become CPU code."""

from __future__ import annotations


class LoweringError(ValueError):
    """The ops of a kernel break a rule of the CPU lowering; the text continues "this op ..."."""
