# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Which schedule serves which sizes of a kernel of loops, and the machine code of it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from reference import sass
from shapejit.gpu.interface import Pointer, Size
from shapejit.passes.buckets.device import H200
from shapejit.passes.gpu_loops.schedule import LoopSchedule
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.symbolic import Expr
from unit import gpu_loop_samples as samples
from unit.cpu_kernels import access, tensor
from unit.gpu_loop_samples import FLOATS, Sample, sums
from unit.simulated_loops import GpuKernel, Ranges


def schedule(sample: Sample, sizes: Ranges | None = None) -> LoopSchedule:
    """The schedule for the smallest sizes."""
    return LoopSchedule.parse(GpuKernel(sample.text, sizes=sizes).variants[0])


# Schedules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "loops_v8_w1_k0_t256_c4",
        "loops_v1_w32_k16_t1024_c1_wide",
        "loops_v16_w4_k1_t128_c8",
        "loops_v8_w16_k13_t512_c2_x4_shared_next_wide",
        "loops_v8_w1_k264_t512_c2_l8_units",
    ],
)
def test_text_of_a_schedule(text: str) -> None:
    assert str(LoopSchedule.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loops_v8", "names no schedule of loops; one is loops_v1_w1_k0_t256_c4"),
        ("loops_v3_w1_k0_t256_c4", "vector = 3 in its schedule; it is a power of 2"),
        ("loops_v32_w1_k0_t256_c4", "vectors of 32 in its schedule; the most is 16"),
        ("loops_v1_w1_k0_t250_c4", "250 threads in its schedule; they are multiples of 32"),
        ("loops_v1_w1_k0_t2048_c1", "multiples of 32 up to 1024"),
        ("loops_v1_w4_k0_t256_c4", "rows of 4 warps in CTAs of 256 threads; rows that several"),
        ("loops_v1_w1_k0_t256_c0", "no CTA on a multiprocessor"),
        ("loops_v8_w1_k4_t256_c4_l64_units", "has 64 lanes side by side in its schedule; a warp"),
        ("loops_v8_w1_k4_t256_c4_l3_units", "lanes = 3 in its schedule; it is a power of 2"),
        ("loops_v8_w8_k0_t256_c4_shared", "rows of 0 vectors a thread in shared memory"),
        ("loops_v8_w1_k4_t256_c4_shared", "1 warps of CTAs of 256 threads; there is at least a"),
    ],
)
def test_what_is_no_schedule(text: str, message: str) -> None:
    with pytest.raises(LoweringError, match=message):
        LoopSchedule.parse(text)


# Choices ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("element", "vector"), [("bf16", 8), ("f32", 4), ("f64", 2)])
def test_points_move_16_bytes(element: str, vector: int) -> None:
    assert schedule(samples.pointwise(element)).vector == vector


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (64, (2, 1, 1)),  # all lanes have a part, so 4 bytes each
        (384, (4, 1, 3)),  # vectors of 8 would leave a quarter of the lanes without work
        (768, (8, 1, 3)),
        (1024, (8, 4, 1)),  # of as much four warps keep a vector a thread
        (1000, (8, 4, 1)),
        (4096, (8, 8, 2)),
        (33, (1, 1, 2)),  # short rows that start anywhere have no vectors
        (201, (8, 1, 1)),  # others are cut where vectors may start
    ],
)
def test_rows_stay_in_registers(width: int, expected: tuple[int, int, int]) -> None:
    chosen = schedule(samples.layer_norm("bf16", width))
    assert (chosen.vector, chosen.warps, chosen.chunks) == expected
    assert chosen.row_capacity >= width


def test_rows_too_long_for_registers_lie_in_shared_memory() -> None:
    kernel = GpuKernel(samples.layer_norm("bf16", 50257).text)
    chosen = [LoopSchedule.parse(variant) for variant in kernel.variants]
    assert (chosen[-1].shared, chosen[-1].ctas, chosen[-1].cluster) == (True, 2, 1)
    # Few of them are shared by clusters, whose registers hold them if there are enough CTAs.
    assert [(each.cluster, each.shared) for each in chosen[:-1]] == [
        (16, False),
        (8, False),
        (4, True),
        (2, True),  # a row for each multiprocessor leaves each two CTAs
    ]
    assert all(each.row_capacity >= 50256 for each in chosen)
    assert [bucket[:2] for bucket in kernel.buckets][:2] == [((0,), (8,)), ((9,), (16,))]


