# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention kernels: on a simulated GPU against float64, and their code."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference import sass
from reference.hopper.memory import SimulationError
from shapejit.gpu.interface import TensorMap
from shapejit.passes.nvgpu.attention import block as block_emitter
from shapejit.passes.nvgpu.attention import emitter, ptx
from shapejit.passes.nvgpu.attention.schedule import AttentionSchedule
from unit.cpu_kernels import examples
from unit.simulated_attention import Attention, check, lowered

PLAIN = "tiles_64x64_c2"
SMALL = "tiles_64x32_c2"
TWO_BLOCKS = "tiles_128x32_c1"
THREE_BLOCKS = "tiles_192x32_c1"
WORKERS = "tiles_64x32_s4_w4_c1"
GROUPED_WORKERS = "tiles_128x32_g2_w2_c1"
SHARES = "tiles_64x64_i2_s3_c1"
TWO_GROUPS = "tiles_64x32_g2_c1"
FOUR_GROUPS = "tiles_64x32_g4_c1"
BOTH = "tiles_128x32_g2_c1"
SCHEDULES = [PLAIN, SMALL, TWO_BLOCKS, THREE_BLOCKS, TWO_GROUPS, FOUR_GROUPS, BOTH]
SCHEDULES += [WORKERS, GROUPED_WORKERS, SHARES]

BATCHES = st.sampled_from([1, 0, 2])
QUERIES = st.one_of(st.sampled_from([0, 1, 63, 64, 65]), st.integers(0, 70))
KEYS = st.one_of(st.sampled_from([0, 1, 31, 32, 33, 64, 65, 129]), st.integers(0, 140))


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(b=BATCHES, m=QUERIES, n=KEYS, block=st.booleans(), seed=st.integers(0, 1000))
@examples(3)
def test_any_sizes(schedule: str, b: int, m: int, n: int, block: bool, seed: int) -> None:
    attention = Attention(heads=1, mask="i1")
    check(attention, schedule, b, m, n, block=block, programmatic=block, seed=seed)


@pytest.mark.parametrize("schedule", ["tiles_64x128_c1", "tiles_64x256_c1", "tiles_64x64_g2_c1"])
def test_wide_blocks(schedule: str) -> None:
    check(Attention(heads=1, mask="i1"), schedule, 1, 40, 300)


VARIANTS = {
    "plain": Attention(),
    "heads of one tensor": Attention(layout="packed", mask="i1"),
    "heads first": Attention(layout="bhm"),
    "grouped queries": Attention(layout="bhm", heads=4, kv_heads=2, mask="i1"),
    "keys transposed": Attention(heads=1, layout="bhdm"),
    "full bool mask": Attention(mask="i1", mask_shape="s0, 2, s1, s2"),
    "mask of queries": Attention(heads=1, mask="i1", mask_shape="1, 1, s1, 1"),
    "float mask": Attention(heads=1, mask="f32", mask_shape="1, 1, s1, s2"),
    "float mask of keys": Attention(heads=1, mask="bf16"),
    "causal": Attention(heads=1, causal="0"),
    "causal with a cache": Attention(heads=1, causal="s2 - s1"),
    "first queries see nothing": Attention(heads=1, causal="-3"),
    "causal and mask": Attention(heads=1, mask="i1", causal="s2 - s1"),
    "causal and float mask": Attention(
        heads=1, mask="f16", causal="s2 - s1", mask_shape="s0, 1, s1, s2"
    ),
    "f16": Attention(heads=1, element="f16", mask="i1"),
    "heads of 64": Attention(heads=1, d=64),
    "heads of 128": Attention(heads=1, d=128, causal="0"),
    "odd heads": Attention(heads=1, d=20, dv=20),
    "rows that start anywhere": Attention(heads=1, d=7, dv=5),
    "longer values": Attention(heads=1, d=32, dv=96),
    "shorter values": Attention(heads=1, d=80, dv=24),
    "negative scale": Attention(heads=1, scale=-0.3),
    "no scale": Attention(heads=1, scale=0.0, mask="i1"),
}


@pytest.mark.parametrize("name", VARIANTS)
@given(schedule=st.sampled_from([PLAIN, TWO_GROUPS]), m=QUERIES, n=KEYS, block=st.booleans())
@examples(2)
def test_variants(name: str, schedule: str, m: int, n: int, block: bool) -> None:
    variant = VARIANTS[name]
    check(variant, schedule, 1, m, m if variant.layout == "packed" else n, block=block)


@pytest.mark.parametrize("name", ["plain", "longer values", "grouped queries"])
@pytest.mark.parametrize("operand", [0, 1, 2, -1])
def test_addresses_that_are_no_multiples_of_16(name: str, operand: int) -> None:
    variant = VARIANTS[name]
    shifts = [0] * (4 + bool(variant.mask))
    shifts[operand] = 2
    check(variant, PLAIN, 1, 5, 40, shifts=shifts)


def test_more_ctas_than_work_and_fewer() -> None:
    for multiprocessors in (1, 9):
        check(Attention(mask="i1"), PLAIN, 2, 70, 40, multiprocessors=multiprocessors)
        block = {"block": True, "programmatic": True}
        check(Attention(mask="i1"), PLAIN, 2, 70, 40, multiprocessors=multiprocessors, **block)


def test_results_do_not_vary() -> None:
    """Whatever the order of events."""
    kernel = lowered(Attention(mask="i1"), FOUR_GROUPS)
    torch.manual_seed(0)
    inputs = Attention(mask="i1").inputs(1, 30, 200)
    results = [kernel.run(inputs, 1, 30, 200, seed=seed) for seed in range(3)]
    assert all(torch.equal(results[0], result) for result in results)


