# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Why a kernel cannot become code for an NVIDIA GPU."""

from __future__ import annotations


class LoweringError(ValueError):
    """The ops of a kernel, or the schedule, break a rule; the text continues "this kernel ..."."""
