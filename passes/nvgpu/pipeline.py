# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""From the emitters' dialects to what becomes PTX.

Before: ``gpu.module`` with one ``llvm.func`` of nvgpu, nvvm, scf, arith and memref ops.
After: the same module in the LLVM and NVVM dialects, ready for ``gpu-module-to-binary``.
"""

from __future__ import annotations

from typing import Any

from mlir import ir

from shapejit.passes.nvgpu.target import TILE_ALIGNMENT

#: Passes over the module that holds gpu modules. `convert-cf-to-llvm` and
#: `finalize-memref-to-llvm` cannot nest here; `convert-gpu-to-nvvm` does their work.
NVVM_PIPELINE = (
    "gpu.module(convert-nvgpu-to-nvvm,canonicalize,cse,convert-scf-to-cf,"
    "convert-gpu-to-nvvm,expand-strided-metadata,convert-arith-to-llvm,convert-vector-to-llvm,"
    "convert-index-to-llvm,canonicalize,cse,convert-nvvm-to-llvm,reconcile-unrealized-casts)"
)


def finish(module: Any) -> None:
    """Fixes what the upstream passes leave wrong, in place, after `NVVM_PIPELINE`.

    The global of dynamic shared memory comes out internal and with an alignment of 16: it would
    become static, overlap the barriers, and break the swizzle patterns of tiles. External, it is
    what the launch allocates, after all static memory.

    Args:
        module: the module (or its operation) that holds gpu modules.
    """
    operation = module.operation
    alignment = ir.IntegerType.get_signless(64, operation.context)
    linkage = ir.Attribute.parse("#llvm.linkage<external>", operation.context)
    for gpu_module in _gpu_modules(operation):
        for op in gpu_module.regions[0].blocks[0].operations:
            if op.operation.name != "llvm.mlir.global":
                continue
            name = ir.StringAttr(op.attributes["sym_name"]).value
            if name.startswith("__dynamic_shmem"):
                op.attributes["alignment"] = ir.IntegerAttr.get(alignment, TILE_ALIGNMENT)
                op.attributes["linkage"] = linkage


def _gpu_modules(operation: Any) -> list[Any]:
    if operation.name == "gpu.module":
        return [operation]
    return [
        op.operation
        for op in operation.regions[0].blocks[0].operations
        if op.operation.name == "gpu.module"
    ]
