# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which schedule of an attention kernel serves which sizes.

What decides is whether all tiles of 64 queries have a place on the GPU at once:

- If so, the kernel takes as long as its longest tile, and small tiles spread over more of the GPU.
  Up to two tiles a multiprocessor leave half of its registers and shared memory to the next kernel,
  which then gets ready.
- If not, it takes as long as all of the work. Then larger tiles win: a key that is read from the
  second-level cache serves more queries.

The number of tiles is about that of rows, queries of all batches and heads, over 64. Rows are an
axis that the products before and after an attention have too, so that its breakpoint can be one of
theirs; the number of keys changes the times of all schedules alike.

On an H200, 12 heads of 32 with a mask of keys, tiles of 128 queries begin to win between 384 and
768 tiles of 64, of which the multiprocessors hold 528 at once. That was measured with two blocks of
keys in shared memory; three or four hide more of the latency of copies, and are not measured apart.

That is said of the kind ``tiles`` alone. `flash_choice` gives long sequences to flash kernels, and
`decode_choice` few queries to kernels that divide keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from shapejit.passes.buckets.device import Device
from shapejit.passes.nvgpu.attention import decode_choice, flash_choice
from shapejit.passes.nvgpu.attention.problem import AttentionProblem, attention_problem
from shapejit.passes.nvgpu.attention.schedule import AttentionSchedule
from shapejit.passes.nvgpu.attention.tiles import padded
from shapejit.passes.nvgpu.families import STAKE
from shapejit.symbolic import Expr, Ranges
from shapejit.symbolic.expr import product

Bounds: TypeAlias = "tuple[int, int | None]"
Bucket: TypeAlias = "tuple[tuple[int, ...], tuple[int | None, ...], str, str]"


def _all(*names: str) -> tuple[AttentionSchedule, ...]:
    return tuple(map(AttentionSchedule.parse, names))


#: By the padded head size: schedules of which each serves while all of its tiles have a place on
#: the GPU, and a last one for all that is left.
TIERS: Final = {
    32: _all("tiles_64x64_s4_w2_c1", "tiles_64x64_s3_w4_c1", "tiles_128x64_s3_c3"),
    64: _all("tiles_64x64_w2_c1", "tiles_64x64_s3_w4_c1", "tiles_128x64_s3_w2_c1"),
    128: _all("tiles_64x64_c1", "tiles_64x64_w2_c1", "tiles_128x64_s3_c1"),
    256: _all("tiles_64x32_c2", "tiles_64x32_w2_c1"),
}


def places(schedule: AttentionSchedule, device: Device) -> int:
    """Tiles that the GPU computes at once."""
    return device.multiprocessors * schedule.ctas * schedule.workers


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
    axes, buckets = _choose_tiles(problem, sizes, device)
    if flash_choice.serves(problem):
        axes, buckets = _choose_flash(problem, sizes, device, buckets)
    most = decode_choice.most_queries(problem, sizes)
    if most:
        return decode_choice.with_few_queries(problem, sizes, most, device, axes, buckets)
    return axes, buckets


def stake(
    kernel: Any,
    sizes: Mapping[int, Bounds],
    device: Device,
    axes: Sequence[Expr],
    bucket: Bucket,
) -> float:
    """What a call of a bucket's sizes costs more by the variant of another, in microseconds.

    Long sequences take much longer than what else a model has beside its products.
    """
    problem = attention_problem(kernel)
    lower, upper, variant, _ = bucket
    if not variant.startswith(flash_choice.PREFIX):
        return STAKE
    axis, heads = _rows(problem)
    known = dict(zip(axes, zip(lower, upper, strict=True), strict=True))
    rows, keys = (known.get(each, _bounds(each, sizes)) for each in (axis, problem.space[3]))
    return max(STAKE, flash_choice.stake(problem, max(heads, 1), rows, keys, device))


def _choose_tiles(
    problem: AttentionProblem, sizes: Mapping[int, Bounds], device: Device
) -> tuple[list[Expr], list[Bucket]]:
    """The same by places for tiles alone."""
    tiers = TIERS[max(padded(problem.head), padded(problem.value))]
    axis, heads = _rows(problem)
    low, high = _bounds(axis, sizes)
    buckets: list[Bucket] = []
    first = low
    for schedule in tiers:
        last: int | None = places(schedule, device) * schedule.rows // max(heads, 1)
        reason = f"up to {last} rows all its tiles have a place at once"
        if schedule is tiers[-1]:
            last, reason = None, f"more tiles than places, from {first} rows on"
        if high is not None and (last is None or last > high):
            last = high
        if last is None or last >= first:
            buckets.append(((first,), (last,), str(schedule), reason))
            first = first if last is None else last + 1
        if last is None or last == high:
            break
    if len(buckets) > 1:
        return [axis], buckets
    [(_, _, variant, reason)] = buckets
    return [], [((), (), variant, reason)]


def _choose_flash(
    problem: AttentionProblem,
    sizes: Mapping[int, Bounds],
    device: Device,
    tiled: Sequence[Bucket],
) -> tuple[list[Expr], list[Bucket]]:
    """What `_choose_tiles` found, with flash kernels for long sequences."""
    axis, heads = _rows(problem)
    last: int | None = None
    if flash_choice.replaces_large_tiles(problem):
        *_, tier, _ = TIERS[padded(problem.head)]
        last = places(tier, device) * tier.rows // max(heads, 1)
    rows, keys = _bounds(axis, sizes), _bounds(problem.space[3], sizes)
    found = flash_choice.with_flash(problem, max(heads, 1), (rows, keys), last, tiled, device)
    return _needed([axis, problem.space[3]], found)


def _needed(axes: Sequence[Expr], buckets: Sequence[Bucket]) -> tuple[list[Expr], list[Bucket]]:
    """Buckets without the axes along which all of them reach as far."""
    kept = [
        number
        for number in range(len(axes))
        if len({(lower[number], upper[number]) for lower, upper, _, _ in buckets}) > 1
    ]
    return [axes[number] for number in kept], [
        (
            tuple(lower[number] for number in kept),
            tuple(upper[number] for number in kept),
            variant,
            reason,
        )
        for lower, upper, variant, reason in buckets
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
