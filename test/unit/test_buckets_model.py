# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The cost model against a scalar rendering of docs/cost-model.md, and what must always hold."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import mlir.ir as ir
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shapejit.ir as sir
from shapejit.passes.buckets import model
from shapejit.passes.buckets.constants import Constants, constants_of, data_file, factor_key
from shapejit.passes.buckets.device import DEVICES, H200, Device, device_of_target
from shapejit.passes.buckets.model import Bound, CostModel, fitting, loaded_bytes, resident_ctas
from shapejit.passes.buckets.problem import GemmSizes, GemmTraits
from shapejit.passes.nvgpu import scheduling
from shapejit.passes.nvgpu.body_cost import body_cycles
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.lowering import lower_variant
from shapejit.passes.nvgpu.schedule import CANDIDATES, UNALIGNED, GemmSchedule
from shapejit.passes.nvgpu.target import HOPPER

TURNS = GemmSchedule.parse("swapped_128x128x64_s6_w2_turns")
SPLITS = tuple(
    map(GemmSchedule.parse, ("swapped_128x144x64_s6_w2_k3", "persistent_128x256x64_s4_w2_k2"))
)
ALL = (*dict.fromkeys((*CANDIDATES, TURNS, *SPLITS)), UNALIGNED)
PLAIN = GemmTraits()
CONSTANTS = Constants()

dims = st.integers(1, 20_000)
problems = st.tuples(dims, dims, dims, st.integers(1, 64))
traits = st.builds(
    GemmTraits,
    result_bytes=st.sampled_from([2, 4]),
    extra_bytes=st.sampled_from([0, 2, 4]),
    lhs_shared=st.booleans(),
    rhs_shared=st.booleans(),
)


def together(first: float, second: float, leak: float) -> float:
    longer, shorter = max(first, second), min(first, second)
    return longer + leak * shorter**2 / longer


