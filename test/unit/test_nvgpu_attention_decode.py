# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention kernels that divide the keys of few queries: on a simulated GPU against float64, their
code, and which sizes they serve."""

from __future__ import annotations

import dataclasses

import mlir.ir as ir
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from reference import sass
from reference.hopper.memory import SimulationError
from shapejit import ir as sir
from shapejit.gpu.interface import Workspace
from shapejit.passes.buckets.device import H200
from shapejit.passes.nvgpu.attention import decode_choice, decode_partial, ptx
from shapejit.passes.nvgpu.attention.choice import Bounds
from shapejit.passes.nvgpu.attention.decode_rows import group_of
from shapejit.passes.nvgpu.attention.decode_schedule import SplitSchedule
from shapejit.passes.nvgpu.attention.lowering import choose
from shapejit.passes.nvgpu.attention.problem import attention_problem
from unit.cpu_kernels import examples
from unit.simulated_attention import Attention, check, lowered
from unit.simulated_programs import simulated

PLAIN = "split_64x32_s3_c2"
GROUPS = "split_64x32_g2_s4_c1"
SCHEDULES = [PLAIN, GROUPS, "split_64x64_i2_c1", "split_64x32_g4_s3_c1"]

# A simulated GPU has few multiprocessors; so tiles are taken whole, in parts, and evenly.
PLACES = st.sampled_from([1, 2, 5])
QUERIES = st.one_of(st.sampled_from([1, 0, 2, 16, 17]), st.integers(0, 40))
KEYS = st.one_of(st.sampled_from([0, 1, 31, 32, 33, 64, 65, 129]), st.integers(0, 200))


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(
    b=st.sampled_from([1, 0, 3]),
    m=QUERIES,
    n=KEYS,
    block=st.booleans(),
    places=PLACES,
    seed=st.integers(0, 1000),
)
@examples(3)
def test_any_sizes(
    schedule: str, b: int, m: int, n: int, block: bool, places: int, seed: int
) -> None:
    attention = Attention(heads=2, kv_heads=1, layout="bhm", causal="s2 - s1")
    form = {"block": block, "programmatic": block}
    check(attention, schedule, b, m, n, multiprocessors=places, seed=seed, **form)


VARIANTS = {
    "a head of its own": Attention(),
    "heads of one tensor": Attention(heads=4, kv_heads=2),
    "eight queries a key": Attention(heads=8, kv_heads=1, layout="bhm", causal="s2 - s1"),
    "four queries a key": Attention(heads=8, kv_heads=2, layout="bhm"),
    "three queries a key": Attention(heads=6, kv_heads=2, layout="bhm", mask="i1"),
    "keys transposed": Attention(heads=2, layout="bhdm"),
    "a mask of each head": Attention(4, 2, mask="i1", mask_shape="s0, 4, 1, s2"),
    "full bool mask": Attention(4, 2, mask="i1", mask_shape="s0, 4, s1, s2"),
    "float mask": Attention(4, 2, mask="f32", mask_shape="1, 1, s1, s2", causal="s2 - s1"),
    "first queries see nothing": Attention(heads=2, kv_heads=1, causal="-3"),
    "f16": Attention(heads=2, kv_heads=1, element="f16", mask="i1"),
    "heads of 64": Attention(heads=2, kv_heads=1, d=64),
    "heads of 128": Attention(heads=4, kv_heads=1, d=128, causal="s2 - s1"),
    "odd heads": Attention(heads=2, kv_heads=1, d=20, dv=20),
    "rows that start anywhere": Attention(heads=2, kv_heads=1, d=7, dv=5),
    "longer values": Attention(heads=2, kv_heads=1, d=32, dv=96),
    "shorter values": Attention(heads=2, kv_heads=1, d=80, dv=24),
    "negative scale": Attention(heads=1, scale=-0.3),
}


@pytest.mark.parametrize("name", VARIANTS)
@given(
    schedule=st.sampled_from([PLAIN, GROUPS]),
    m=st.integers(1, 9),
    n=st.integers(1, 200),
    places=PLACES,
)
@examples(1)
def test_variants(name: str, schedule: str, m: int, n: int, places: int) -> None:
    check(VARIANTS[name], schedule, 1, m, n, multiprocessors=places)


@pytest.mark.parametrize("operand", [0, 1, -1])
def test_addresses_that_are_no_multiples_of_16(operand: int) -> None:
    shifts = [0] * 4
    shifts[operand] = 2
    attention = Attention(heads=2, kv_heads=1, layout="bhm")
    check(attention, PLAIN, 1, 2, 70, shifts=shifts, multiprocessors=2)


def test_results_do_not_vary() -> None:
    """Whatever the order of events: whoever is last adds the parts in one order."""
    attention = Attention(heads=2, kv_heads=1, layout="bhm")
    kernel = lowered(attention, PLAIN)
    torch.manual_seed(0)
    inputs = attention.inputs(1, 3, 300)
    results = [kernel.run(inputs, 1, 3, 300, multiprocessors=2, seed=seed) for seed in range(3)]
    assert all(torch.equal(results[0], result) for result in results)


def test_both_forms_give_the_same_bits() -> None:
    """However many CTAs a graph has to spare, those that work are as many."""
    attention = Attention(heads=2, kv_heads=1, layout="bhm")
    torch.manual_seed(0)
    inputs = attention.inputs(1, 1, 100)
    plain, block = (
        lowered(attention, PLAIN, form, form).run(inputs, 1, 1, 100, multiprocessors=3)
        for form in (False, True)
    )
    assert torch.equal(plain, block)


# What the simulated GPU would find ----------------------------------------------------------------


def test_the_last_one_must_add_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were parts added as soon as the tile's owner is done, some would be missing."""
    attention = Attention(heads=1)
    monkeypatch.setattr(ptx, "count_up", lambda address: ptx.value(2))
    kernel = lowered.__wrapped__(attention, PLAIN)
    inputs = attention.inputs(1, 1, 300)
    expected = attention.reference(inputs, 1, 1, 300)
    with pytest.raises((SimulationError, AssertionError)):
        for seed in range(4):
            got = kernel.run(inputs, 1, 1, 300, multiprocessors=2, seed=seed)
            worst = (got.double() - expected).abs() - attention.allowed(inputs, expected)
            assert (worst <= 0).all()


