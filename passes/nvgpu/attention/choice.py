# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which schedule of an attention kernel serves which sizes.

What decides is whether all tiles of 64 queries have a place on the GPU at once:

- If so, the kernel takes as long as its longest tile. Small tiles spread over more multiprocessors.
- If not, it takes as long as all of the work. Then larger tiles win: a key that is read from the
  second-level cache serves more queries, which bounds the kernels with heads of 32 and 64.

The number of tiles is that of rows, queries of all batches and heads, over 64. Rows are an axis
that the products before and after an attention have too, so that its breakpoint can be one of
theirs; the number of keys changes the times of both schedules alike.

On an H200, 12 heads of 32 with a padding mask, both schedules with four blocks of keys in shared
memory, the larger tiles begin to win between 384 and 768 tiles, of 528 places.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from shapejit.passes.buckets.device import Device
from shapejit.passes.nvgpu.attention.problem import AttentionProblem, attention_problem
from shapejit.passes.nvgpu.attention.schedule import AttentionSchedule
from shapejit.passes.nvgpu.attention.tiles import padded
from shapejit.symbolic import Expr, Ranges
from shapejit.symbolic.expr import product

Bounds: TypeAlias = "tuple[int, int | None]"
Bucket: TypeAlias = "tuple[tuple[int, ...], tuple[int | None, ...], str, str]"


@dataclass(frozen=True)
class Pair:
    """The schedules of one head size.

    Attributes:
        few: while all tiles of 64 queries have a place.
        many: from there on.
    """

    few: AttentionSchedule
    many: AttentionSchedule

    @staticmethod
    def of(few: str, many: str) -> Pair:
        """From their names."""
        return Pair(AttentionSchedule.parse(few), AttentionSchedule.parse(many))

    def places(self, device: Device) -> int:
        """Tiles of `few` that the GPU computes at once."""
        return device.multiprocessors * self.few.ctas * self.few.workers


#: By the padded head size.
PAIRS: Final = {
    32: Pair.of("tiles_64x64_s4_w4_c1", "tiles_128x64_s4_c3"),
    64: Pair.of("tiles_64x64_s3_w4_c1", "tiles_128x64_s3_w2_c1"),
    128: Pair.of("tiles_64x64_s3_w2_c1", "tiles_128x64_s3_c1"),
}


def choose(
    kernel: Any, sizes: Mapping[int, Bounds], device: Device
) -> tuple[list[Expr], list[Bucket]]:
    """The variants of a kernel by its sizes.

    Args:
        kernel: ``shapejit.kernel`` with one attention.
        sizes: bounds of its symbols.
        device: the GPU.

    Returns:
        Axes, as expressions of the kernel's symbols, and buckets that cover all of their values.

    Raises:
        LoweringError: it cannot be lowered.
    """
    problem = attention_problem(kernel)
    pair = PAIRS[max(padded(problem.head), padded(problem.value))]
    axis, heads = _rows(problem)
    low, high = _bounds(axis, sizes)
    last = pair.places(device) * pair.few.rows // max(heads, 1)
    few = f"all tiles of {pair.few.rows} queries at once, up to {last} rows"
    many = f"more tiles than places, from {last + 1} rows on"
    if high is not None and high <= last:
        return [], [((), (), str(pair.few), few)]
    if low > last:
        return [], [((), (), str(pair.many), many)]
    return [axis], [
        ((low,), (last,), str(pair.few), few),
        ((last + 1,), (high,), str(pair.many), many),
    ]


def _rows(problem: AttentionProblem) -> tuple[Expr, int]:
    """What decides: queries of all batches; and how many heads each of them has. Heads that are
    not constant count as batches."""
    batch, heads, queries, *_ = problem.space
    if heads.constant is not None:
        return product([batch, queries]), heads.constant
    return product([batch, heads, queries]), 1


def _bounds(axis: Expr, sizes: Mapping[int, Bounds]) -> Bounds:
    low, high = Ranges(dict(sizes)).bounds(axis)
    return max(low or 0, 0), high
