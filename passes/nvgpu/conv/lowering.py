# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""From a `shapejit.kernel` with a convolution and a schedule to a `gpu.module`."""

from __future__ import annotations

import importlib
from typing import Any

from mlir import ir

from shapejit import ir as sir
from shapejit.gpu.interface import KernelInterface
from shapejit.passes.nvgpu.conv import depthwise, gathered
from shapejit.passes.nvgpu.conv.depthwise_schedule import DepthwiseSchedule
from shapejit.passes.nvgpu.conv.halo_product import HaloProduct
from shapejit.passes.nvgpu.conv.patch import PatchProduct
from shapejit.passes.nvgpu.conv.problem import ConvProblem, conv_problem, is_conv
from shapejit.passes.nvgpu.conv.product import DEPTH_BYTES, ConvProduct
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.lowering import emit_behind
from shapejit.passes.nvgpu.problem import is_half, lhs_matrix, weight_matrix
from shapejit.passes.nvgpu.request import GemmRequest
from shapejit.passes.nvgpu.schedule import UNALIGNED, GemmSchedule
from shapejit.passes.nvgpu.target import Architecture

__all__ = ["check", "lower", "serves", "weight_operands"]

# The modules that have each family's `emit(request)`.
_EMITTERS = {
    "persistent": "persistent",
    "swapped": "persistent",
    "small_m": "small_m",
    "unaligned": "conv.gathered",
    "halo": "conv.halo",
    "patch": "conv.patch",
}

# Of these, those that take float32.
_TF32_FAMILIES = ("persistent", "swapped", "small_m", "halo")


def serves(kernel: Any) -> bool:
    """Whether a ``shapejit.kernel`` is one with a convolution."""
    return is_conv(kernel)


def check(kernel: Any) -> None:
    """Checks that a kernel can be lowered, whatever the variant.

    Raises:
        LoweringError: it cannot.
    """
    conv = conv_problem(kernel)
    if is_half(conv.element):
        gathered.check(conv)
        return
    # Without tensor maps nobody multiplies it: shapejit-unfold-convolutions leaves no others.
    product = ConvProduct.of(conv, DEPTH_BYTES // sir.element_bytes(conv.element))
    lhs_matrix(product)
    weight_matrix(product, 0)


def weight_operands(kernel: Any) -> list[int]:
    """The numbers of the arguments that are filters."""
    return [conv_problem(kernel).weight.operand]


def lower(
    kernel: Any,
    variant: str,
    architecture: Architecture,
    *,
    block: bool = False,
    programmatic: bool = False,
    constant_weights: bool = False,
) -> KernelInterface:
    """Emits one variant of a kernel as a gpu module after the kernel.

    Args:
        kernel: ``shapejit.kernel`` with one convolution.
        variant: text of a `GemmSchedule` or a `DepthwiseSchedule`.
        architecture: what it runs on.
        block: whether its parameters lie in a parameter block.
        programmatic: whether it may start before the kernel ahead of it ends.
        constant_weights: whether a programmatic kernel may load filters before that.

    Raises:
        LoweringError: the kernel or the schedule breaks a rule; nothing is emitted then.
    """
    return emit_behind(
        kernel,
        lambda: _emit(kernel, variant, architecture, block, programmatic, constant_weights),
    )


def _emit(
    kernel: Any,
    variant: str,
    architecture: Architecture,
    block: bool,
    programmatic: bool,
    constant_weights: bool,
) -> KernelInterface:
    """Emits a variant at the current point, see `lower`."""
    name = f"{ir.StringAttr(kernel.attributes['sym_name']).value}__{variant}"
    conv = conv_problem(kernel)
    try:
        if variant.startswith("depthwise"):
            own = DepthwiseSchedule.parse(variant)
            return depthwise.emit(
                name, conv, own, architecture, block=block, programmatic=programmatic
            )
        schedule = GemmSchedule.parse(variant)
    except LoweringError:
        raise
    except ValueError as error:
        raise LoweringError(f"has a variant without a schedule: {error}") from error
    _check_family(conv, schedule)
    request = GemmRequest(
        name,
        _product(conv, schedule),
        schedule,
        architecture,
        block=block,
        programmatic=programmatic,
        constant_weights=constant_weights,
    )
    emitter = importlib.import_module(f"shapejit.passes.nvgpu.{_EMITTERS[schedule.family]}")
    interface: KernelInterface = emitter.emit(request)
    return interface


def _check_family(conv: ConvProblem, schedule: GemmSchedule) -> None:
    """Whether a schedule is for convolutions, and for the factors' type."""
    halves = is_half(conv.element)
    families = _EMITTERS if halves else _TF32_FAMILIES
    if schedule.family not in families or schedule.of_floats == halves:
        kind = "" if halves else " with tf32, or with tf32x3 but for halo"
        raise LoweringError(
            f"has the schedule {schedule}; convolutions of {conv.element} have those of the "
            f"families {', '.join(families)}{kind}"
        )
    if schedule.tf32x3 and schedule.family == "halo":
        raise LoweringError(
            f"has the schedule {schedule}; tiles with a halo have factors of one part. Use one of "
            "the family persistent, swapped or small_m"
        )


def _product(conv: ConvProblem, schedule: GemmSchedule) -> ConvProduct:
    """The product that a schedule's family computes."""
    if schedule.family == "halo":
        return HaloProduct.of(conv, schedule.depth)
    if schedule.family == "patch":
        return PatchProduct.of(conv, schedule.depth)
    is_gathered = schedule.family == UNALIGNED.family  # of which K is not filled up
    return ConvProduct.of(conv, 1 if is_gathered else schedule.depth)