def test_counters_must_be_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_partial.base_ptx, "lower_flag", lambda _: None)
    kernel = lowered.__wrapped__(Attention(heads=1), PLAIN)
    with pytest.raises(SimulationError, match="workspace is not left at zero"):
        kernel.run(Attention(heads=1).inputs(1, 1, 300), 1, 1, 300)


# Forms --------------------------------------------------------------------------------------------


def test_scratch_memory() -> None:
    """Two slots a CTA, of 64 rows with their maxima and totals; a counter for each CTA."""
    for block in (False, True):
        interface = lowered(Attention(heads=4, d=64), GROUPS, block).interface
        [scratch] = [each for each in interface.parameters if isinstance(each, Workspace)]
        assert scratch.bytes_per_cta == 2 * 64 * (64 * 4 + 8)
        assert scratch.zeroed >= 132 * 4 * interface.grid.ctas_per_sm


def test_scratch_is_not_touched_before_the_wait() -> None:
    kernel = lowered(Attention(heads=4, mask="i1"), GROUPS, block=True, programmatic=True)
    entry, prologue, after = str(kernel.function).split("nvvm.griddepcontrol")
    for access in ("cp.async", "ld.global.", "st.global", "atom."):
        assert access not in entry + prologue
        assert access in after


@pytest.mark.parametrize(
    ("attention", "group"),
    [
        (Attention(8), 1),
        (Attention(8, 2), 4),
        (Attention(8, 1, layout="bhm"), 8),
        (Attention(6, 2, layout="bhdm"), 3),
    ],
)
def test_heads_that_share_keys(attention: Attention, group: int) -> None:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(attention.text)
        problem = attention_problem(sir.kernels(module)["k"])
        assert group_of(problem) == group
        other = dataclasses.replace(problem.v, offset=problem.q.offset)
        assert group_of(dataclasses.replace(problem, v=other)) == 1


# A whole program ----------------------------------------------------------------------------------


