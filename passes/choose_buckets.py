# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""shapejit-choose-buckets: which variant of a kernel serves which sizes.

Why: a kernel of one tile shape takes any sizes, but loses up to half of its speed where its tiles
do not fit them. A few schedules, each for an interval of sizes, lose nearly nothing. Which ones is
decided here, before any code exists, by a cost model (`passes/buckets/model.py`,
docs/cost-model.md), so that it can be read, checked and repeated: the decision is an op of the IR,
with its reason.

Before::

    module attributes {shapejit.target = "cuda:sm_90a:h200"} {
      shapejit.symbol @tokens {id = 0, min = 1, max = 64}
      shapejit.kernel @gemm0 symbols 1 (..) {
        %0 = shapejit.gemm over [s0, 4096, 4096] lhs(..) rhs(..) -> ..
      }
      func.func @main(..) { .. shapejit.launch @gemm0 affine_map<()[s0] -> (s0)> (..) .. }
    }

After::

      shapejit.dispatch @gemm0 by affine_map<()[s0] -> (s0)> [
        #shapejit.bucket<[1], [16], "small_m_64x16x64_s9_w1_k2", "at 8: 11.2 us, memory; next ..">,
        #shapejit.bucket<[17], [64], "small_m_64x32x64_s16_w1_r2", "..">
      ]

What decides are the kernel's symbols, if each size of the gemm depends on one of them, else the
sizes themselves (a batch of ``s0 * s1`` rows is one axis). Every size that a launch can bind is in
exactly one bucket; an axis without an upper bound ends in ``?``.

Tensor maps need strides of multiples of 16 bytes. A kernel of which that is not known, through
constants and the divisors of symbols, gets the schedule that does without them. So whoever compiles
for sizes that may be either compiles two kernels, one with ``divisor = 8`` on the symbol, and picks
one by the call.

Breakpoints of all kernels are aligned: each set of sizes in which no kernel changes its variant is
a region, and regions are limited. Only those count that legal values of the symbols reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.pass_host import Pass, PassFailure, option, register_pass
from shapejit.passes.buckets.bindings import bindings_of
from shapejit.passes.buckets.choice import Bucket, ChoiceError, ChoiceOptions, choose_for_kernels
from shapejit.passes.buckets.device import H200, Device, device_of_target
from shapejit.passes.buckets.histogram import expected_sizes, parse_histogram
from shapejit.passes.buckets.kernels import GemmKernel, conv_kernel, gemm_kernel
from shapejit.passes.buckets.samples import Samples, spread_samples
from shapejit.passes.buckets.stated import StatedKernel, stated_kernel
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.families import CONV, GEMM, family_of
from shapejit.passes.nvgpu.schedule import ALL_CANDIDATES, GemmSchedule


def _device(module: Any) -> Device:
    """The device of the module's ``shapejit.target``; the default one without the attribute."""
    if "shapejit.target" not in module.attributes:
        return H200
    return device_of_target(ir.StringAttr(module.attributes["shapejit.target"]).value)


def _kernels(
    module: Any, device: Device, samples: Samples
) -> tuple[list[GemmKernel], list[StatedKernel]]:
    """The products of a module, and the kernels whose families choose for themselves."""
    bindings = bindings_of(module)
    gemms: list[GemmKernel] = []
    stated: list[StatedKernel] = []
    for name, kernel in sir.kernels(module).items():
        family = family_of(kernel)
        try:
            if family is GEMM:
                gemms.append(gemm_kernel(name, kernel, bindings[name]))
            elif family is CONV:
                gemms.append(conv_kernel(name, kernel, bindings[name], samples))
            elif family is not None:
                stated.append(stated_kernel(name, kernel, bindings[name], family, device))
        except LoweringError as error:
            raise PassFailure(kernel, f"this kernel {error}") from error
    return gemms, stated


def _write(kernel: GemmKernel | StatedKernel, buckets: Sequence[Bucket]) -> None:
    """The dispatch of a kernel, behind it."""
    with kernel.op.location:
        ir.Operation.create(
            "shapejit.dispatch",
            attributes={
                "kernel": ir.FlatSymbolRefAttr.get(kernel.name),
                "axes": ir.AffineMapAttr.get(sir.make_map(0, kernel.axes)),
                "buckets": ir.ArrayAttr.get([ir.Attribute.parse(str(b)) for b in buckets]),
            },
            ip=ir.InsertionPoint.after(kernel.op),
        )


def _erase_dispatches(module: Any, kernels: set[str]) -> None:
    for op in sir.operations(sir.module_block(module)):
        if op.name != "shapejit.dispatch":
            continue
        if ir.FlatSymbolRefAttr(op.attributes["kernel"]).value in kernels:
            op.erase()


@register_pass("shapejit-choose-buckets")
@dataclass(frozen=True)
class ChooseBuckets(Pass):
    """Choose variants of kernels over intervals of their sizes."""

    max_variants: int = option(8, help="most variants of a kernel")
    max_regions: int = option(16, help="most regions of sizes with all variants fixed")
    tolerance_percent: int = option(2, help="loss for which neighbouring intervals become one")
    histogram: str = option("", help="expected sizes, name:size=weight,size=weight;name:..")
    schedules: str = option("", help="candidates, separated by commas; empty for all")

    def run(self, module: Any) -> None:
        try:
            options = self._options(module)
            device = _device(module)
        except ValueError as error:
            raise PassFailure(module, str(error)) from error
        samples = spread_samples(module)
        gemms, stated = _kernels(module, device, samples)
        try:
            choices = choose_for_kernels(gemms, stated, device, options, samples)
        except ChoiceError as error:
            raise PassFailure(error.kernel.op, f"this kernel {error}") from error
        kernels: list[GemmKernel | StatedKernel] = [*gemms, *stated]
        _erase_dispatches(module, {kernel.name for kernel in kernels})
        for kernel, buckets in zip(kernels, choices, strict=True):
            _write(kernel, buckets)

    def _options(self, module: Any) -> ChoiceOptions:
        for name, least in (("max_variants", 1), ("max_regions", 1), ("tolerance_percent", 0)):
            if (value := getattr(self, name)) < least:
                text = name.replace("_", "-")
                raise ValueError(f"{text} must be at least {least}, got {value}")
        names = self.schedules.split(",") if self.schedules else []
        return ChoiceOptions(
            max_variants=self.max_variants,
            max_regions=self.max_regions,
            tolerance=self.tolerance_percent / 100,
            expected=expected_sizes(sir.symbols(module), parse_histogram(self.histogram)),
            candidates=tuple(map(GemmSchedule.parse, names)) or ALL_CANDIDATES,
        )
