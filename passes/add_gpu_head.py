# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-add-gpu-head: the head kernel of programs under constant graphs.

Why: the kernels of such a program read sizes and addresses from device memory. One kernel, the same
for all programs, writes them there at the start of every call; see `nvgpu/head.py`. It is made by a
pass so that it is built, cached and dumped as other kernels are.

Before::

    module attributes {shapejit.target = "cuda:sm_90a"} {
    }

After, with ``words=128``::

    module attributes {shapejit.target = "cuda:sm_90a"} {
      gpu.module @head_2_128 [#nvvm.target<..>] attributes {shapejit.interface = ".."} {
        llvm.func @head_2_128(%table: !llvm.ptr<1>, %block: i64, %nothing: i64, %count: i32,
                            %words: !llvm.ptr {llvm.byval = !llvm.array<128 x i64>, ..})
            attributes {nvvm.kernel, ..} {
          (a thread for each record of the table)
        }
      }
    }
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.pass_host import Pass, PassFailure, option, register_pass
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.head import emit_head
from shapejit.passes.nvgpu.lowering import INTERFACE
from shapejit.passes.nvgpu.target import architecture_of


@register_pass(
    "shapejit-add-gpu-head",
    dialects=("arith", "gpu", "llvm", "nvvm", "scf", "vector"),
)
@dataclass(frozen=True)
class AddGpuHead(Pass):
    """Add the head kernel that takes so many words."""

    words: int = option(128, help="how many words it takes: 32, 128, 512, 2048 or 4080")

    def run(self, module: Any) -> None:
        block = sir.module_block(module)
        try:
            architecture = architecture_of(module)
            with ir.InsertionPoint(block), module.location:
                interface = emit_head(self.words, architecture)
        except LoweringError as error:
            raise PassFailure(module, f"this module {error}") from error
        made = sir.operations(block)[-1]
        made.attributes[INTERFACE] = ir.StringAttr.get(interface.to_json())