class Step(nn.Module):
    """A step of decode: a few tokens over what a cache holds so far."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(32, 128, bias=False)
        self.output = nn.Linear(128, 32, bias=False)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, so_far: Tensor) -> Tensor:
        total = so_far.shape[0]
        heads = self.query(x).unflatten(-1, (4, 32)).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(
            heads, keys[:, :, :total], values[:, :, :total], enable_gqa=True
        )
        found: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return found


def test_in_a_program() -> None:
    """Under a constant graph, with scratch memory, over prefixes of a cache: one kernel for all."""
    torch.manual_seed(0)
    model = Step().bfloat16().eval()
    cache = torch.randn(2, 1, 2, 1024, 32).bfloat16()
    new, total = Dim("new", min=1, max=4), Dim("total", min=1, max=1024)
    args = (torch.zeros(1, 3, 32).bfloat16(), *cache, torch.zeros(300))
    shapes = {"x": {1: new}, "keys": {}, "values": {}, "so_far": {0: total}}
    program, execution = simulated(model, args, shapes)
    assert program.artefacts.gpu is not None and program.artefacts.gpu.graph is not None
    assert program.artefacts.gpu.graph.launches
    assert [each for each in str(program.explain(*args)).split() if "split_64x64_g2_s8" in each]
    for count, length in ((1, 1), (2, 260), (4, 1000)):
        x = torch.randn(1, count, 32).bfloat16()
        with torch.no_grad():
            got, theirs = (each(x, *cache, torch.zeros(length)) for each in (program, model))
            exact = Step().double()
            exact.load_state_dict(model.state_dict())
            expected = exact(x.double(), *cache.double(), torch.zeros(length))
        assert len(execution.launched) == 3
        ours, torchs = ((each.double() - expected).norm() for each in (got, theirs))
        assert ours <= 1.3 * torchs + 1e-3


# Machine code -------------------------------------------------------------------------------------

_CODE = [
    (Attention(32, 8, d=128, layout="bhm", causal="s2 - s1"), decode_choice.SCHEDULES[128]),
    (Attention(32, 8, d=128, layout="bhm"), decode_choice.MANY_TILES[128]),
    (Attention(8, d=64, mask="f32", mask_shape="s0, 1, s1, s2"), decode_choice.SCHEDULES[64]),
    (Attention(8, 2, d=256, layout="bhm"), decode_choice.SCHEDULES[256]),
]


@sass.needs_nvdisasm
@pytest.mark.parametrize(("attention", "schedule"), _CODE)
def test_machine_code(attention: Attention, schedule: SplitSchedule) -> None:
    """Assembled without a warning of serialised products; no spills; no register read unset."""
    cubin = lowered(attention, str(schedule), True, True).assemble()
    [function] = sass.disassemble(cubin.data).values()
    assert function.count("HGMMA") == attention.d // 16 + schedule.keys // 16
    assert function.count("ATOMG") == 1
    assert not function.local_memory
    assert not function.read_never_written


# Choice -------------------------------------------------------------------------------------------


def _chosen(attention: Attention, sizes: dict[int, Bounds]) -> tuple[list[str], list[str]]:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(attention.text)
        axes, buckets = choose(sir.kernels(module)["k"], sizes, H200)
    return list(map(str, axes)), [f"{lower} {upper} {name}" for lower, upper, name, _ in buckets]


DECODE = Attention(32, 8, d=128, layout="bhm", causal="s2 - s1")


def test_one_query_always_divides_its_keys() -> None:
    axes, buckets = _chosen(DECODE, {0: (1, 16), 1: (1, 1), 2: (1, 32768)})
    assert axes == []
    assert buckets == ["() () split_64x32_g2_s6_c1"]


def test_more_tiles_than_multiprocessors_take_two_ctas_each() -> None:
    """Eight groups of heads a batch: 16 batches are 128 tiles, 17 are more than 132."""
    axes, buckets = _chosen(DECODE, {0: (1, 64), 1: (1, 1), 2: (1, 32768)})
    assert axes == ["s0"]
    assert buckets == ["(1,) (16,) split_64x32_g2_s6_c1", "(17,) (64,) split_64x64_s3_c2"]


def test_few_queries_are_taken_out_of_the_rest() -> None:
    sizes = {0: (1, 4), 1: (1, 4096), 2: (1, 8192)}
    axes, buckets = _chosen(DECODE, sizes)
    assert axes[0] == "s1"
    # Four heads share keys: 16 queries are a tile.
    assert buckets[0].startswith("(1, ")
    assert "(16, " in buckets[0]
    assert buckets[0].endswith("split_64x32_g2_s6_c1")
    assert all(bucket.startswith("(17, ") for bucket in buckets[1:])
    assert not any("split" in bucket for bucket in buckets[1:])


def test_queries_that_are_an_axis_already() -> None:
    """Of a batch of one: the buckets of many queries begin after the few."""
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(DECODE.text)
        problem = attention_problem(sir.kernels(module)["k"])
        queries = problem.space[2]
        rest = [((1,), (10,), "a", ""), ((11,), (99,), "b", ""), ((100,), (None,), "c", "")]
        sizes: dict[int, Bounds] = {0: (1, 1), 1: (1, None), 2: (1, None)}
        axes, buckets = decode_choice.with_few_queries(problem, sizes, 16, H200, [queries], rest)
    assert axes == [queries]
    assert [bucket[:2] for bucket in buckets] == [((1,), (16,)), ((17,), (99,)), ((100,), (None,))]
    assert [bucket[2] for bucket in buckets[1:]] == ["b", "c"]


@pytest.mark.parametrize(
    ("attention", "sizes"),
    [
        (Attention(12, layout="packed"), {0: (1, 32), 1: (1, 512)}),  # as many keys as queries
        (DECODE, {0: (1, 4), 1: (1, 64), 2: (1, 256)}),  # nothing to divide
        (DECODE, {0: (1, 4), 1: (17, 64), 2: (1, None)}),  # more rows than one tile has
    ],
)
def test_keys_that_are_not_divided(attention: Attention, sizes: dict[int, Bounds]) -> None:
    _, buckets = _chosen(attention, sizes)
    assert not any("split" in bucket for bucket in buckets)


def test_names_of_schedules() -> None:
    for name in SCHEDULES:
        assert str(SplitSchedule.parse(name)) == name
    for name in ("", "split", "tiles_64x64_c1", "split_128x64_c1", "split_64x64_w2_c1",
                 "split_64x64_c5", "split_64x48_c1"):  # fmt: skip
        with pytest.raises(ValueError, match="names no schedule that divides keys"):
            SplitSchedule.parse(name)