@pytest.mark.parametrize(
    ("element", "width", "expected"),
    [
        ("bf16", 16384, (256, 4, 1)),
        ("bf16", 32000, (512, 2, 1)),
        ("bf16", 50258, (512, 2, 1)),  # cut: only vectors of two start where rows do
        ("f32", 32000, (512, 2, 2)),
        ("f32", 128256, (512, 2, 8)),
        ("f64", 16384, (512, 1, 2)),  # twice the registers
    ],
)
def test_as_many_ctas_as_it_takes_keep_a_row(
    element: str, width: int, expected: tuple[int, int, int]
) -> None:
    kernel = GpuKernel(samples.softmax(element, width).text, sizes={0: (5000, 5000), 1: (0, 0)})
    [chosen] = [LoopSchedule.parse(variant) for variant in kernel.variants]
    assert chosen.shared
    assert (chosen.threads, chosen.ctas, chosen.cluster) == expected
    [resources] = kernel.assemble().resources.values()
    assert not resources.spill_store_bytes
    of_each = kernel.interface.shared_bytes + resources.shared_bytes + H200.shared_reserved
    assert chosen.ctas * of_each <= H200.shared_bytes


def test_rows_that_are_read_once_need_no_shared_memory() -> None:
    kernel = GpuKernel(sums(1), sizes={0: (5000, 5000), 1: (1, 1 << 20)})
    assert not any(LoopSchedule.parse(variant).shared for variant in kernel.variants)


def test_rows_beyond_all_shared_memory_are_read_again() -> None:
    kernel = GpuKernel(samples.layer_norm("f32", 1 << 20).text)
    assert {LoopSchedule.parse(variant).chunks for variant in kernel.variants} == {0}


def distances(tensors: int, totals: int) -> str:
    """Sums of several tensors in three passes over a row, the first of which makes the totals."""
    x, row = tensor("bf16", "s0", "s1"), tensor("bf16", "s0")
    own, one = access(2, "d0, d1"), access(2, "d0")

    def named(text: str, count: int) -> str:
        return ", ".join(text.format(i) for i in range(count))

    def folded(op: str, first: str, name: str, count: int) -> str:
        """Lines from ``first`` on to the last value, %<name>."""
        ends = [first, *(f"%{name}{i}" for i in range(1, count)), f"%{name}"]
        values = [f"%{op[0]}v{i}" for i in range(count)]
        return "\n".join(
            f"{made} = arith.{op} {before}, {value} : bf16"
            for (before, made), value in zip(pairwise(ends), values, strict=True)
        )

    read = named(f"%x{{}} at {own} : {x}", tensors)
    taken = named(f"%m{{}} at {one} : {row}", totals)
    added = f"%zero = arith.constant 0.0 : bf16\n{folded('addf', '%zero', 't', tensors)}"
    return f"""
        shapejit.kernel @k symbols 2 ({named(f"%x{{}}: {x}", tensors)}) {{
          {named("%m{}", totals)} = shapejit.loop over [s0, s1] ins({read})
              outs({named(f"max {one} : {row}", totals)}) {{
          ^bb0({named("%av{}: bf16", tensors)}):
            {added}
            shapejit.yield {named("%t", totals)} : {named("bf16", totals)}
          }}
          %s = shapejit.loop over [s0, s1] ins({read}, {taken}) outs(add {one} : {row}) {{
          ^bb0({named("%av{}: bf16", tensors)}, {named("%sv{}: bf16", totals)}):
            {added}
            {folded("subf", "%t", "d", totals)}
            shapejit.yield %d : bf16
          }}
          %y = shapejit.loop over [s0, s1] ins({read}, %s at {one} : {row}) outs({own} : {x}) {{
          ^bb0({named("%av{}: bf16", tensors)}, %v: bf16):
            {added}
            %d = arith.subf %t, %v : bf16
            shapejit.yield %d : bf16
          }}
          shapejit.yield %y : {x}
        }}"""


@pytest.mark.parametrize("totals", [1, 8, 16])
@pytest.mark.parametrize("tensors", [1, 30])
def test_shared_memory_has_room_for_rows_and_what_they_add_up_to(tensors: int, totals: int) -> None:
    """A vector a thread of 30 tensors has none, and what 8 totals need is more than 1024 bytes."""
    text = distances(tensors, totals)
    kernel = GpuKernel(text, sizes={0: (1, None), 1: (1, None)})
    assert any(LoopSchedule.parse(variant).shared for variant in kernel.variants) == (tensors == 1)
    for variant in dict.fromkeys(kernel.variants):
        GpuKernel(text, variant)


