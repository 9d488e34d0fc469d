# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Flash kernels: on a simulated GPU against float64, and their code."""

from __future__ import annotations

import math

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
from shapejit.gpu.interface import TensorMap
from shapejit.passes.nvgpu.attention import flash_consumer
from shapejit.passes.nvgpu.attention.flash_choice import TIERS
from shapejit.passes.nvgpu.attention.flash_operands import misfit
from shapejit.passes.nvgpu.attention.flash_schedule import FlashSchedule
from shapejit.passes.nvgpu.attention.kinds import parse_schedule
from shapejit.passes.nvgpu.attention.problem import attention_problem
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.ring import Ring
from shapejit.passes.nvgpu.tma import Descriptor
from unit.cpu_kernels import examples
from unit.simulated_attention import Attention, check, lowered
from unit.simulated_programs import simulated

# One, two and three consumers; small blocks, so that few keys are many blocks.
ONE = "flash_64x32_s3_c2"
TWO = "flash_128x16_s4_c1"
THREE = "flash_192x16_s5_c1"

BATCHES = st.sampled_from([1, 0, 2])
QUERIES = st.one_of(st.sampled_from([0, 1, 7, 64, 65, 127]), st.integers(0, 130))
KEYS = st.one_of(st.sampled_from([0, 1, 31, 32, 33, 64, 65, 129]), st.integers(0, 140))


@pytest.mark.parametrize("schedule", [ONE, TWO, THREE])
@given(b=BATCHES, m=QUERIES, n=KEYS, block=st.booleans(), seed=st.integers(0, 1000))
@examples(4)
def test_any_sizes(schedule: str, b: int, m: int, n: int, block: bool, seed: int) -> None:
    attention = Attention(heads=1)
    check(attention, schedule, b, m, n, block=block, programmatic=block, seed=seed)


@pytest.mark.parametrize("causal", ["0", "s2 - s1", "-3", "-70", "5"])
@given(m=QUERIES, n=KEYS, schedule=st.sampled_from([ONE, TWO]), block=st.booleans())
@examples(1)
def test_causal_limits(causal: str, m: int, n: int, schedule: str, block: bool) -> None:
    check(Attention(heads=1, causal=causal), schedule, 1, m, n, block=block)


VARIANTS = {
    "heads of one tensor": Attention(layout="packed", mask="i1"),
    "heads first": Attention(layout="bhm"),
    "grouped queries": Attention(layout="bhm", heads=4, kv_heads=2, causal="s2 - s1"),
    "one head of keys": Attention(heads=3, kv_heads=1),
    "mask of keys": Attention(heads=1, mask="i1"),
    "full bool mask": Attention(mask="i1", mask_shape="s0, 2, s1, s2"),
    "mask of queries": Attention(heads=1, mask="i1", mask_shape="1, 1, s1, 1"),
    "float mask": Attention(heads=1, mask="f32", mask_shape="1, 1, s1, s2"),
    "float mask of keys": Attention(heads=1, mask="bf16"),
    "causal and mask": Attention(heads=1, mask="i1", causal="s2 - s1"),
    "causal and float mask": Attention(
        heads=1, mask="f16", causal="s2 - s1", mask_shape="s0, 1, s1, s2"
    ),
    "f16": Attention(heads=1, element="f16"),
    "heads of 64": Attention(heads=1, d=64),
    "heads of 96": Attention(heads=1, d=96, causal="0"),
    "heads of 128": Attention(heads=1, d=128),
    "heads of 256": Attention(heads=1, d=256),
    "odd heads": Attention(heads=1, d=40, dv=56),
    "negative scale": Attention(heads=1, scale=-0.3),
}


@pytest.mark.parametrize("name", VARIANTS)
@given(m=st.integers(1, 64), n=st.integers(1, 70), block=st.booleans())
@examples(1)
def test_variants(name: str, m: int, n: int, block: bool) -> None:
    variant = VARIANTS[name]
    check(variant, ONE, 1, m, m if variant.layout == "packed" else n, block=block)


@pytest.mark.parametrize(("schedule", "causal"), [(ONE, "0"), (TWO, None), (TWO, "s2 - s1")])
def test_tiles_after_tiles(schedule: str, causal: str | None) -> None:
    """More tiles than CTAs: buffers and barriers are used again, in both parities."""
    check(Attention(heads=3, causal=causal), schedule, 1, 140, 40, multiprocessors=1)


def test_more_ctas_than_tiles() -> None:
    check(Attention(heads=1), ONE, 1, 70, 33, multiprocessors=9)


_CHOSEN = [
    ("flash_64x128_s8_c2", 32, 129),
    ("flash_192x128_s8_c1", 64, 129),
    ("flash_64x64_s5_c2", 128, 129),
    ("flash_128x128_s5_c1", 128, 129),
    ("flash_192x80_s6_c1", 128, 81),
]


