# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The families of GPU kernels: which one serves a `shapejit.kernel`, and how it is asked.

A family is a way of turning kernels of one kind into machine code. Those whose schedules follow
from simple rules choose their own buckets (`choose`); the schedules of matrix products, which
convolutions are too, are chosen by a cost model over all of a module, see
`shapejit.passes.buckets.choice`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from shapejit import ir as sir

if TYPE_CHECKING:
    from shapejit.passes.buckets.device import Device
    from shapejit.symbolic import Expr

Bounds: TypeAlias = "tuple[int, int | None]"
"""The least and the greatest value of a size; None is no bound."""

StatedBucket: TypeAlias = "tuple[tuple[int, ...], tuple[int | None, ...], str, str]"
"""Lower corner, upper corner (both included; None is no bound), variant, reason."""


STAKE: Final = 0.6
"""What the variant of another bucket costs a call beside the products of a model, in microseconds:
at sizes at which choices matter, about a sixth of its time."""


@dataclass(frozen=True)
class Family:
    """A family of kernels.

    Attributes:
        name: what its kernels are about.
        lowering: the pass that makes a ``gpu.module`` of one. Its options are ``schedule`` (the
            variant), ``parameters`` (``by-value`` or ``block``), ``programmatic`` and
            ``constant-weights``.
        module: has the family's functions.
    """

    name: str
    lowering: str
    module: str

    def check(self, kernel: Any) -> None:
        """Checks that a kernel of this family can be lowered, whatever the variant.

        Raises:
            LoweringError: it cannot; the text continues "this kernel ...".
        """
        self._functions.check(kernel)

    def choose(
        self, kernel: Any, sizes: Mapping[int, Bounds], device: Device
    ) -> tuple[list[Expr], list[StatedBucket]]:
        """The variants of a kernel by sizes, as it would have them alone.

        Not for `MODELLED` families.

        Args:
            kernel: of this family.
            sizes: bounds of the kernel's symbols, by number.
            device: the GPU.

        Returns:
            What the corners are about, over the kernel's symbols; and disjoint buckets that cover
            all sizes. Every variant takes any sizes.

        Raises:
            LoweringError: as `check`.
        """
        axes, buckets = self._functions.choose(kernel, sizes, device)
        return list(axes), list(buckets)

    def serves(self, kernel: Any) -> bool:
        """Whether a kernel with this family's op is one of it. Only for `DEPTHWISE`."""
        return bool(self._functions.serves(kernel))

    def weights(self, kernel: Any) -> frozenset[int]:
        """The arguments of a kernel that are weights. Only for `MODELLED` families."""
        return frozenset(self._functions.weight_operands(kernel))

    def stake(
        self,
        kernel: Any,
        sizes: Mapping[int, Bounds],
        device: Device,
        axes: Sequence[Expr],
        bucket: StatedBucket,
    ) -> float:
        """What a call of a bucket's sizes costs more by the variant of another, in microseconds.

        Args:
            kernel, sizes, device: as of `choose`.
            axes: that `choose` gave.
            bucket: one of its buckets.
        """
        function = getattr(self._functions, "stake", None)
        if function is None:
            return STAKE
        return float(function(kernel, sizes, device, axes, bucket))

    @functools.cached_property
    def _functions(self) -> Any:
        return importlib.import_module(f"shapejit.passes.{self.module}")


GEMM: Final = Family("gemm", "shapejit-lower-gemm-to-nvgpu", "nvgpu.lowering")
CONV: Final = Family("conv", "shapejit-lower-conv-to-nvgpu", "nvgpu.conv.lowering")
DEPTHWISE: Final = Family(
    "depthwise", "shapejit-lower-conv-to-nvgpu", "nvgpu.conv.depthwise_choice"
)
ATTENTION: Final = Family(
    "attention", "shapejit-lower-attention-to-nvgpu", "nvgpu.attention.lowering"
)
LOOPS: Final = Family("loops", "shapejit-lower-loops-to-gpu", "gpu_loops.lowering")

FAMILIES: Final = (GEMM, CONV, DEPTHWISE, ATTENTION, LOOPS)

MODELLED: Final = (GEMM, CONV)
"""Families whose schedules are chosen by the cost model of matrix products."""

# The op that makes a kernel one of a family; all other kernels are loops and views.
_LEADERS: Final = {
    "shapejit.gemm": GEMM,
    "shapejit.conv": CONV,
    "shapejit.attention": ATTENTION,
    "shapejit.scan": LOOPS,
    "shapejit.sort": LOOPS,
}
_OF_LOOPS: Final = frozenset(
    (
        *("arith.constant", "shapejit.loop", "shapejit.scatter"),
        *("shapejit.view", "shapejit.yield"),
    )
)


def family_of(kernel: Any) -> Family | None:
    """The family that serves a ``shapejit.kernel``; None if there is none."""
    names = [op.name for op in sir.operations(sir.body(kernel))]
    for name in names:
        if name == "shapejit.conv" and DEPTHWISE.serves(kernel):
            return DEPTHWISE
        if name in _LEADERS:
            return _LEADERS[name]
    return LOOPS if _OF_LOOPS.issuperset(names) else None