def test_masked_keys_do_not_count_whatever_they_are() -> None:
    """Rows of keys behind a mask may hold anything but NaN values."""
    variant = Attention(heads=1, mask="i1", mask_shape="1, 1, 1, s2")
    inputs = variant.inputs(1, 4, 50)
    inputs[3][..., 20:] = False
    expected = variant.reference(inputs, 1, 4, 50)
    inputs[1][:, 20:] = math.inf
    got = lowered(variant, PLAIN).run(inputs, 1, 4, 50)
    assert torch.allclose(got.double(), expected, atol=0.02)


def test_the_least_number_is_no_minus_infinity() -> None:
    """A query that a float mask hides everything from, by the least number, sees all alike."""
    variant = Attention(heads=1, mask="f32", mask_shape="1, 1, s1, s2")
    inputs = variant.inputs(1, 3, 40)
    inputs[3][..., 0, :] = torch.finfo(torch.float32).min
    expected = variant.reference(inputs, 1, 3, 40)
    got = lowered(variant, PLAIN).run(inputs, 1, 3, 40)
    assert torch.allclose(got.double(), expected, atol=0.02)
    mean = inputs[2].double().mean(1)[0]
    assert torch.allclose(got[0, 0].double(), mean, atol=0.01)


# What the simulated GPU would find ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "name"), [(ptx, "await_copies"), (emitter, "publish_to_tma")], ids=["wait", "fence"]
)
def test_copies_must_be_awaited(module: object, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, name, lambda *_: None)
    kernel = lowered.__wrapped__(Attention(), PLAIN)
    inputs = Attention().inputs(1, 64, 128)
    with pytest.raises((SimulationError, AssertionError)):
        for seed in range(5):
            kernel.run(inputs, 1, 64, 128, seed=seed)


def test_products_must_be_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_emitter, "await_products", lambda _, sums, before=(): (sums, before))
    kernel = lowered.__wrapped__(Attention(), PLAIN)
    with pytest.raises((SimulationError, TypeError)):
        kernel.run(Attention().inputs(1, 4, 4), 1, 4, 4)


# Forms --------------------------------------------------------------------------------------------


def test_there_are_no_tensor_maps() -> None:
    for block in (False, True):
        interface = lowered(Attention(mask="i1"), PLAIN, block).interface
        assert not any(isinstance(each, TensorMap) for each in interface.parameters)
        assert interface.block == block
        assert interface.grid.ctas_per_sm == 2


def test_nothing_is_read_or_written_before_the_wait() -> None:
    kernel = lowered(Attention(mask="i1"), PLAIN, block=True, programmatic=True)
    entry, prologue, after = str(kernel.function).split("nvvm.griddepcontrol")
    before = entry + prologue
    assert kernel.interface.programmatic
    assert "launch_dependents" in prologue
    for access in ("cp.async", "ld.global.", "st.global"):
        assert access not in before
        assert access in after
    stores = [line for line in before.splitlines() if "llvm.store" in line]
    assert all("!llvm.ptr<3>" in line for line in stores)
    # The kernel's entry in the block was written before any kernel of the graph started.
    assert "ld.relaxed.gpu.global" in before


# Machine code -------------------------------------------------------------------------------------

_CODE = [
    (Attention(12, mask="i1", layout="packed"), "tiles_64x64_c4"),
    (Attention(12, mask="i1", layout="packed"), "tiles_64x128_c3"),
    (Attention(12, mask="i1", layout="packed"), "tiles_64x256_c2"),
    (Attention(12, mask="i1", layout="packed"), "tiles_64x64_g4_c1"),
    (Attention(12, mask="i1", layout="packed"), "tiles_64x64_s4_w4_c1"),
    (Attention(12, mask="i1", layout="packed"), "tiles_128x64_s4_c3"),
    (Attention(12, d=64, mask="i1", layout="packed"), "tiles_64x64_w4_c1"),
    (Attention(12, d=64, mask="i1", layout="packed"), "tiles_64x128_c2"),
    (Attention(8, 2, d=128, causal="s2 - s1"), "tiles_64x64_c2"),
    (Attention(8, 2, d=128, causal="s2 - s1"), "tiles_128x64_c1"),
    (Attention(8, 2, d=128, causal="s2 - s1"), "tiles_64x64_i2_w2_c1"),
    (Attention(8, d=64, mask="f32", mask_shape="s0, 1, s1, s2"), "tiles_64x64_c2"),
    (Attention(8, element="f16"), "tiles_64x64_c4"),
]


@sass.needs_nvdisasm
@pytest.mark.parametrize(("attention", "schedule"), _CODE)
def test_machine_code(attention: Attention, schedule: str) -> None:
    """Assembled without a warning of serialised products; no spills; no register read unset."""
    for block in (False, True):
        cubin = lowered(attention, schedule, block, block).assemble()
        [function] = sass.disassemble(cubin.data).values()
        parsed = AttentionSchedule.parse(schedule)
        products = attention.d // 16 + parsed.share // 16
        assert function.count("HGMMA") == parsed.shares * products
        assert function.count("LDGSTS") >= 3
        assert not function.local_memory
        assert not function.read_never_written


def test_same_input_same_code() -> None:
    first, second = (lowered.__wrapped__(Attention(mask="i1"), PLAIN) for _ in range(2))
    assert first.interface == second.interface
    assert first.assemble().data == second.assemble().data
