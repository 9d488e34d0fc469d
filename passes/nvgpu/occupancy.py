# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How many CTAs share a multiprocessor: part of a kernel's code, since it bounds its registers."""

from __future__ import annotations

from shapejit.passes.nvgpu.target import STATIC_SHARED_BYTES, Architecture

# A multiprocessor has so much more shared memory than one CTA can have; the system takes it.
_SYSTEM_BYTES = 1024


def ctas_that_fit(architecture: Architecture, dynamic_bytes: int) -> int:
    """CTAs whose shared memory fits on a multiprocessor, at least 1.

    Args:
        dynamic_bytes: dynamic shared memory of each; all of the static is added.
    """
    each = dynamic_bytes + STATIC_SHARED_BYTES + _SYSTEM_BYTES
    return max(multiprocessor_bytes(architecture) // each, 1)


def multiprocessor_bytes(architecture: Architecture) -> int:
    """Shared memory of a multiprocessor."""
    return architecture.shared_bytes + _SYSTEM_BYTES


def bytes_for_each(architecture: Architecture, ctas: int) -> int:
    """Dynamic shared memory of each CTA if so many share a multiprocessor."""
    each = multiprocessor_bytes(architecture) // ctas
    return each - STATIC_SHARED_BYTES - _SYSTEM_BYTES