@pytest.mark.parametrize(("schedule", "size", "keys"), _CHOSEN)
def test_schedules_that_are_chosen(schedule: str, size: int, keys: int) -> None:
    """With heads that they are made for; the other ones differ in their rings alone."""
    assert schedule in map(str, TIERS[size])
    check(Attention(heads=1, d=size), schedule, 1, 65, keys)


def test_results_do_not_vary() -> None:
    """Whatever the order of events."""
    kernel = lowered(Attention(heads=1), TWO)
    torch.manual_seed(0)
    inputs = Attention(heads=1).inputs(1, 130, 60)
    results = [kernel.run(inputs, 1, 130, 60, seed=seed) for seed in range(2)]
    assert all(torch.equal(results[0], result) for result in results)


def test_the_least_number_is_no_minus_infinity() -> None:
    """A query that a float mask hides everything from, by the least number, sees all alike."""
    variant = Attention(heads=1, mask="f32", mask_shape="1, 1, s1, s2")
    inputs = variant.inputs(1, 3, 70)
    inputs[3][..., 0, :] = torch.finfo(torch.float32).min
    got = lowered(variant, ONE).run(inputs, 1, 3, 70)
    assert torch.allclose(got.double(), variant.reference(inputs, 1, 3, 70), atol=0.02)


def test_masked_keys_do_not_count_whatever_they_are() -> None:
    variant = Attention(heads=1, mask="i1", mask_shape="1, 1, 1, s2")
    inputs = variant.inputs(1, 4, 90)
    inputs[3][..., 20:] = False
    expected = variant.reference(inputs, 1, 4, 90)
    inputs[1][:, 20:] = math.inf
    got = lowered(variant, ONE).run(inputs, 1, 4, 90)
    assert torch.allclose(got.double(), expected, atol=0.02)


# What the simulated GPU would find ----------------------------------------------------------------


def _run_anew(block: bool = False) -> None:
    """A kernel that is emitted again, in some orders of events, with two tiles a CTA."""
    attention = Attention(heads=2)
    kernel = lowered.__wrapped__(attention, ONE, block)
    inputs = attention.inputs(1, 70, 70)
    expected = attention.reference(inputs, 1, 70, 70)
    for seed in range(3):
        got = kernel.run(inputs, 1, 70, 70, multiprocessors=1, seed=seed).double()
        assert ((got - expected).abs() <= attention.allowed(inputs, expected)).all()


def test_maps_in_memory_must_be_acquired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Descriptor, "acquire", lambda _: None)
    with pytest.raises(SimulationError, match="acquire"):
        _run_anew(block=True)
    _run_anew()  # by value there is nothing to acquire


def test_results_must_be_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_consumer, "publish_to_tma", lambda: None)
    with pytest.raises(SimulationError, match="without a fence"):
        _run_anew()


@pytest.mark.parametrize("name", ["await_full", "release"])
def test_the_ring_must_be_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ring, name, lambda *_: None)
    with pytest.raises((SimulationError, AssertionError)):
        _run_anew()


# Forms --------------------------------------------------------------------------------------------


def test_operands_are_tensor_maps() -> None:
    interface = lowered(Attention(heads=4, kv_heads=2, d=64), TWO, True).interface
    maps = [each for each in interface.parameters if isinstance(each, TensorMap)]
    assert [each.operand for each in maps] == [0, 1, 2, 3]
    assert [each.box[:2] for each in maps] == [(64, 128), (64, 16), (64, 16), (64, 64)]
    heads = [interface.values[each.dims[2]] for each in maps]
    assert heads == ["4", "2", "2", "4"]
    assert interface.block
    assert interface.threads == 384


def test_nothing_is_read_or_written_before_the_wait() -> None:
    kernel = lowered(Attention(heads=1, mask="i1"), TWO, block=True, programmatic=True)
    first, *parts = str(kernel.function).split("nvvm.griddepcontrol")
    assert parts[0].lstrip().startswith("launch_dependents")
    assert all(part.lstrip().startswith("wait") for part in parts[1:])
    assert len(parts) == 6  # three threads of the producer, the consumers, and those without keys
    for access in ("tma.async", "ld.global.", "st.global"):
        assert access not in first + parts[0]


@pytest.mark.parametrize(
    ("attention", "reason"),
    [
        (Attention(d=20, dv=20), "has queries 20"),
        (Attention(heads=2, layout="bhdm"), "has keys whose elements are s2 apart"),
        (Attention(d=32, dv=96), "has queries of 32 and values of 96 elements"),
        (Attention(heads=3, d=12), "has queries 36 elements apart, not multiples of 8"),
    ],
)
def test_what_tensor_maps_cannot_read_is_refused(attention: Attention, reason: str) -> None:
    with pytest.raises(LoweringError, match=reason):
        lowered.__wrapped__(attention, ONE)