def reference(
    schedule: GemmSchedule, size: tuple[int, int, int, int], traits: GemmTraits, c: Constants
) -> float:
    """The time in microseconds by the formulas of docs/cost-model.md, one number at a time."""
    m, n, k, batch = size
    rows_length, columns_length = (n, m) if schedule.swapped else (m, n)
    row_tiles = math.ceil(rows_length / (schedule.rows * schedule.columns_shared))
    column_tiles = math.ceil(columns_length / (schedule.columns * schedule.rows_shared))
    slots = {1: 132, 2: 66, 3: 39, 4: 30}[schedule.cluster]
    steps = math.ceil(k / schedule.depth)
    clusters = batch * row_tiles * column_tiles
    tiles = math.ceil(clusters / slots)
    rings = resident_ctas(H200, schedule, traits)

    cycles_of_one = max(schedule.columns / 2, 16 + schedule.columns / 4)
    cycles = schedule.rows / 64 * schedule.depth / 16 * cycles_of_one
    factor = c.factors.get(factor_key(schedule), 1.0)
    tensor_step = cycles / (1980 * c.tensor_efficiency) * factor
    fill_step = loaded_bytes(schedule, traits) / (c.fill_rate * 1000) * factor

    partial = schedule.rows * schedule.columns * 4
    in_cluster = schedule.split if schedule.family == "small_m" else 1
    work = tiles * math.ceil(steps / in_cluster)
    handed_over = 0.0
    if in_cluster > 1:
        sent = (in_cluster - 1) * partial / in_cluster
        handed_over = c.split + sent / (c.split_rate * 1000)
    waves, rest = divmod(clusters, slots)
    left = rest * steps
    sharers = max(min(slots, 3 * rest, left // 4), 1)
    if schedule.stream and rest and 100 * steps > 108 * left // sharers + 600:
        work = waves * steps + math.ceil(left / sharers)
        handed_over = c.handover + math.ceil(sharers / rest) * partial / (c.handover_rate * 1000)
    more = max(round(2600 / cycles), 1)
    parts = min(schedule.split // in_cluster, slots // max(rest, 1), max(steps - more, 0) // 4)
    if rest and parts > 1:
        work = waves * steps + steps - (parts - 1) * ((steps - more) // parts)
        handed_over = c.handover + (parts - 1) * partial / (c.handover_rate * 1000)
    latency = work / min(tiles, rings) * c.latency / schedule.stages
    asked = clusters * steps * schedule.cluster / in_cluster * loaded_bytes(schedule, traits)
    if in_cluster > 1 and column_tiles > 1:
        fill_step *= c.crowding
        asked *= c.crowding
    busy = max(together(work * tensor_step, work * fill_step, c.interference), latency)
    busy += work * c.step

    lhs = m * k * traits.element_bytes * (1 if traits.lhs_shared else batch)
    rhs = n * k * traits.element_bytes * (1 if traits.rhs_shared else batch)
    group = min(row_tiles, max(2048 // (schedule.rows * schedule.columns_shared), 1))
    at_once = max(min(slots / group, column_tiles), 1)
    row_reads, column_reads = column_tiles / at_once, row_tiles / group
    if schedule.swapped:
        lhs_reads, rhs_reads = column_reads, row_reads
    else:
        lhs_reads, rhs_reads = row_reads, column_reads
    kept = 60 * 2**20 / 2
    moved = lhs * (1 if lhs <= kept else max(lhs_reads, 1))
    moved += rhs * (1 if rhs <= kept else max(rhs_reads, 1))
    moved += batch * m * n * (traits.result_bytes + traits.extra_bytes)
    memory = moved / (c.memory_rate * 1000)
    busy = together(busy, (asked + moved) / (c.cache_rate * 1000), c.interference)

    groups = schedule.columns // 8
    owned = schedule.rows * 8 * -(-groups // in_cluster)
    halves = traits.result_bytes == traits.extra_bytes == traits.element_bytes == 2
    whole = schedule.family != "small_m" and schedule.split == 1
    one_tile = not schedule.stream and not schedule.turns
    in_boxes = schedule.swapped or schedule.columns % 64 == 0
    in_ring = halves and whole and one_tile and in_boxes
    read = owned * (0 if in_ring else traits.extra_bytes)
    stored = schedule.rows * schedule.columns * traits.result_bytes + read
    epilogue = c.epilogue + stored / (c.epilogue_rate * 1000)
    launch = c.launch + c.latency + (c.cluster_launch if schedule.cluster > 1 else 0)
    overlapped = together(busy, memory, c.leak)
    more = math.ceil(tiles / rings) - 1
    exposed = max(epilogue - overlapped / tiles, 0) / 2 if schedule.turns else epilogue
    return launch + overlapped + epilogue + more * exposed + handed_over


@given(problems, traits, st.sampled_from(ALL))
def test_the_formulas(
    size: tuple[int, int, int, int], traits: GemmTraits, schedule: GemmSchedule
) -> None:
    constants = dataclasses.replace(CONSTANTS, factors={factor_key(schedule): 1.25})
    [[time]] = CostModel(H200, [schedule], traits, constants).times(GemmSizes(*size, traits=traits))
    assert time == pytest.approx(reference(schedule, size, traits, constants), rel=1e-9)


@given(st.lists(problems, min_size=1, max_size=8))
def test_many_problems_at_once_are_each_alone(sizes: list[tuple[int, int, int, int]]) -> None:
    m, n, k, batch = map(list, zip(*sizes, strict=True))
    costs = CostModel(H200, ALL, constants=CONSTANTS)
    together = costs.times(GemmSizes(m, n, k, batch))
    assert together.shape == (len(sizes), len(ALL))
    for row, size in zip(together, sizes, strict=True):
        np.testing.assert_array_equal(row, costs.times(GemmSizes(*size))[0])


@given(problems, st.integers(0, 3), st.integers(1, 5_000))
def test_more_work_is_never_faster(size: tuple[int, int, int, int], which: int, more: int) -> None:
    # Tiles are shared from some depth on, and while there are few of them.
    still = tuple(s for s in ALL if not s.stream and s.split == s.cluster_split)
    larger = list(size)
    larger[which] += more
    costs = CostModel(H200, still, constants=CONSTANTS)
    before, after = costs.times(GemmSizes(*size)), costs.times(GemmSizes(*larger))
    assert (after >= before - 1e-9).all()


def test_the_kernel_shares_by_the_same_rule() -> None:
    assert model.GROUP_ROWS == scheduling._GROUP_ROWS
    assert model.SHARED_TILE == scheduling._SHARED_TILE
    assert model.HANDOVER_STAGES == scheduling._HANDOVER_STAGES
    assert model.MAX_SHARERS == scheduling._MAX_SHARERS
    assert model.MIN_SHARE == scheduling._MIN_SHARE


def test_sharing_the_last_wave() -> None:
    streaming = GemmSchedule.parse("persistent_128x256x64_s4_w2_stream")
    still = dataclasses.replace(streaming, stream=False)
    costs = CostModel(H200, [streaming, still], constants=CONSTANTS)
    # 66 tiles are half a wave: all multiprocessors work on them for half the time.
    half = costs.parts(GemmSizes(128, 66 * 256, 4096))
    assert half.tensor_cores[0, 0] == pytest.approx(half.tensor_cores[0, 1] / 2)
    # A full wave is not shared, and neither is one that is nearly full.
    for tiles in (132, 264, 260):
        full = costs.parts(GemmSizes(128, tiles * 256, 4096))
        assert full.time[0, 0] == full.time[0, 1]


@pytest.mark.parametrize("tiles", [20, 44, 132 + 44])
def test_sharing_without_a_cluster(tiles: int) -> None:
    """Three multiprocessors for a tile: a third of the time, and what the owner has more."""
    split = SPLITS[0]
    alone = dataclasses.replace(split, split=1)
    costs = CostModel(H200, [split, alone], constants=CONSTANTS)
    full = tiles // 132

    def share(tiles: int, depth: int) -> float:
        parts = costs.parts(GemmSizes(144, 128 * tiles, 64 * depth))
        return float(parts.tensor_cores[0, 0] / parts.tensor_cores[0, 1])

    assert share(tiles, 104) == pytest.approx((full + (104 - 2 * 33) / 104) / (full + 1))
    # Two, where there are not enough for three, or where parts would be short.
    assert share(132 * full + 60, 104) == pytest.approx((full + 55 / 104) / (full + 1))
    assert share(tiles, 15) == pytest.approx((full + 10 / 15) / (full + 1))
    assert share(132 * full + 67, 104) == share(tiles, 12) == 1


def gained(name: str, m: int, n: int, k: int) -> tuple[float, float]:
    """What a schedule gains by an early start, in microseconds, and what it takes without."""
    late = GemmSchedule.parse(name)
    early = dataclasses.replace(late, early=True)
    [times] = CostModel(H200, [late, early], constants=CONSTANTS).times(GemmSizes(m, n, k))
    return float(times[0] - times[1]), float(times[0])


def test_an_early_start_hides_the_launch() -> None:
    gain, cluster = CONSTANTS.early_gain, CONSTANTS.cluster_launch
    # 132 tiles; and 32 clusters of the 66 that run at once, which find room beside the last ones.
    full, _ = gained("small_m_64x16x64_s16_w1", 16, 64 * 132, 4096)
    assert full == pytest.approx(gain)
    beside, _ = gained("small_m_64x16x64_s16_w1_k2", 10, 2048, 5632)
    assert beside == pytest.approx(gain + cluster)


def test_an_early_start_where_some_of_the_gpu_stays_free() -> None:
    lost, late = gained("small_m_128x80x64_s6_w2_k2", 73, 5120, 13824)  # 40 clusters of 66
    assert lost < -0.1 * late
    # As many tiles, but up to three CTAs for each.
    fuller, _ = gained("swapped_128x80x64_s8_w2_k3", 73, 5120, 13824)
    assert fuller > lost / 3
    # Two CTAs find room on a multiprocessor, so they do not go beside the last ones.
    stacked, _ = gained("small_m_64x16x64_s9_w1_k4", 6, 2048, 5632)
    assert stacked < 0


def test_an_early_start_where_tiles_read_the_same_weights() -> None:
    lost, late = gained("persistent_64x192x64_s6_w1_k2", 175, 4096, 14336)  # three tiles of rows
    assert lost < -0.1 * late
    one, _ = gained("swapped_128x144x64_s6_w2_k4", 140, 4096, 14336)
    assert one == pytest.approx(CONSTANTS.early_gain, abs=0.8)


def test_arithmetic_of_an_epilogue() -> None:
    """It is added for every tile, but for those beside which the other consumer multiplies."""
    names = ("persistent_128x256x64_s4_w2", "swapped_128x176x64_s5_w2_turns")
    schedules = list(map(GemmSchedule.parse, names))
    plain, heavy = (
        CostModel(H200, schedules, GemmTraits(body_cycles=cycles), constants=CONSTANTS).times(
            GemmSizes(4096, 4096, 4096)
        )[0]
        for cycles in (0.0, 16.0)
    )
    tile = 16.0 * 256 / (1e3 * H200.clock_ghz)  # of 128 rows, an element for each thread's lane
    assert heavy[0] - plain[0] == pytest.approx(4 * tile)
    assert heavy[1] - plain[1] == pytest.approx(tile * 176 / 256)


def test_arithmetic_of_an_epilogue_in_a_cluster() -> None:
    """CTAs that share K each have that of their columns, in groups of 8."""
    names = ("small_m_64x96x64_s10_w1", "small_m_64x96x64_s10_w1_k3", "small_m_64x72x64_s10_w1_k2")
    for name, columns in zip(names, (96, 32, 40), strict=True):
        plain, heavy = (
            CostModel(H200, [GemmSchedule.parse(name)], traits, constants=CONSTANTS).times(
                GemmSizes(96, 64, 3072)
            )[0, 0]
            for traits in (GemmTraits(), GemmTraits(body_cycles=16.0, extra_bytes=2))
        )
        read = 64 * columns * 2 / (1e3 * CONSTANTS.epilogue_rate)
        cycles = 16.0 * 64 * columns / 128 / (1e3 * H200.clock_ghz)
        assert heavy - plain == pytest.approx(read + cycles, rel=0.05), name


def test_a_residual_that_comes_through_the_ring() -> None:
    """Consumers wait for one of 32 bits, and where clusters share tiles for one of 16."""
    names = ("persistent_128x256x64_s4_w2", "persistent_128x256x64_s4_w2_stream")
    schedules = list(map(GemmSchedule.parse, names))

    def more(extra_bytes: int) -> list[float]:
        plain, read = (
            CostModel(H200, schedules, traits, constants=CONSTANTS).parts(
                GemmSizes(2048, 4096, 4096)
            )
            for traits in (GemmTraits(), GemmTraits(extra_bytes=extra_bytes))
        )
        return list((read.epilogue - plain.epilogue)[0])

    tile = 128 * 256 / (1e3 * CONSTANTS.epilogue_rate)
    assert more(2) == pytest.approx([0.0, 2 * 2 * tile])  # two waves
    assert more(4) == pytest.approx([2 * 4 * tile, 2 * 4 * tile])


def test_cycles_of_a_body() -> None:
    assert body_cycles([]) == 0
    assert body_cycles(["arith.addf", "arith.constant", "shapejit.yield", "arith.truncf"]) == 1.5
    # What takes the special units longer than all else takes to be issued.
    assert body_cycles(["math.rsqrt", "arith.mulf"]) == 8
    assert body_cycles(["math.erf", *["arith.mulf"] * 6]) == 15


def test_what_bounds_a_gemm() -> None:
    names = ("persistent_128x256x64_s4_w2_stream", "small_m_64x16x64_s9_w1")
    costs = CostModel(H200, list(map(GemmSchedule.parse, names)))
    bounds = costs.parts(GemmSizes([8192, 1, 1], [8192, 28672, 64], [8192, 8192, 64])).bounds()
    assert Bound(int(bounds[0, 0])) is Bound.TENSOR_CORES
    assert Bound(int(bounds[1, 1])) is Bound.MEMORY
    assert Bound(int(bounds[2, 1])) is Bound.LAUNCH
    assert str(Bound.TENSOR_CORES) == "tensor cores"


def test_deeper_rings_hide_latency() -> None:
    deep = GemmSchedule.parse("small_m_64x16x64_s16_w1")
    shallow = dataclasses.replace(deep, stages=2)
    parts = CostModel(H200, [shallow, deep], constants=CONSTANTS).parts(GemmSizes(16, 64, 65536))
    assert parts.latency[0, 0] > 6 * parts.latency[0, 1]
    assert Bound(int(parts.bounds()[0, 0])) is Bound.LATENCY


def test_multicast_asks_for_less() -> None:
    alone = GemmSchedule.parse("small_m_64x64x64_s12_w1")
    pair = dataclasses.replace(alone, rows_shared=2)
    assert loaded_bytes(alone, PLAIN) == (64 + 64) * 64 * 2
    assert loaded_bytes(pair, PLAIN) == (32 + 64) * 64 * 2
    gated = GemmTraits(weights=2)
    assert loaded_bytes(pair, gated) == (2 * 32 + 64) * 64 * 2


def test_what_fits_a_multiprocessor() -> None:
    def ctas(text: str, weights: int = 1) -> int:
        return resident_ctas(H200, GemmSchedule.parse(text), GemmTraits(weights=weights))

    assert ctas("persistent_128x256x64_s4_w2") == 1
    assert ctas("persistent_128x256x64_s4_w2", weights=2) == 0  # accumulators
    assert ctas("swapped_128x128x64_s6_w2", weights=2) == 0  # shared memory
    assert ctas("swapped_128x128x64_s4_w2", weights=2) == 1
    assert ctas("small_m_64x16x64_s9_w1") == 2
    assert fitting(H200, ALL, PLAIN) == ALL
    large = GemmSchedule.parse("persistent_128x256x64_s4_w2")
    with pytest.raises(ValueError, match="persistent_128x256x64_s4_w2 does not fit"):
        CostModel(H200, [large], GemmTraits(weights=2))


TEXT = """
!lhs = tensor<?x?xbf16, #shapejit.shape<[LHS]>>
!rhs = tensor<?x?xbf16, #shapejit.shape<[RHS]>>
shapejit.kernel @g symbols 3 (%x: !lhs, %w: !rhs) {
  %0 = shapejit.gemm over [s0, s1, s2]
      lhs(%x at affine_map<(s0, s1, s2) -> (LHS)> : !lhs)
      rhs(%w at affine_map<(s0, s1, s2) -> (RHS)> : !rhs)
      -> tensor<?x?xbf16, #shapejit.shape<[s0, s1]>>
  shapejit.yield %0 : tensor<?x?xbf16, #shapejit.shape<[s0, s1]>>
}"""


@pytest.mark.parametrize(
    ("lhs", "rhs"), [("s0, s2", "s1, s2"), ("s2, s0", "s1, s2"), ("s0, s2", "s2, s1")]
)
def test_what_fits_can_be_lowered(lhs: str, rhs: str) -> None:
    traits = GemmTraits(lhs_k_major=lhs == "s0, s2", rhs_k_major=rhs == "s1, s2")
    text = TEXT.replace("LHS", lhs).replace("RHS", rhs)
    for schedule in (*CANDIDATES, TURNS):
        with ir.Context(), ir.Location.unknown():
            module = ir.Module.parse(text)
            [kernel] = sir.kernels(module).values()
            if resident_ctas(H200, schedule, traits):
                lower_variant(kernel, schedule, HOPPER)
            else:
                with pytest.raises(LoweringError, match="bytes of shared memory"):
                    lower_variant(kernel, schedule, HOPPER)


def test_something_must_be_compared() -> None:
    with pytest.raises(ValueError, match="of no schedules"):
        CostModel(H200, ())


def test_resident_clusters() -> None:
    assert [H200.clusters(size) for size in (1, 2, 3, 4)] == [132, 66, 39, 30]
    assert H200.clusters(8) == 117 // 8
    assert H200.clusters(500) == 1


def test_targets() -> None:
    assert device_of_target("cuda:sm_90a:h200") is H200
    assert device_of_target("cuda:sm_90a") is H200
    with pytest.raises(ValueError, match='no device is described for the target "cuda:sm_80"'):
        device_of_target("cuda:sm_80")


def test_constants_are_kept_as_data() -> None:
    constants = dataclasses.replace(CONSTANTS, factors={"small_m_64x16x64_s9_w1": 1.125})
    assert Constants.of_record(constants.record()) == constants
    assert Constants.of_record(constants.record()).factors == constants.factors
    incomplete = constants.record()
    del incomplete["leak"]
    with pytest.raises(ValueError, match="missing or unknown are leak"):
        Constants.of_record(incomplete)
    with pytest.raises(ValueError, match="positive numbers"):
        Constants.of_record({**constants.record(), "leak": 0})


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
def test_every_device_has_constants(device: Device) -> None:
    name = device.name
    assert Path(data_file(name)).is_file()
    assert constants_of(name).memory_rate > 0
