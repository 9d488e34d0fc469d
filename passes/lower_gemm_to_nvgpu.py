# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-lower-gemm-to-nvgpu: gemm kernels as warp-specialised Hopper kernels.

Why: a GPU reaches its speed on matrix products through TMA, asynchronous barriers and wgmma, and no
upstream lowering of a contraction with free sizes uses them. A kernel made here takes any M, N and
K: TMA fills loads beyond the edges with zeros and clips stores, so nothing is padded. How tiles are
cut (the schedule) is fixed in a variant; which variant serves which sizes is said by the kernel's
`shapejit.dispatch`, or by the option `schedule` for a single one.

Before::

    module attributes {shapejit.target = "cuda:sm_90a"} {
      shapejit.kernel @gemm0 symbols 1 (%x: .., %w: ..) {
        %y = shapejit.gemm over [s0, 4096, 4096] lhs(%x ..) rhs(%w ..) -> ..
        shapejit.yield %y : ..
      }
    }

After, with ``schedule=persistent_128x256x64_s4_w2``::

    module attributes {shapejit.target = "cuda:sm_90a"} {
      shapejit.kernel @gemm0 ..
      gpu.module @gemm0__persistent_128x256x64_s4_w2 [#nvvm.target<..>]
          attributes {shapejit.interface = "{\\"entry\\":\\"gemm0__persistent_..\\",..}"} {
        llvm.func @gemm0__persistent_128x256x64_s4_w2(%map: !llvm.ptr {nvvm.grid_constant, ..}, ..)
            attributes {nvvm.kernel, nvvm.reqntid = array<i32: 384, 1, 1>, ..} {
          (ring, producer, consumers: nvgpu, nvvm, scf, arith)
        }
      }
    }

The kernel stays: launches name it. Kernels with no gemm, or neither a dispatch nor the option, are
left alone. `shapejit.interface` is the JSON text of a
`shapejit.gpu.interface.KernelInterface`, which says how the function is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shapejit.pass_host import option, register_pass
from shapejit.passes.nvgpu.lowering import is_gemm, lower_variant
from shapejit.passes.nvgpu.schedule import GemmSchedule
from shapejit.passes.nvgpu.target import Architecture
from shapejit.passes.nvgpu.variants import LowerVariants


@register_pass(
    "shapejit-lower-gemm-to-nvgpu",
    dialects=("arith", "gpu", "llvm", "math", "memref", "nvgpu", "nvvm", "scf", "vector"),
)
@dataclass(frozen=True)
class LowerGemmToNvgpu(LowerVariants[GemmSchedule]):
    """Turn every variant of a gemm kernel into a module with its GPU code."""

    schedule: str = option("", help="the one variant of every gemm kernel; see nvgpu/schedule.py")

    def serves(self, kernel: Any) -> bool:
        return is_gemm(kernel)

    def parse(self, name: str) -> GemmSchedule:
        return GemmSchedule.parse(name)

    def lower(self, kernel: Any, variant: GemmSchedule, architecture: Architecture) -> None:
        lower_variant(
            kernel,
            variant,
            architecture,
            block=self.block,
            programmatic=self.programmatic or variant.early,
            constant_weights=self.constant_weights,
        )
