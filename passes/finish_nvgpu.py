# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-finish-nvgpu: dynamic shared memory as the launch expects it.

Why: upstream lowers `gpu.dynamic_shared_memory` to an internal global with an alignment of 16. Such
a global becomes static, overlaps the barriers, and breaks the swizzle patterns of tiles, which
start at multiples of 1024. This pass runs after `nvgpu.pipeline.NVVM_PIPELINE`, before PTX.

Before::

    llvm.mlir.global internal @__dynamic_shmem__0() {addr_space = 3 : i32, alignment = 16 : i64}
        : !llvm.array<0 x i8>

After::

    llvm.mlir.global external @__dynamic_shmem__0() {addr_space = 3 : i32, alignment = 1024 : i64}
        : !llvm.array<0 x i8>
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shapejit.pass_host import Pass, register_pass
from shapejit.passes.nvgpu.pipeline import finish


@register_pass("shapejit-finish-nvgpu")
@dataclass(frozen=True)
class FinishNvgpu(Pass):
    """Make dynamic shared memory external and aligned for tiles."""

    def run(self, module: Any) -> None:
        finish(module)
