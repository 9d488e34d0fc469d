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

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from shapejit import ir as sir
from shapejit.pass_host import Pass, PassFailure, option, register_pass
from shapejit.passes.host.dispatches import dispatches
from shapejit.passes.nvgpu.attention.kinds import Schedule, parse_schedule
from shapejit.passes.nvgpu.attention.lowering import lower, serves
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.target import Architecture, architecture_of

_FORMS = ("by-value", "block")


@register_pass(
    "shapejit-lower-attention-to-nvgpu",
    dialects=("arith", "gpu", "llvm", "math", "memref", "nvgpu", "nvvm", "scf", "vector"),
)
@dataclass(frozen=True)
class LowerAttentionToNvgpu(Pass):
    """Turn every variant of an attention kernel into a module with its GPU code."""

    schedule: str = option("", help="the one variant of every kernel; see attention/kinds.py")
    parameters: str = option("by-value", help="by-value, or block: read from a parameter block")
    programmatic: bool = option(False, help="let kernels start before the one ahead of them ends")
    constant_weights: bool = option(
        False, help="of no meaning here: there are no weights to load ahead"
    )

    def run(self, module: Any) -> None:
        if self.parameters not in _FORMS:
            raise PassFailure(
                module, f"parameters must be one of {', '.join(_FORMS)}, got {self.parameters!r}"
            )
        kernels = {name: op for name, op in sir.kernels(module).items() if serves(op)}
        if not kernels:
            return
        try:
            schedules = self._schedules(module, kernels)
        except ValueError as error:
            raise PassFailure(module, str(error)) from error
        try:
            architecture = architecture_of(module)
        except LoweringError as error:
            raise PassFailure(module, f"this module {error}") from error
        for name, kernel in kernels.items():
            for schedule in reversed(schedules.get(name, [])):  # each goes right after the kernel
                self._lower(kernel, schedule, architecture)

    def _schedules(self, module: Any, kernels: Collection[str]) -> dict[str, list[Schedule]]:
        """The distinct variants of these kernels.

        Raises:
            ValueError: a variant names no schedule.
        """
        if self.schedule:
            one = parse_schedule(self.schedule)
            return {name: [one] for name in kernels}
        return {
            name: [parse_schedule(variant) for variant in dispatch.variants]
            for name, dispatch in dispatches(module).items()
            if name in kernels
        }

    def _lower(self, kernel: Any, schedule: Schedule, architecture: Architecture) -> None:
        try:
            lower(
                kernel,
                str(schedule),
                architecture,
                block=self.parameters == "block",
                programmatic=self.programmatic,
            )
        except LoweringError as error:
            raise PassFailure(kernel, f"as {schedule}, this kernel {error}") from error