def test_rows_of_unknown_length_have_variants_by_length() -> None:
    kernel = GpuKernel(samples.softmax("bf16").text, sizes={0: (1, 5000), 1: (1, None)})
    assert kernel.axes == [Expr.symbol(1), Expr.symbol(0)]
    assert [bucket[:2] for bucket in kernel.buckets] == [
        ((1, 1), (1024, 5000)),
        ((1025, 1), (8192, 5000)),
        *(
            ((lower, fewest), (upper, most))
            for lower, upper in ((8193, 26624), (26625, 53248))
            for fewest, most in ((1, 8), (9, 16), (17, 33), (34, 132), (133, 5000))
        ),
        *(
            ((53249, fewest), (106496, most))
            for fewest, most in ((1, 8), (9, 16), (17, 33), (34, 5000))
        ),
        ((106497, 1), (425984, 8)),
        ((106497, 9), (425984, 5000)),
        ((425985, 1), (None, 8)),
        ((425985, 9), (None, 16)),
        ((425985, 17), (None, 33)),
        ((425985, 34), (None, 5000)),
    ]
    chosen = [LoopSchedule.parse(variant) for variant in kernel.variants]
    assert [each.row_capacity for each in chosen[:2]] == [1024, 8192]
    # Of few rows one variant serves all lengths; of many the longest are read again.
    assert len(set(kernel.variants)) == 10
    assert all(each.shared for each in chosen[2:-1])
    assert (chosen[-1].chunks, chosen[-1].shared) == (0, False)
    assert [each.cluster for each in chosen[2:7]] == [16, 8, 4, 2, 1]


def test_all_rows_of_a_variant_have_room() -> None:
    kernel = GpuKernel(samples.softmax("bf16").text, sizes={0: (34, 5000), 1: (1, None)})
    for _, (longest, *_), variant, _ in kernel.buckets[:-1]:
        assert longest is not None
        assert LoopSchedule.parse(variant).row_capacity >= longest


def test_bounds_of_a_length_bound_the_variants() -> None:
    kernel = GpuKernel(samples.softmax("bf16").text, sizes={0: (1, 64), 1: (2000, 3000)})
    assert (kernel.axes, len(kernel.buckets)) == ([], 1)
    assert LoopSchedule.parse(kernel.variants[0]).row_capacity >= 3000
    kernel = GpuKernel(samples.softmax("bf16").text, sizes={0: (1, 64), 1: (0, 200)})
    assert (kernel.axes, len(kernel.buckets)) == ([], 1)
    assert LoopSchedule.parse(kernel.variants[0]).row_capacity >= 200


def test_columns_take_4_bytes_a_lane_or_8() -> None:
    kernel = GpuKernel(
        samples.column_sum("bf16", 384).text, sizes={0: (1, 32), 1: (1, 256), 2: (0, 0)}
    )
    assert kernel.axes == [Expr.symbol(0) * Expr.symbol(1)]
    chosen = [LoopSchedule.parse(variant) for variant in kernel.variants]
    assert [(each.vector, each.threads) for each in chosen] == [(2, 256), (4, 512)]


def test_more_rows_get_more_threads() -> None:
    """A warp has one row, as long as multiprocessors hold so many."""
    kernel = GpuKernel(samples.layer_norm("bf16", 384).text, sizes={0: (1, 8192), 1: (0, 0)})
    assert kernel.axes == [Expr.symbol(0)]
    chosen = [LoopSchedule.parse(variant) for variant in kernel.variants]
    assert [(each.threads, each.ctas) for each in chosen] == [(64, 1), (128, 2), (256, 4)]
    bounds = [(lower, upper) for (lower,), (upper,), _, _ in kernel.buckets]
    assert bounds == [(1, 264), (265, 1056), (1057, 8192)]


def test_warps_share_rows_that_are_always_few() -> None:
    chosen = schedule(samples.layer_norm("bf16", 384), {0: (1, 32), 1: (0, 0)})
    assert (chosen.vector, chosen.warps, chosen.chunks) == (1, 4, 3)
    chosen = schedule(samples.layer_norm("bf16", 384), {0: (1, 1000), 1: (0, 0)})
    assert chosen.warps == 1


@pytest.mark.parametrize(("most", "wide"), [(1 << 20, False), (1 << 23, True), (None, True)])
def test_width_of_indices(most: int | None, wide: bool) -> None:
    """2^23 rows of 384 elements are more than 2^30."""
    chosen = schedule(samples.layer_norm("bf16", 384), {0: (1, most), 1: (0, 0)})
    assert chosen.wide == wide


def test_two_spaces_of_points() -> None:
    """Two loops that share nothing get the vectors of the narrower one."""
    one, two = (samples.pointwise(element).text for element in ("bf16", "f32"))
    first = one[one.index("%0 =") : one.index("shapejit.yield %0")]
    second = two[two.index("%0 =") : two.index("shapejit.yield %0")].replace("%0 =", "%1 =")
    second = second.replace("%x", "%a").replace("%y", "%b")
    half, full = (t[t.index("tensor<") : t.index(", %y")] for t in (one, two))
    text = f"""
      shapejit.kernel @k symbols 2 (%x: {half}, %y: {half}, %a: {full}, %b: {full}) {{
        {first}
        {second}
        shapejit.yield %0, %1 : {half}, {full}
      }}"""
    assert LoopSchedule.parse(GpuKernel(text).variant).vector == 4


