# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-lower-attention-to-nvgpu: attention kernels as Hopper kernels.

Why: attention is two products with a softmax between them, whose scores must never reach memory. A
kernel made here takes any batch, heads, queries and keys, reads its operands through their maps
(so they may be slices of one tensor, or heads that several queries share), and keeps scores in
registers: wgmma takes the weights from there. How it is cut into tiles (the schedule) is fixed in a
variant; which variant serves which sizes is said by the kernel's `shapejit.dispatch`, or by the
option `schedule` for a single one.

Before::

    module attributes {shapejit.target = "cuda:sm_90a"} {
      shapejit.kernel @attention0 symbols 2 (%q: .., %k: .., %v: .., %mask: ..) {
        %y = shapejit.attention over [s0, 12, s1, s1, 32, 32] q(%q ..) k(%k ..) v(%v ..)
            mask(%mask ..) {scale = 0.17 : f64} -> ..
        shapejit.yield %y : ..
      }
    }

After, with ``schedule=tiles_64x64_c4``::

    module attributes {shapejit.target = "cuda:sm_90a"} {
      shapejit.kernel @attention0 ..
      gpu.module @attention0__tiles_64x64_c4 [#nvvm.target<..>]
          attributes {shapejit.interface = "{\\"entry\\":\\"attention0__tiles_64x64_c4\\",..}"} {
        llvm.func @attention0__tiles_64x64_c4(%q: !llvm.ptr<1>, ..)
            attributes {nvvm.kernel, nvvm.reqntid = array<i32: 128, 1, 1>, ..} {
          (copies, products, softmax: llvm, nvvm, scf, arith)
        }
      }
    }

The kernel stays: launches name it. Kernels with no attention, or neither a dispatch nor the option,
are left alone. `shapejit.interface` is the JSON text of a
`shapejit.gpu.interface.KernelInterface`, which says how the function is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shapejit.pass_host import option, register_pass
from shapejit.passes.nvgpu.attention.kinds import Schedule, parse_schedule
from shapejit.passes.nvgpu.attention.lowering import lower, serves
from shapejit.passes.nvgpu.target import Architecture
from shapejit.passes.nvgpu.variants import LowerVariants


@register_pass(
    "shapejit-lower-attention-to-nvgpu",
    dialects=("arith", "gpu", "llvm", "math", "memref", "nvgpu", "nvvm", "scf", "vector"),
)
@dataclass(frozen=True)
class LowerAttentionToNvgpu(LowerVariants[Schedule]):
    """Turn every variant of an attention kernel into a module with its GPU code."""

    schedule: str = option("", help="the one variant of every kernel; see attention/kinds.py")
    constant_weights: bool = option(
        False, help="of no meaning here: there are no weights to load ahead"
    )

    def serves(self, kernel: Any) -> bool:
        return serves(kernel)

    def parse(self, name: str) -> Schedule:
        return parse_schedule(name)

    def lower(self, kernel: Any, variant: Schedule, architecture: Architecture) -> None:
        lower(
            kernel,
            str(variant),
            architecture,
            block=self.block,
            programmatic=self.programmatic,
        )
