# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""From a `gpu.module`, as the lowering passes leave it, to code for a GPU."""

from __future__ import annotations

from typing import Any

import mlir.ir as ir

from shapejit.codegen.ptx import DeviceCode, private_context, translate
from shapejit.pass_host import run_pipeline
from shapejit.passes.nvgpu.pipeline import NVVM_PIPELINE, finish


def device_code(gpu_module: Any) -> DeviceCode:
    """What LLVM makes of a module, which is left as it is."""
    with private_context():
        module = ir.Module.parse(f"module {{ {gpu_module} }}")
        run_pipeline(module, NVVM_PIPELINE, stage="test")
        finish(module)
        [code] = translate(module)
    return code