def test_strides_that_are_not_known_to_suit() -> None:
    """Rows of keys ``s2`` apart may suit or not: a schedule that is asked for takes them."""
    text = Attention(heads=1, d=32, layout="bhm").text
    text = text.replace("tensor<?x1x?x32", "tensor<?x1x?x?").replace("s1, 32]", "s1, s2]")
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text.replace("s2, 32]", "s2, s2]"))
        problem = attention_problem(sir.kernels(module)["k"])
        assert misfit(problem, known=False) is None
        assert misfit(problem, known=True) == "has queries s2 elements apart, not multiples of 8"


def test_names_of_schedules() -> None:
    for name in (ONE, TWO, THREE, "flash_192x80_s6_c1"):
        assert str(parse_schedule(name)) == name
        assert isinstance(parse_schedule(name), FlashSchedule)
    for name in ("flash_64x64_s5_c1", "flash_128x40_s4_c1", "flash_128x64_s2_c1", "flash_128x64"):
        with pytest.raises(ValueError, match="names no flash schedule"):
            parse_schedule(name)


# A whole program ----------------------------------------------------------------------------------


class Prefill(nn.Module):
    """Causal attention with heads that queries share."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def test_in_a_program() -> None:
    """Imported, chosen for its sizes, launched by the host program."""
    args = [
        torch.zeros(1, heads, size, 64).bfloat16() for heads, size in ((2, 66), (1, 257), (1, 257))
    ]
    m, n = Dim("m", min=66, max=128), Dim("n", min=257, max=512)
    program, execution = simulated(Prefill(), args, {"q": {2: m}, "k": {2: n}, "v": {2: n}})
    assert "flash_64x128_s6_c2" in str(program.explain(*args))
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(each.shape, generator=generator).bfloat16() for each in args)
    with torch.no_grad():
        got, theirs = program(q, k, v), Prefill()(q, k, v)
        exact = Prefill()(q.double(), k.double(), v.double())
    assert len(execution.launched) == 1
    ours, torchs = ((each.double() - exact).norm() for each in (got, theirs))
    assert ours <= 1.2 * torchs


# Machine code -------------------------------------------------------------------------------------

_CODE = [
    (Attention(16, d=128), "flash_128x128_s5_c1"),
    (Attention(16, 4, d=128, causal="s2 - s1"), "flash_192x80_s6_c1"),
    (Attention(16, d=64), "flash_64x64_s10_c2"),
    (Attention(16, d=128, causal="s2 - s1", mask="i1"), "flash_64x64_s5_c2"),
    (Attention(16, d=64, layout="packed", mask="i1"), "flash_192x128_s8_c1"),
    (Attention(16, d=64, causal="0", element="f16"), "flash_128x128_s8_c1"),
    (Attention(16, d=64, causal="0", mask="f32", mask_shape="s0, 1, s1, s2"), "flash_64x64_s10_c2"),
    (Attention(16, d=128, mask="f32", mask_shape="s0, 1, s1, s2"), "flash_128x64_s10_c1"),
]


@sass.needs_nvdisasm
@pytest.mark.parametrize(("attention", "schedule"), _CODE)
def test_machine_code(attention: Attention, schedule: str) -> None:
    """Assembled without a warning of serialised products; no spills; no register read unset."""
    parsed = FlashSchedule.parse(schedule)
    copies = 3 + (attention.causal is not None)  # of the code for a block; a last one of its sums
    scores, sums = attention.d // 16, parsed.keys // 16
    # The block form has more code; by value is the code of the roles the same.
    for block in (False, True) if schedule == "flash_128x128_s5_c1" else (True,):
        cubin = lowered(attention, schedule, block, block).assemble()
        [function] = sass.disassemble(cubin.data).values()
        assert function.count("HGMMA") == copies * (scores + sums)
        assert function.count("USETMAXREG") == 2
        assert not function.local_memory
        assert not function.read_never_written


@pytest.mark.parametrize(
    "schedule", sorted({str(each) for tier in TIERS.values() for each in tier})
)
def test_registers_are_there(schedule: str) -> None:
    """What warpgroups ask for is no more than the CTA was launched with: who asks for more waits
    for ever. Registers are given in eights, to all threads alike at the launch."""
    parsed = FlashSchedule.parse(schedule)
    warpgroups = parsed.consumers + 1
    launched = 65536 // (128 * warpgroups * parsed.ctas) // 8 * 8
    give, take = parsed.registers
    assert give + parsed.consumers * take <= warpgroups * launched
    assert give % 8 == take % 8 == 0
    assert 24 <= give <= take <= 240


def test_same_input_same_code() -> None:
    first, second = (lowered.__wrapped__(Attention(heads=1), TWO) for _ in range(2))
    assert first.interface == second.interface
    assert str(first.function) == str(second.function)