# Machine code -------------------------------------------------------------------------------------

KERNELS = {
    "norm": samples.layer_norm("bf16", 384),
    "norm of f64": samples.layer_norm("f64", 384),
    "wide norm": samples.layer_norm("bf16", 768, residual=True),
    "norm of several warps": samples.layer_norm("f32", 4096),
    "softmax": samples.softmax("bf16"),
    "gelu": samples.pointwise("bf16", "gelu", rank=2),
    "columns": samples.column_sum("bf16", 384),
    "embedding": samples.embedding("bf16", 384),
}


@pytest.mark.parametrize("name", KERNELS)
def test_no_spills_and_no_warnings(name: str) -> None:
    kernel = GpuKernel(KERNELS[name].text, block=True, programmatic=True)
    cubin = kernel.assemble()
    [resources] = cubin.resources.values()
    assert not cubin.warnings
    assert resources.spill_store_bytes == resources.spill_load_bytes == resources.stack_bytes == 0
    schedule = LoopSchedule.parse(kernel.variant)
    assert resources.registers * schedule.threads * schedule.ctas <= 65536


@pytest.mark.parametrize(
    ("element", "bounds"),
    [*((each, (0, 300)) for each in FLOATS), ("bf16", (0, None)), ("f32", (0, None))],
)
def test_softmax_does_not_spill(element: str, bounds: tuple[int, int | None]) -> None:
    sizes: Ranges = {0: (0, None), 1: bounds}
    for variant in set(GpuKernel(samples.softmax(element).text, sizes=sizes).variants):
        kernel = GpuKernel(samples.softmax(element).text, variant)
        [resources] = kernel.assemble().resources.values()
        # With indices of 64 bits a word of rows that are read again has no register. One CTA a
        # multiprocessor in place of two had some, and took 69 us for 59 of 512 rows of 50257.
        most = 4 if LoopSchedule.parse(variant).wide else 0
        assert resources.spill_store_bytes <= most, variant


@sass.needs_nvdisasm
@pytest.mark.parametrize("name", ["norm", "norm of several warps", "columns"])
def test_instructions(name: str) -> None:
    kernel = GpuKernel(KERNELS[name].text, block=True, programmatic=True)
    [code] = sass.disassemble(kernel.assemble().data).values()
    assert not code.local_memory
    assert not code.read_never_written
    assert code.count("SHFL") >= (10 if name != "columns" else 0)
    # In block form there is one barrier after the words of the block were copied.
    assert (code.count("BAR") > 1) == (name != "norm")
    assert code.count("LDG.E.64") + code.count("LDG.E.128") > 0 or name == "columns"


# The interface ------------------------------------------------------------------------------------


def test_parameters_are_pointers_and_sizes() -> None:
    interface = GpuKernel(samples.layer_norm("bf16", 384).text, block=True).interface
    assert {type(parameter) for parameter in interface.parameters} == {Pointer, Size}
    assert interface.block
    assert interface.grid.ctas_per_sm == 1
    offsets = [parameter.offset for parameter in interface.parameters]
    assert len(set(offsets)) == len(offsets)


def test_block_is_read_once_by_each_cta() -> None:
    """All words by one coalesced load; the warps get them from shared memory."""
    kernel = GpuKernel(samples.layer_norm("bf16", 384, residual=True).text, block=True)
    text = str(kernel._gpu_module)
    assert text.count("ld.relaxed.gpu.global.u32") == 1
    assert text.index("ld.relaxed.gpu.global.u32") < text.index("gpu.barrier")
    words = sum(
        parameter.bytes if isinstance(parameter, Size) else 8
        for parameter in kernel.interface.parameters
    )
    assert words == 44
    assert text.count("!llvm.ptr<3> -> i64") + text.count("!llvm.ptr<3> -> i32") == 6
    [resources] = kernel.assemble().resources.values()
    assert resources.shared_bytes <= 1024


def test_grid_has_no_more_ctas_than_work() -> None:
    """2 rows a CTA, of a kernel with parameters by value."""
    interface = GpuKernel(samples.layer_norm("bf16", 384).text).interface
    [(value, tile)] = interface.grid.tiles
    units = Expr.parse(interface.values[value])
    assert tile == 1
    assert [units.evaluate([m, 0]) for m in (0, 1, 2, 3)] == [0, 1, 1, 2]
