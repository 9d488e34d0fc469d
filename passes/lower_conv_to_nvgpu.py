# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-lower-conv-to-nvgpu: convolutions as warp-specialised Hopper kernels.

Why: a convolution is a product of matrices whose left side, the pixels that the taps see, would
take as many times the image's memory as there are taps. TMA reads that matrix from the image
itself (im2col mode): it finds the pixels of a tap for a run of places of the window, over rows and
images, and gives zeros for those beyond the edge. So the kernels of matrix products serve, with
other loads: rings, clusters, splits of K and epilogues are the same. A kernel takes any number of
images of any size; stride, padding and dilation are in its tensor map. Where the window moves from
pixel to pixel, a tile of pixels with its halo may be loaded once for all taps instead (family
``halo``). See docs/convolution.md.

Before::

    module attributes {shapejit.target = "cuda:sm_90a"} {
      shapejit.kernel @conv0 symbols 3 (%x: .., %w: ..) {
        %y = shapejit.conv over [s0, 1, s1, s2, 64, 64, 3, 3] image [s1, s2]
            padding [(1, 1), (1, 1)] input(%x at (n, g, p, q, c) -> (n, p, q, c))
            weight(%w at (g, f, c, r, s) -> (f, r, s, c)) ..
        shapejit.yield %y : ..
      }
    }

After, with ``schedule=persistent_128x64x64_s6_w2``::

    module attributes {shapejit.target = "cuda:sm_90a"} {
      shapejit.kernel @conv0 ..
      gpu.module @conv0__persistent_128x64x64_s6_w2 [#nvvm.target<..>]
          attributes {shapejit.interface = "{\\"entry\\":\\"conv0__persistent_..\\",..}"} {
        llvm.func @conv0__persistent_128x64x64_s6_w2(%map: !llvm.ptr {nvvm.grid_constant, ..}, ..) {
          (ring, producer, consumers: nvgpu, nvvm, scf, arith)
        }
      }
    }

The kernel stays: launches name it. Kernels with no convolution, or neither a dispatch nor the
option, are left alone. `shapejit.interface` is the JSON text of a
`shapejit.gpu.interface.KernelInterface`, which says how the function is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shapejit.pass_host import option, register_pass
from shapejit.passes.nvgpu.conv.lowering import lower, serves
from shapejit.passes.nvgpu.target import Architecture
from shapejit.passes.nvgpu.variants import LowerVariants


@register_pass(
    "shapejit-lower-conv-to-nvgpu",
    dialects=("arith", "gpu", "llvm", "math", "memref", "nvgpu", "nvvm", "scf", "vector"),
)
@dataclass(frozen=True)
class LowerConvToNvgpu(LowerVariants[str]):
    """Turn every variant of a convolution's kernel into a module with its GPU code."""

    schedule: str = option("", help="the one variant of every kernel; see docs/convolution.md")
    constant_weights: bool = option(
        False, help="let programmatic kernels load filters before the one ahead of them ends"
    )

    def serves(self, kernel: Any) -> bool:
        return serves(kernel)

    def parse(self, name: str) -> str:
        return name  # a name of one of several families: `lower` reads it with the kernel at hand

    def lower(self, kernel: Any, variant: str, architecture: Architecture) -> None:
        lower(
            kernel,
            variant,
            architecture,
            block=self.block,
            programmatic=self.programmatic,
            constant_weights=self.constant_weights,
        )
