# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-lower-loops-to-gpu: kernels of loops as kernels on the GPU's CUDA cores.

Why: what is between matrix products (norms, embeddings, softmax, masks, pooling) is bound by memory
and by latency. A kernel made here reads each tensor once, in 16 bytes a thread, keeps a row in
registers between the passes over it, and serves every size: grids are as large as the GPU, and
threads stride over the elements, rows or columns that there are. How many elements a thread takes
(the schedule) is fixed in a variant; which variant serves which sizes is said by the kernel's
`shapejit.dispatch`, or by the option `schedule` for a single one; see `shapejit.passes.gpu_loops`.

Before::

    shapejit.kernel @double symbols 1 (%x: tensor<?xf32, #shapejit.shape<[s0]>>) {
      %0 = shapejit.loop over [s0] ins(%x at #id : ..) outs(#id : ..) {
      ^bb0(%v: f32):
        %1 = arith.addf %v, %v : f32
        shapejit.yield %1 : f32
      }
      shapejit.yield %0 : ..
    }

After, with ``schedule=loops_v4_w1_k0_t256_c4``::

    shapejit.kernel @double ..
    gpu.module @double__loops_v4_w1_k0_t256_c4 [#nvvm.target<..>]
        attributes {shapejit.interface = "{\\"entry\\":\\"double__loops_..\\",..}"} {
      llvm.func @double__loops_v4_w1_k0_t256_c4(%x: !llvm.ptr<1>, %y: !llvm.ptr<1>, ..)
          attributes {nvvm.kernel, nvvm.reqntid = array<i32: 256, 1, 1>, ..} {
        scf.for %i = %thread to %vectors step %threads : i32 {
          (ld.global.v4.b32, 4 x arith.addf, st.global.v4.b32)
        }
        scf.for %i = .. (what is left, or all of it if the addresses are not aligned)
      }
    }

The kernel stays: launches name it. Kernels of other ops, or with neither a dispatch nor the option,
are left alone. `shapejit.interface` is the JSON text of a `shapejit.gpu.interface.KernelInterface`,
which says how the function is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shapejit.pass_host import option, register_pass
from shapejit.passes.gpu_loops.lowering import lower, serves
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.target import Architecture
from shapejit.passes.nvgpu.variants import LowerVariants


@register_pass(
    "shapejit-lower-loops-to-gpu",
    dialects=("arith", "gpu", "llvm", "memref", "nvgpu", "nvvm", "scf", "vector"),
)
@dataclass(frozen=True)
class LowerLoopsToGpu(LowerVariants[str]):
    """Turn every variant of a kernel of loops into a module with its GPU code."""

    schedule: str = option(
        "", help="the one variant of every kernel of loops; see gpu_loops/schedule.py"
    )
    constant_weights: bool = option(
        False,
        help="of no meaning here: a kernel of loops does not know which arguments are weights",
    )

    def serves(self, kernel: Any) -> bool:
        return serves(kernel)

    def parse(self, name: str) -> str:
        return name  # which schedules there are depends on the kernel

    def lower(self, kernel: Any, variant: str, architecture: Architecture) -> None:
        lower(
            kernel,
            variant,
            architecture,
            block=self.block,
            programmatic=self.programmatic,
        )

    def rejection(self, variant: str, error: LoweringError) -> str:
        return f"this kernel {error}"
