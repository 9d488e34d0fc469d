# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What emitters know of a GPU architecture.

The target is the module attribute ``shapejit.target = "cuda:<architecture>"``; a device's name may
follow (``"cuda:sm_90a:h200"``), for the cost model only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlir import ir

from shapejit.passes.nvgpu.errors import LoweringError


@dataclass(frozen=True)
class Architecture:
    """Facts of an architecture that has families of kernels.

    Attributes:
        chip: as ptxas names it.
        features: PTX version, as LLVM names it; tensor-map fences need 8.3.
        shared_bytes: shared memory that a CTA can have, static and dynamic together.
        registers: of one thread at most.
        cluster: CTAs of a cluster at most.
    """

    chip: str
    features: str
    shared_bytes: int
    registers: int
    cluster: int


HOPPER = Architecture("sm_90a", "+ptx83", shared_bytes=227 * 1024, registers=255, cluster=16)

_ARCHITECTURES = {architecture.chip: architecture for architecture in (HOPPER,)}

#: A warpgroup is what multiplies, and what a barrier of a consumer has.
WARPGROUP = 128

#: The swizzle pattern of 128 bytes repeats every 8 rows; tiles start at its multiples.
TILE_ALIGNMENT = 1024

#: Static shared memory (the barriers) is rounded up to so much before the dynamic part.
STATIC_SHARED_BYTES = 1024

#: A tensor map's strides and base addresses are multiples of so many bytes.
MAP_ALIGNMENT = 16


def architecture_of(module: Any) -> Architecture:
    """The architecture that a module's ``shapejit.target`` names; sm_90a without one.

    Raises:
        LoweringError: it has no family of kernels.
    """
    if "shapejit.target" not in module.attributes:
        return HOPPER
    text = ir.StringAttr(module.attributes["shapejit.target"]).value
    kind, _, rest = text.partition(":")
    name = rest.partition(":")[0]
    if kind != "cuda" or name not in _ARCHITECTURES:
        known = ", ".join(f'"cuda:{chip}"' for chip in _ARCHITECTURES)
        raise LoweringError(
            f'has the target "{text}", for which there are no gemm kernels; set shapejit.target to '
            f"one of {known}"
        )
    return _ARCHITECTURES[name]
