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

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from shapejit import ir as sir
from shapejit.pass_host import Pass, PassFailure, option, register_pass
from shapejit.passes.host.dispatches import dispatches
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.lowering import is_gemm, lower_variant
from shapejit.passes.nvgpu.schedule import GemmSchedule
from shapejit.passes.nvgpu.target import Architecture, architecture_of

_FORMS = ("by-value", "block")


@register_pass(
    "shapejit-lower-gemm-to-nvgpu",
    dialects=("arith", "gpu", "llvm", "math", "memref", "nvgpu", "nvvm", "scf", "vector"),
)
@dataclass(frozen=True)
class LowerGemmToNvgpu(Pass):
    """Turn every variant of a gemm kernel into a module with its GPU code."""

    schedule: str = option("", help="the one variant of every gemm kernel; see nvgpu/schedule.py")
    parameters: str = option("by-value", help="by-value, or block: read from a parameter block")
    programmatic: bool = option(False, help="let kernels start before the one ahead of them ends")
    constant_weights: bool = option(
        False, help="let programmatic kernels load weights before the one ahead of them ends"
    )

    def run(self, module: Any) -> None:
        if self.parameters not in _FORMS:
            raise PassFailure(
                module, f"parameters must be one of {', '.join(_FORMS)}, got {self.parameters!r}"
            )
        kernels = {name: op for name, op in sir.kernels(module).items() if is_gemm(op)}
        if not kernels:
            return
        schedules = self._schedules(module, kernels)
        try:
            architecture = architecture_of(module)
        except LoweringError as error:
            raise PassFailure(module, f"this module {error}") from error
        for name, kernel in kernels.items():
            for schedule in reversed(schedules.get(name, [])):  # each goes right after the kernel
                self._lower(kernel, schedule, architecture)

    def _schedules(self, module: Any, kernels: Collection[str]) -> dict[str, list[GemmSchedule]]:
        """The distinct variants of these kernels."""
        try:
            if self.schedule:
                one = GemmSchedule.parse(self.schedule)
                return {name: [one] for name in kernels}
            return {
                name: [GemmSchedule.parse(variant) for variant in dispatch.variants]
                for name, dispatch in dispatches(module).items()
                if name in kernels
            }
        except ValueError as error:
            raise PassFailure(module, str(error)) from error

    def _lower(self, kernel: Any, schedule: GemmSchedule, architecture: Architecture) -> None:
        try:
            lower_variant(
                kernel,
                schedule,
                architecture,
                block=self.parameters == "block",
                programmatic=self.programmatic,
                constant_weights=self.constant_weights,
            )
        except LoweringError as error:
            raise PassFailure(kernel, f"as {schedule}, this kernel {error}") from error
